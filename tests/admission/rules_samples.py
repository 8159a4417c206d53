"""A question with the paper's own numbers, and strategies for any question."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from admission.rules import (
    Checksum,
    Codec,
    Episodes,
    Escapes,
    InFlight,
    Mode,
    Offers,
    Path,
    Peer,
    PortMove,
    Question,
    Resident,
    UpdateRule,
    paper,
)
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Fingerprint
from worldline.plan import Placement

HERE = Fingerprint({"torch": "2.13.0", "gpu": "A100"})
MG2 = Question(
    contract=Contract(ContractClass.C1, paper.MG2_HORIZON_S, Tier.T0),
    mode=Mode.FROZEN,
    state_bytes=paper.MG2_STATE_BYTES,
    dirty_rate_Bps=paper.MG2_DIRTY_Bps,
    bandwidth_Bps=9e9,
    setup_s=0.057,
    bound_s=1000.0,
    preset="window-rewrite/mg2",
    source_fingerprint=HERE,
    destination_fingerprint=HERE,
    destination_presets=frozenset({"window-rewrite/mg2"}),
    destination_free_bytes=40 << 30,
    destination_has_id=False,
    host_moves=(),
    receiver_cap=1,
    mover_moves=(),
    mover_cap=4,
    peers=(Peer("source host-a", 0.4), Peer("destination host-b", 0.9)),
    transport="tcp",
    transport_refusal="",
    patience_s=0.0,
    silent_s=3.0,
    silent_grace_s=10.0,
    heartbeat_s=1.0,
)
CRC_ENGINE = Checksum(paper.CRC_Bps / paper.CRC_THREADS, paper.CRC_THREADS)
ANS = Codec("ans", paper.CODEC_RATIO, paper.CODEC_ENCODE_Bps, paper.CODEC_DECODE_Bps)
EVERYTHING = Offers(
    placements=(Placement.PIPELINED, Placement.SEQUENTIAL, Placement.IN_PATH), codecs=(None, ANS), tail=True
)


def on(gigabits: float, **changes: object) -> Question:
    """The paper's session over a fabric of so many Gb/s."""
    return replace(MG2, bandwidth_Bps=gigabits * paper.GIGABIT_Bps, **changes)  # type: ignore[arg-type]


contracts = st.one_of(
    st.builds(
        Contract,
        st.sampled_from([ContractClass.C1, ContractClass.C2A, ContractClass.C2B]),
        st.floats(0.01, 100),
        st.sampled_from(Tier),
    ),
    st.builds(Contract, st.sampled_from([ContractClass.C3, ContractClass.C5]), st.just(0.0), st.sampled_from(Tier)),
    st.just(Contract(ContractClass.C4, 0.0, Tier.T0)),
)
seconds = st.floats(0, 60)
rates = st.floats(1e3, 1e13)
moves = st.lists(st.builds(InFlight, st.just("m-1"), seconds, st.booleans(), st.integers(0, 1 << 34)), max_size=4).map(
    tuple
)
checksums = st.builds(Checksum, st.floats(1e6, 1e11), st.integers(1, 64))
codecs = st.builds(Codec, st.just("zstd"), st.floats(0.05, 1), rates, rates, st.booleans())
port_moves = st.lists(
    st.builds(
        PortMove,
        st.just("m-2"),
        st.integers(0, 1 << 34),
        st.just(0.0) | st.floats(0.01, 100),
        st.floats(0, 1),
        st.floats(0, 1e10),
        st.just(math.inf) | st.floats(0.1, 100),
    ),
    max_size=3,
).map(tuple)
fingerprints = st.builds(Fingerprint, st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")))
questions = st.builds(
    Question,
    contract=contracts,
    mode=st.sampled_from(Mode),
    state_bytes=st.integers(0, 1 << 40),
    dirty_rate_Bps=st.none() | st.floats(0, 1e12),
    bandwidth_Bps=rates,
    setup_s=seconds,
    bound_s=st.floats(0.01, 200),
    preset=st.sampled_from(["e/p", "e/q"]),
    source_fingerprint=fingerprints,
    destination_fingerprint=fingerprints,
    destination_presets=st.frozensets(st.sampled_from(["e/p", "e/q"])),
    destination_free_bytes=st.integers(0, 1 << 41),
    destination_has_id=st.booleans(),
    host_moves=moves,
    receiver_cap=st.integers(1, 4),
    mover_moves=moves,
    mover_cap=st.integers(0, 4),
    peers=st.lists(
        st.builds(
            Peer, st.just("peer"), st.floats(0, 30) | st.just(math.inf), st.sampled_from(["", "", "is draining"])
        ),
        max_size=4,
    ).map(tuple),
    transport=st.just("tcp"),
    transport_refusal=st.sampled_from(["", "", "transport 'rdma' is not offered by mover-a"]),
    patience_s=seconds,
    silent_s=st.floats(0.1, 10),
    silent_grace_s=seconds,
    heartbeat_s=st.floats(0.1, 5),
    exposed_s=seconds,
    placement=st.sampled_from(Placement),
    codec=st.none() | codecs,
    chunk_bytes=st.integers(1, 1 << 18).map(lambda pages: pages * 4096),
    chunk_s=st.none() | st.floats(0, 0.001),
    tail_bytes=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
    streams=st.integers(1, 16),
    offers=st.just(Offers())
    | st.builds(
        Offers,
        modes=st.sampled_from([(), (Mode.FROZEN,), (Mode.FROZEN, Mode.LIVE)]),
        paths=st.lists(
            st.builds(
                Path,
                st.sampled_from(["tcp", "rdma", "local"]),
                rates,
                st.floats(0, 1),
                st.sampled_from(["", "", "not offered"]),
                st.none() | rates,
                st.none() | rates,
                st.none() | st.floats(0, 3),
            ),
            max_size=2,
        ).map(tuple),
        placements=st.lists(st.sampled_from(Placement), max_size=4, unique=True).map(tuple),
        codecs=st.sampled_from([(), (None,)]) | st.tuples(st.none(), codecs) | st.tuples(codecs),
        tail=st.booleans(),
    ),
    ceiling_Bps=st.none() | rates,
    stream_Bps=st.none() | rates,
    retransmit_floor_s=st.none() | st.floats(0, 3),
    source_crc=st.none() | checksums,
    destination_crc=st.none() | checksums,
    episodes=st.none() | st.builds(Episodes, st.floats(0, 1), st.floats(0, 5)),
    cold_bytes=st.integers(0, 1 << 40),
    slot_warm=st.none() | st.booleans(),
    first_touch_s=st.none() | seconds,
    quantum_s=st.none() | st.floats(0, 1),
    inexact_tiers=st.frozensets(st.sampled_from([Tier.T1, Tier.T2])),
    readout_floor_dB=st.none() | st.floats(10, 100),
    residents=st.lists(st.builds(Resident, st.just("s-1"), st.floats(0.001, 1), st.floats(0.01, 1)), max_size=2).map(
        tuple
    ),
    host_link_shared=st.none() | st.booleans(),
    suspending=moves,
    port_moves=port_moves,
    period_s=st.just(math.inf) | st.floats(0.1, 100),
    sender_moves=moves,
    opposite_moves=moves,
    escapes=st.builds(
        Escapes,
        st.none() | st.sampled_from(UpdateRule),
        st.none() | seconds,
        st.none() | seconds,
        st.none() | st.floats(0.1, 1),
    ),
    benefit_s=st.none() | seconds,
    hysteresis=st.floats(0, 2),
)

"""The choice of a plan: the best of what is offered, never worse for more bandwidth or less to move."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules_samples import ANS, CRC_ENGINE, EVERYTHING, MG2, on, questions

from admission.rules import RULES, Checksum, Codec, InFlight, Mode, Offers, Path, Question, choose, evaluate
from admission.rules.choice import CODEC_PAYS, TIE_S, tail_of
from admission.rules.cost import predict
from worldline.contract import Contract, ContractClass, Tier
from worldline.plan import Placement, Plan
from worldline.verdict import Kind

ORDER = {Kind.REJECT: 0, Kind.DEFER: 1, Kind.ADMIT: 2}
free = st.builds(
    replace,
    questions,
    tail_bytes=st.just(()),
    offers=st.builds(
        Offers,
        placements=st.permutations([Placement.PIPELINED, Placement.SEQUENTIAL, Placement.IN_PATH]).map(tuple),
        codecs=st.sampled_from([(), (None, ANS)]),
        tail=st.booleans(),
    ),
    codec=st.none(),
)


@settings(deadline=None, max_examples=30)
@given(questions)
def test_the_choice_is_what_the_rules_say_of_it(question: Question) -> None:
    chosen = choose(question)
    assert [clause.name for clause in chosen.verdict.clauses] == [rule.__name__ for rule in RULES]
    assert chosen.verdict.predicted_s == chosen.stages.total_s
    assert chosen.margin_s == question.allowed_s - chosen.stages.total_s
    assert (chosen.verdict.kind is Kind.ADMIT) == all(item.verdict is Kind.ADMIT for item in chosen.verdict.clauses)
    if chosen.verdict.kind is Kind.ADMIT:
        assert chosen.margin_s > 0


@settings(deadline=None, max_examples=30)
@given(questions)
def test_what_is_pinned_is_kept(question: Question) -> None:
    pinned = replace(question, offers=Offers())
    chosen = choose(pinned)
    assert chosen.verdict == evaluate(pinned)
    assert (chosen.mode, chosen.transport, chosen.placement, chosen.codec) == (
        question.mode,
        question.transport,
        question.placement,
        question.codec,
    )
    assert (chosen.streams, chosen.chunk_bytes, chosen.tail_bytes) == (
        question.streams,
        question.chunk_bytes,
        question.tail_bytes,
    )


@settings(deadline=None, max_examples=80)
@given(free, st.floats(1, 100), st.sampled_from(["bandwidth", "state", "dirty", "load", "cold codec", "crc"]))
def test_more_bandwidth_or_less_to_move_never_rejects(question: Question, factor: float, pick: str) -> None:
    changes: dict[str, dict[str, object]] = {
        "bandwidth": {"bandwidth_Bps": question.bandwidth_Bps * factor},
        "state": {"state_bytes": int(question.state_bytes / factor)},
        "dirty": {"dirty_rate_Bps": question.dirty_rate_Bps and question.dirty_rate_Bps / factor},
        "load": {
            "port_moves": question.port_moves[1:],
            "host_moves": question.host_moves[1:],
            "mover_moves": question.mover_moves[1:],
            "sender_moves": question.sender_moves[1:],
            "opposite_moves": question.opposite_moves[1:],
        },
        "cold codec": {"offers": replace(question.offers, codecs=(None, ANS))},
        "crc": {"destination_crc": question.destination_crc and replace(question.destination_crc, threads=100)},
    }
    easier = replace(question, **changes[pick])  # type: ignore[arg-type]
    assert ORDER[choose(easier).verdict.kind] >= ORDER[choose(question).verdict.kind]


@settings(deadline=None, max_examples=30)
@given(questions)
def test_nothing_that_is_offered_is_better(question: Question) -> None:
    """Every plan that is offered, judged by itself."""
    offers, chosen = question.offers, choose(question)
    found = []
    for codec in offers.codecs or (question.codec,):
        for placement in offers.placements or (question.placement,):
            for mode in offers.modes or (question.mode,):
                plain = replace(question, codec=codec, placement=placement, mode=mode)
                found.append(choose(replace(plain, offers=Offers(paths=offers.paths, tail=offers.tail))))
    best = max(ORDER[item.verdict.kind] for item in found)
    assert ORDER[chosen.verdict.kind] == best
    if chosen.verdict.kind is Kind.ADMIT and chosen.codec is None and question.contract.has_deadline:
        raw = [item for item in found if item.verdict.kind is Kind.ADMIT and item.codec is None]
        assert chosen.margin_s >= max(item.margin_s for item in raw) - TIE_S - 1e-9


@given(
    st.integers(1, 1 << 40),
    st.integers(1, 1 << 18).map(lambda pages: pages * 4096),
    st.floats(1e6, 1e12),
    st.none() | st.floats(1e6, 1e12),
)
def test_a_tail_is_one_that_a_plan_takes(
    state_bytes: int, chunk_bytes: int, wire_Bps: float, crc_Bps: float | None
) -> None:
    lane = Checksum(crc_Bps) if crc_Bps else None
    asked = replace(MG2, state_bytes=state_bytes, bandwidth_Bps=wire_Bps, destination_crc=lane)
    tail = tail_of(replace(asked, chunk_bytes=chunk_bytes))
    assert all(0 < size < chunk_bytes for size in tail)
    assert list(tail) == sorted(tail, reverse=True)
    assert not tail or (crc_Bps and crc_Bps > wire_Bps)
    Plan("tcp", chunk_bytes, 1, Placement.PIPELINED, 1, 1, 1, tail_bytes=tail)


@settings(deadline=None)
@given(
    st.integers(1, 1 << 30),
    st.integers(16, 1 << 14).map(lambda pages: pages * 4096),
    st.booleans(),
    st.floats(1e8, 1e11),
    st.floats(1e8, 1e11),
)
def test_pipelined_is_what_the_chunks_of_the_plan_take(
    state_bytes: int, chunk_bytes: int, with_tail: bool, wire_Bps: float, crc_Bps: float
) -> None:
    """Chunk by chunk: each lands after the one before it, and is checked after it landed and the lane is free."""
    asked = replace(MG2, state_bytes=state_bytes, bandwidth_Bps=wire_Bps, destination_crc=Checksum(crc_Bps))
    asked = replace(asked, chunk_bytes=chunk_bytes)
    tail = tail_of(asked) if with_tail else ()
    plan = Plan("tcp", chunk_bytes, 1, Placement.PIPELINED, 1, 1, 1, tail_bytes=tail)
    landed_s = checked_s = 0.0
    for chunk in plan.chunks(state_bytes):
        landed_s += chunk.size_bytes / wire_Bps
        checked_s = max(checked_s, landed_s) + chunk.size_bytes / crc_Bps
    stages = predict(replace(asked, tail_bytes=tail))
    predicted_s = stages.wire_s + stages.exposed_s
    assert checked_s <= predicted_s * (1 + 1e-9)
    # It counts the body's last chunk as a whole one.
    assert predicted_s <= checked_s + chunk_bytes / crc_Bps + 1e-9


def test_a_tail_schedule_is_used_where_the_last_checksum_shows() -> None:
    asked = on(100, destination_crc=CRC_ENGINE, chunk_bytes=256 << 20, offers=Offers(tail=True))
    chosen = choose(asked)
    # A wire of 12.5 GB/s under a lane four times as fast or faster: down to the least chunk in quarters.
    assert chosen.tail_bytes == tuple((256 << 20) >> 2 * step for step in range(1, 7))
    assert chosen.stages.exposed_s < choose(replace(asked, offers=Offers())).stages.exposed_s / 4
    assert choose(replace(asked, chunk_bytes=4 << 20)).tail_bytes == ()  # it would save less than a tie


def test_on_a_measured_path_a_tail_is_taken_where_there_is_one() -> None:
    """Its B has the last checksum in it: the prediction is the same with and without."""
    path = Path("tcp", 12.5e9, 0.02, placements=(Placement.PIPELINED,), verified=True)
    asked = on(100, destination_crc=CRC_ENGINE, offers=Offers(paths=(path,), tail=True))
    chosen = choose(asked)
    assert chosen.tail_bytes == (1 << 20, 1 << 18, 1 << 16)
    assert chosen.stages == choose(replace(asked, offers=Offers(paths=(path,)))).stages
    slow = replace(asked, destination_crc=Checksum(1e9))  # behind the wire no chunk is small enough
    assert choose(slow).tail_bytes == ()
    after = replace(path, placements=(Placement.SEQUENTIAL,))
    assert choose(replace(asked, offers=Offers(paths=(after,), tail=True))).tail_bytes == ()


def test_smaller_chunks_are_weighed_against_what_each_costs() -> None:
    sizes = (64 << 20, 16 << 20, 4 << 20)
    asked = on(100, destination_crc=Checksum(15e9), offers=Offers(chunk_bytes=sizes))
    assert choose(replace(asked, chunk_s=5e-3)).chunk_bytes == 64 << 20
    assert choose(replace(asked, chunk_s=1e-5)).chunk_bytes == 16 << 20
    # 4 MiB chunks would be over half a millisecond sooner: a tie, and what is offered first is kept.
    assert choose(replace(asked, chunk_s=1e-6)).chunk_bytes == 16 << 20
    assert choose(replace(asked, chunk_s=1e-6, offers=Offers(chunk_bytes=(64 << 20, 4 << 20)))).chunk_bytes == 4 << 20
    assert choose(replace(asked, offers=Offers(chunk_bytes=(8 << 20,)))).chunk_bytes == 8 << 20


def test_streams_are_added_until_the_path_is_full() -> None:
    asked = on(100, stream_Bps=5e9, offers=Offers(streams=(1, 2, 3, 4, 8)))
    assert choose(asked).streams == 3


def test_the_faster_transport_is_taken_and_a_refused_one_is_not() -> None:
    tcp, rdma = Path("tcp", 5e9, 0.05), Path("rdma", 12e9, 0.02, retransmit_floor_s=2.1)
    asked = replace(MG2, offers=Offers(paths=(tcp, rdma)))
    assert choose(asked).transport == "rdma"
    refused = replace(asked, offers=Offers(paths=(tcp, replace(rdma, refusal="rdma is not offered by mover-b"))))
    assert (choose(refused).transport, choose(refused).verdict.kind) == ("tcp", Kind.ADMIT)
    tied = replace(asked, offers=Offers(paths=(tcp, replace(tcp, transport="rdma", setup_s=0.0495))))
    assert choose(tied).transport == "tcp"


def test_the_mode_that_admits_is_taken() -> None:
    asked = on(36, setup_s=0.02, offers=Offers(modes=(Mode.LIVE, Mode.FROZEN)))
    assert (choose(asked).mode, choose(asked).verdict.kind) == (Mode.FROZEN, Kind.ADMIT)


def test_a_codec_shortens_an_evacuation_even_where_raw_would_do() -> None:
    bulk = on(25, contract=Contract(ContractClass.C3, 0.0, Tier.T0), bound_s=30.0, offers=Offers(codecs=(None, ANS)))
    assert choose(bulk).codec == ANS
    slow = Codec("zstd", 0.6, 1e9, 2e9)
    assert choose(replace(bulk, offers=Offers(codecs=(None, slow)))).codec is None
    # Beside the wire it is never slower than raw, but what it saves must be worth its processors.
    beside = replace(slow, beside=True)
    assert choose(replace(bulk, offers=Offers(codecs=(None, beside)))).codec == beside
    hardly = replace(beside, encode_Bps=0.3e9)
    assert CODEC_PAYS < predict(replace(bulk, codec=hardly)).total_s / predict(bulk).total_s < 1
    assert choose(replace(bulk, offers=Offers(codecs=(None, hardly)))).codec is None


def test_a_rejected_plan_is_the_one_that_comes_nearest() -> None:
    chosen = choose(on(10, setup_s=0.02, offers=EVERYTHING, destination_crc=CRC_ENGINE))
    assert chosen.verdict.kind is Kind.REJECT
    assert chosen.codec is None
    assert {clause.name for clause in chosen.verdict.failed} == {"deadline_gate", "flux"}
    busy = choose(on(10, setup_s=0.02, offers=EVERYTHING, host_moves=(InFlight("m-1", 1.0),)))
    assert {clause.name for clause in busy.verdict.failed} == {"deadline_gate", "flux", "receiver"}


def test_a_live_move_of_unknown_dirty_rate_waits_for_it() -> None:
    chosen = choose(on(100, mode=Mode.LIVE, dirty_rate_Bps=None, patience_s=5.0))
    assert (chosen.verdict.kind, chosen.verdict.retry_after_s) == (Kind.DEFER, 1.0)


@pytest.mark.parametrize("horizon_s", [0.4, 0.1])
def test_the_stages_add_up(horizon_s: float) -> None:
    asked = on(25, codec=ANS, destination_crc=CRC_ENGINE, slot_warm=False, first_touch_s=0.05, quantum_s=0.01)
    stages = predict(replace(asked, contract=Contract(ContractClass.C1, horizon_s, Tier.T0)))
    parts = (stages.setup_s, stages.first_touch_s, stages.quantum_s, stages.encode_s, stages.wire_s)
    assert stages.total_s == pytest.approx(sum(parts) + stages.exposed_s + stages.decode_s)
    assert all(part > 0 for part in (*parts, stages.exposed_s, stages.decode_s))
    told = choose(replace(asked, contract=Contract(ContractClass.C1, horizon_s, Tier.T0)))
    numbers = told.verdict.clauses[0].numbers
    assert {name: numbers[name] for name in asdict(told.stages)} == asdict(told.stages)
    assert numbers["margin_s"] == told.margin_s

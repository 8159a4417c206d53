"""When a codec is offered, and what is known of it: from a host's sample, and from coded moves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_samples import MG2

from admission.coding import CodedMove, coded_move
from admission.estimators import PathEstimate, PathKey, estimates_from, rows_of
from admission.facts import MoverFacts, mover_from, session_from
from admission.offers import Pins, paths_between
from admission.profile import Profile
from admission.rules import Codec, Offers, Path, choose
from admission.rules.cost import payload_bytes, predict
from worldline import wire
from worldline.compressibility import Compressibility
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import BadRequest
from worldline.manifest import Descriptor
from worldline.move import StageTimes
from worldline.plan import Placement, Plan
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.verdict import Kind

PIPELINED = Placement.PIPELINED
S = 1 << 30
SAMPLE = Compressibility(0.7, 0.3e9, 1e9)
TIMES = StageTimes(wire_s=1.0, downtime_s=1.1)


def mover(name: str, threads: int) -> MoverFacts:
    return MoverFacts(
        name,
        f"{name}:1",
        frozenset({"tcp", "local"}),
        4,
        placements=frozenset({PIPELINED, Placement.DEVICE}),
        codecs=frozenset({"raw", "zstd"}),
        codec_threads=threads,
    )


MOVERS = (mover("m-1", 4), mover("m-2", 2))


def plan_of(codec: str) -> Plan:
    return Plan("tcp", 4 << 20, 2, PIPELINED, 1, 1, 1, codec=codec)


def profile(raw: int = 0, coded: tuple[CodedMove, ...] = ()) -> Profile:
    """What so many raw moves and these coded ones have taught."""
    made = Profile(PathEstimate.prior(1e9, 0.1), [], 600.0, lambda: 0.0)
    for _ in range(raw):
        made.keep(made.after("m-1", "m-2", plan_of("raw"), S, TIMES))
    for move in coded:
        made.keep(made.after("m-1", "m-2", plan_of("zstd"), S, TIMES, move))
    return made


def offered(
    known: Profile,
    sample: Compressibility | None = None,
    pins: Pins = Pins(),  # noqa: B008
) -> list[tuple[Path, Codec | None]]:
    found = paths_between(known, "m-1", "m-2", MOVERS, pins, sample)
    return [(path, codec) for path in found for codec in path.codecs]


# --- when


def test_a_codec_is_offered_before_it_was_tried_once_there_is_a_sample() -> None:
    assert [codec for _, codec in offered(profile(), SAMPLE)] == [None]  # the raw way was never measured
    assert [codec for _, codec in offered(profile(raw=1))] == [None]  # nobody knows what the codec leaves
    (raw, _), (coded, codec) = offered(profile(raw=1), SAMPLE)
    # The destination has the fewer threads.
    assert codec == Codec("zstd", 0.7, 0.6e9, 2e9, beside=True)
    assert (coded.bandwidth_Bps, coded.setup_s, coded.verified) == (raw.bandwidth_Bps, raw.setup_s, True)


def test_a_pinned_codec_that_nobody_knows_is_charged_as_raw() -> None:
    ((path, codec),) = offered(profile(), pins=Pins(codec="zstd"))
    assert (path.verified, codec) == (False, Codec("zstd"))
    ((_, known),) = offered(profile(), SAMPLE, Pins(codec="zstd"))
    assert known == Codec("zstd", 0.7, 0.6e9, 2e9, beside=True)


def test_moves_tell_the_rates_and_the_sample_the_share() -> None:
    measured = profile(raw=1, coded=(CodedMove(0.5, 1 / 0.4e9, 1 / 3e9),) * 20)
    (_, (_, codec)) = offered(measured)
    assert codec is not None
    assert codec.ratio is not None
    # Bounds: a little worse than what was seen each time.
    assert 0.5 < codec.ratio < 0.54
    assert 0.37e9 < (codec.encode_Bps or 0.0) < 0.4e9
    assert 2.7e9 < (codec.decode_Bps or 0.0) < 3e9
    (_, (_, own)) = offered(measured, SAMPLE)
    assert own == Codec("zstd", 0.7, codec.encode_Bps, codec.decode_Bps, beside=True)


@given(st.floats(0.0, 1.0), st.floats(1e-12, 1e-6), st.floats(1e-12, 1e-6))
def test_one_coded_move_gives_bounds_that_are_worse_than_it(ratio: float, encode: float, decode: float) -> None:
    found = profile(coded=(CodedMove(ratio, encode, decode),)).codec("m-1", "m-2", "tcp", PIPELINED, "zstd")
    assert found is not None
    assert ratio <= found.ratio <= 1
    assert found.encode_Bps <= 1 / encode
    assert found.decode_Bps <= 1 / decode


def test_what_a_move_does_not_say_teaches_nothing() -> None:
    half = profile(coded=(CodedMove(0.5, None, 1e-9),))
    assert half.codec("m-1", "m-2", "tcp", PIPELINED, "zstd") is None
    assert profile(raw=3).codec("m-1", "m-2", "tcp", PIPELINED, "raw") is None


def test_what_is_known_of_a_codec_is_kept() -> None:
    key, prior = PathKey("m-1", "m-2", "tcp/pipelined/zstd"), PathEstimate.prior(1e9, 0.1)
    learned = prior.after(S, TIMES, 5.0, 600.0).coded(CodedMove(0.5, 1e-9, 2e-9), 5.0, 600.0)
    assert estimates_from(rows_of(key, learned), prior) == {key: learned}
    assert len(rows_of(key, prior)) == 3  # a raw idiom has no rows of a codec


# --- what comes of it


def chosen(wire_s: float, contract: Contract, sample: Compressibility | None = SAMPLE) -> str:
    """The codec of the plan, on a path that took so long for 1 GiB raw."""
    known = Profile(PathEstimate.prior(1e9, 0.1), [], 600.0, lambda: 0.0)
    for _ in range(20):
        known.keep(known.after("m-1", "m-2", plan_of("raw"), S, StageTimes(wire_s=wire_s, downtime_s=wire_s + 0.1)))
    paths = paths_between(known, "m-1", "m-2", MOVERS, Pins(), sample)
    choice = choose(replace(MG2, contract=contract, state_bytes=S, bound_s=60.0, offers=Offers(paths=paths, tail=True)))
    assert choice.verdict.kind is Kind.ADMIT
    return choice.codec.name if choice.codec else "raw"


EVACUATION = Contract(ContractClass.C3, 0.0, Tier.T0)


def test_raw_or_coded_is_decided_from_what_was_measured() -> None:
    assert chosen(4.0, EVACUATION) == "zstd"  # 0.27 GB/s
    assert chosen(0.2, EVACUATION) == "raw"  # 5.4 GB/s: the codec would hardly be through with anything
    assert chosen(4.0, EVACUATION, Compressibility(0.95, 1e9, 1e9)) == "raw"  # it leaves nearly all
    assert chosen(4.0, EVACUATION, None) == "raw"  # nobody knows
    assert chosen(4.0, Contract(ContractClass.C1, 10.0, Tier.T0)) == "raw"  # raw meets the horizon
    assert chosen(4.0, Contract(ContractClass.C1, 3.7, Tier.T0)) == "zstd"  # and here it would not


@given(st.floats(1e6, 1e11), st.floats(0.01, 1), st.floats(1e6, 1e11), st.floats(1e6, 1e11), st.floats(1.0, 100.0))
def test_beside_the_wire_a_codec_never_sends_more_and_better_ones_never_take_longer(
    bandwidth_Bps: float, ratio: float, encode_Bps: float, decode_Bps: float, factor: float
) -> None:
    raw = replace(MG2, bandwidth_Bps=bandwidth_Bps, state_bytes=S)
    coded = replace(raw, codec=Codec("zstd", ratio, encode_Bps, decode_Bps, beside=True))
    assert payload_bytes(coded) <= S * (1 + 1e-9)
    assert ratio * S * (1 - 1e-9) <= payload_bytes(coded)
    if decode_Bps >= bandwidth_Bps / ratio:
        assert predict(coded).total_s <= predict(raw).total_s * (1 + 1e-9)
    for better in (
        replace(coded, codec=Codec("zstd", ratio, encode_Bps * factor, math.inf, beside=True)),
        replace(coded, codec=Codec("zstd", ratio / factor, encode_Bps, math.inf, beside=True)),
        replace(coded, bandwidth_Bps=bandwidth_Bps * factor),
    ):
        assert predict(better).total_s <= predict(coded).total_s * (1 + 1e-9)


# --- what a move tells


def test_a_coded_move_is_read_from_its_last_message() -> None:
    last = mover_pb.MoveResponse(
        total_bytes=100,
        wire_bytes=60,
        late_bytes=20,
        encode_bytes_per_s=10.0,
        decode_bytes_per_s=20.0,
        encode_threads=2,
        decode_threads=4,
    )
    # 20 bytes went raw for want of time: 40 of the other 80 were left.
    assert coded_move(last, 3) == CodedMove(0.5, 1 / 20, 1 / 80)
    last.decode_threads = 0  # the streams decoded
    assert coded_move(last, 3) == CodedMove(0.5, 1 / 20, 1 / 60)
    last.total_bytes += 50  # which the destination made
    assert coded_move(last, 3, made_bytes=50) == CodedMove(0.5, 1 / 20, 1 / 60)
    last.total_bytes, last.wire_bytes, last.late_bytes = 100, 100, 100
    assert coded_move(last, 3) == CodedMove(None, 1 / 20, 1 / 60)
    last.late_bytes = 101  # a mover that talks nonsense
    assert coded_move(last, 3) == CodedMove(None, 1 / 20, 1 / 60)
    assert coded_move(mover_pb.MoveResponse(total_bytes=100, wire_bytes=100), 3) is None


# --- what hosts and movers tell


def info(**told: float) -> host_pb.SessionInfo:
    descriptor = Descriptor("s-1", "e", "1", "p", 1, Contract(ContractClass.C3, 0.0, Tier.T0), bytes(32))
    message = host_pb.SessionInfo(descriptor=wire.descriptor_to(descriptor), state_bytes=S)
    if told:
        message.compressibility.CopyFrom(host_pb.Compressibility(**told))
    return message


def test_a_session_tells_its_sample() -> None:
    assert session_from(info()).compressibility is None
    told = session_from(info(ratio=0.7, encode_bytes_per_s=0.3e9, decode_bytes_per_s=1e9)).compressibility
    assert told == SAMPLE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ratio", 0.0),
        ("ratio", 1.01),
        ("ratio", math.nan),
        ("encode_bytes_per_s", 0.0),
        ("encode_bytes_per_s", math.inf),
        ("decode_bytes_per_s", -1.0),
    ],
)
def test_a_sample_that_cannot_be_is_refused(field: str, value: float) -> None:
    told = {"ratio": 0.7, "encode_bytes_per_s": 1e9, "decode_bytes_per_s": 1e9, field: value}
    with pytest.raises(BadRequest, match=r"compressibility|sample"):
        session_from(info(**told))


def test_a_mover_tells_its_codec_threads() -> None:
    message = pb.MoverRegistration(mover_id="m-1", address="m-1:1", transports=["tcp"], codec_threads=3)
    assert mover_from(message).codec_threads == 3


# --- what nobody carries


def test_state_on_a_device_is_refused_for_other_placements() -> None:
    pins = Pins("local", PIPELINED, "raw", on_device=True)
    (path,) = paths_between(profile(), "m-1", "m-1", MOVERS[:1], pins)
    assert "use DEVICE" in path.refusal

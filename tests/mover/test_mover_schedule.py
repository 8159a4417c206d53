"""The tail schedule, and what a move's trace and a mover's reports say of its verification."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mover_fakes import MoverProcess, until

from mover.capacity import LEAST_BYTES, measured_verify_Bps, smoothed_Bps
from mover.codec.counts import Coding
from mover.messages import Outcome
from mover.reporting import wire_attributes
from mover.verification import PLACEMENTS, Checks
from worldline import rpc
from worldline.errors import BadRequest
from worldline.plan import CODECS, MAX_TAIL_CHUNKS, MIN_TAIL_BYTES, PAGE_BYTES, Placement, Plan, tail_schedule
from worldline.settings import ServiceSettings
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceServicer, add_AdmissionServiceServicer_to_server

pytestmark = pytest.mark.usefixtures("no_leaks")

chunk_sizes = st.integers(1, 1 << 14).map(lambda pages: pages * PAGE_BYTES)
rates = st.floats(1e6, 1e12)


def plan_of(chunk_bytes: int, tail: tuple[int, ...]) -> Plan:
    return Plan("tcp", chunk_bytes, 2, Placement.PIPELINED, 20, 20, 20, tail_bytes=tail)


@given(chunk_sizes, rates, rates)
def test_a_tail_is_a_plans(chunk_bytes: int, wire_Bps: float, verify_Bps: float) -> None:
    tail = tail_schedule(chunk_bytes, wire_Bps, verify_Bps)
    assert plan_of(chunk_bytes, tail).tail_bytes == tail
    assert all(size % PAGE_BYTES == 0 for size in tail)
    assert all(later < earlier for earlier, later in itertools.pairwise((chunk_bytes, *tail)))
    if wire_Bps >= verify_Bps:
        assert tail == ()
    elif chunk_bytes > MIN_TAIL_BYTES + PAGE_BYTES and wire_Bps < 0.9 * verify_Bps:
        assert tail[-1] <= max(MIN_TAIL_BYTES + 10 * PAGE_BYTES, chunk_bytes // 100)


def exposed_s(sizes: list[int], wire_Bps: float, verify_Bps: float) -> float:
    """Seconds from the last byte to the last check: chunks arrive one after another and are checked in order."""
    landed_s = checked_s = 0.0
    for size in sizes:
        landed_s += size / wire_Bps
        checked_s = max(checked_s, landed_s) + size / verify_Bps
    return checked_s - landed_s


@given(chunk_sizes, rates, st.floats(1.12, 1e3), st.integers(0, 200))
def test_only_the_last_chunk_is_exposed(chunk_bytes: int, wire_Bps: float, times: float, chunks: int) -> None:
    """Whatever the lane has left over: the schedule hides all of the verification but one small chunk's."""
    verify_Bps = wire_Bps * times
    tail = tail_schedule(chunk_bytes, wire_Bps, verify_Bps)
    assume(tail)
    region_bytes = chunk_bytes * (chunks + 1) + sum(tail)
    sizes = [chunk.size_bytes for chunk in plan_of(chunk_bytes, tail).chunks(region_bytes)]
    assert tuple(sizes[-len(tail) :]) == tail
    alone_s = tail[-1] / verify_Bps
    assert exposed_s(sizes, wire_Bps, verify_Bps) == pytest.approx(alone_s, rel=1e-3)
    equal = [chunk.size_bytes for chunk in plan_of(chunk_bytes, ()).chunks(region_bytes)]
    assert alone_s <= exposed_s(equal, wire_Bps, verify_Bps) * (1 + 1e-9) or equal[-1] < tail[-1]


@pytest.mark.parametrize(
    ("chunk_bytes", "wire_Bps", "verify_Bps"),
    [
        (4097, 1.0, 1.0),
        (0, 1.0, 1.0),
        (1 << 31, 1.0, 1.0),
        (4096, 0.0, 1.0),
        (4096, 1.0, 0.0),
        (4096, float("nan"), 1.0),
    ],
)
def test_what_has_no_tail_is_refused(chunk_bytes: int, wire_Bps: float, verify_Bps: float) -> None:
    with pytest.raises(BadRequest):
        tail_schedule(chunk_bytes, wire_Bps, verify_Bps)


def test_a_tail_that_cannot_end_stays_within_a_plan() -> None:
    assert len(tail_schedule(1 << 30, 0.999, 1.0)) == MAX_TAIL_CHUNKS


# --- what is told


def test_the_trace_tells_the_tail_that_was_executed() -> None:
    plan = plan_of(1 << 20, (1 << 18, 1 << 16))
    coding = Coding(5 << 19, 1, 2, 3, 4, 0, 200, 0.5, late_bytes=9, threads=2)
    outcome = Outcome((1,), 2, 0.5, 0.01, checked_bytes=100, checking_s=0.5, coding=coding)
    told = wire_attributes(plan, 5 << 20, outcome)
    assert (told["chunk.tail_bytes"], told["chunk.count"], told["chunk.retried"]) == ("262144,65536", 7, 2)
    assert (told["verify.Bps_a_thread"], told["verify.exposed_s"]) == (200.0, 0.01)
    assert (told["codec.late_pieces"], told["codec.raw_pieces"], told["codec.Bps_a_thread"]) == (4, 3, 400.0)
    assert (told["codec.late_bytes"], told["codec.threads"], told["codec.ratio"]) == (9, 2, 0.5)
    small = wire_attributes(plan, 1 << 18, Outcome((1,), 0, 0.5, 0.0))
    assert (small["chunk.tail_bytes"], small["chunk.count"]) == ("", 1)
    assert not [name for name in small if name.startswith(("codec.", "verify.Bps"))]


def test_the_lane_counts_what_it_took() -> None:
    region = bytearray(1 << 20)
    with memoryview(region) as view:
        checks = Checks(view, plan_of(1 << 18, ()).chunks(len(region)))
        for chunk in checks.chunks:
            checks.check(chunk)
        assert checks.checked_bytes == len(region)
        assert checks.busy_s > 0


def test_a_rate_is_measured_and_follows_moves() -> None:
    at_start = measured_verify_Bps()
    assert at_start > 0
    assert smoothed_Bps(at_start, LEAST_BYTES - 1, 1.0) == at_start
    assert smoothed_Bps(1e9, LEAST_BYTES, LEAST_BYTES / 2e9) == pytest.approx(1.3e9)


class Admission(AdmissionServiceServicer):
    """Keeps what a mover tells it."""

    def __init__(self) -> None:
        self.registration = pb.MoverRegistration()
        self.beats: list[pb.HeartbeatMoverRequest] = []

    def RegisterMover(
        self, request: pb.RegisterMoverRequest, context: grpc.ServicerContext
    ) -> pb.RegisterMoverResponse:
        self.registration = request.registration
        return pb.RegisterMoverResponse(term=1, heartbeat_s=0.05)

    def HeartbeatMover(
        self, request: pb.HeartbeatMoverRequest, context: grpc.ServicerContext
    ) -> pb.HeartbeatMoverResponse:
        self.beats.append(request)
        return pb.HeartbeatMoverResponse(term=1)


@pytest.fixture
def admission() -> Iterator[tuple[Admission, str]]:
    service = Admission()
    server = rpc.Server(ServiceSettings(), ["worldline.v1.AdmissionService"])
    add_AdmissionServiceServicer_to_server(service, server.grpc)
    yield service, server.start()
    server.stop(0)


def test_a_mover_tells_admission_what_its_lane_checks(admission: tuple[Admission, str], tmp_path: Path) -> None:
    service, address = admission
    mover = MoverProcess("mover-r", tmp_path, tmp_path / "log", admission=address, lane_threads=3)
    try:
        until("it has registered and beaten twice", lambda: len(service.beats) > 1)
        told = service.registration
        assert told.verify_bytes_per_s > 0
        assert told.verify_threads == 3
        assert set(PLACEMENTS) <= {Placement(item) for item in told.placements}
        assert list(told.codecs) == list(CODECS)
        assert service.beats[-1].verify_bytes_per_s > 0
    finally:
        assert mover.close() == 0

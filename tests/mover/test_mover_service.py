"""Two movers, each with an engine host: the whole path of a move, and every way it can be given up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mover_fakes import EPOCH, SESSION, FakeHost, MoverProcess, Pair, moved, plan, request, until

from mover.verification import PLACEMENTS
from worldline import rpc, wire
from worldline.errors import (
    BadRequest,
    Cancelled,
    DataLoss,
    Exhausted,
    NotAllowed,
    Owned,
    StaleFence,
    TimedOut,
    Unavailable,
    Unsupported,
    WorldlineError,
)
from worldline.move import Fault, FaultKind
from worldline.plan import CODECS, Placement
from worldline.receipt import require_match
from worldline.v1 import mover_service_pb2 as pb

pytestmark = pytest.mark.usefixtures("no_leaks")

Hosts = tuple[FakeHost, FakeHost]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two movers for this module; their data planes may be killed, they come back."""
    running = Pair(tmp_path_factory.mktemp("pair"), max_receives=2)
    yield running
    assert running.close() == [0, 0]


@pytest.fixture
def hosts(pair: Pair) -> Iterator[Hosts]:
    """A host at each mover; afterwards nothing is in flight and nothing is mapped."""
    until("both data planes are up", lambda: bool(pair.a.status().data_plane_pid and pair.b.status().data_plane_pid))
    with pair.hosts() as both:
        yield both
        until("both movers are idle", lambda: pair.a.idle() and pair.b.idle())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_move(pair: Pair, hosts: Hosts, placement: Placement, codec: str) -> None:
    source, destination = hosts
    chosen = plan(placement=placement, codec=codec, tail_bytes=(32 << 10, 4096))
    said = moved(pair.a, request(source, destination, pair.b.address, chosen))
    last = said[-1]
    assert destination.slot_bytes() == source.content
    require_match(
        wire.receipt_from(last.source_receipt),
        wire.receipt_from(last.destination_receipt),
        chosen.chunks(source.layout.region_bytes),
    )
    assert wire.manifest_from(last.manifest).epoch == EPOCH
    assert last.manifest.session_id == SESSION
    assert (last.source_receipt.host_id, last.destination_receipt.host_id) == ("host-a", "host-b")
    assert last.landed_bytes == last.total_bytes == len(source.content)
    stages = [message.stage for message in said]
    assert stages == sorted(stages, key=["reserve", "freeze", "wire", "verify", "verified"].index)
    assert min(last.stages.reserve_s, last.stages.freeze_s, last.stages.wire_s) > 0
    # The host vouches only after the mover has let go, and the source's session is frozen as late as can be.
    assert source.calls == ["RegisterState", "Freeze", "Attest.SOURCE"]
    assert destination.calls == ["Stage", "Attest.DESTINATION"]


def test_a_move_between_hosts_of_one_mover(pair: Pair, hosts: Hosts) -> None:
    source, _ = hosts
    other = FakeHost("host-c", pair.directories[0], len(source.content))
    try:
        last = moved(pair.a, request(source, other, pair.a.address, plan(transport="local")))[-1]
        assert other.slot_bytes() == source.content
        assert last.source_receipt.chunk_crcs == last.destination_receipt.chunk_crcs
    finally:
        other.close()


def test_local_between_two_movers_is_refused(pair: Pair, hosts: Hosts) -> None:
    source, destination = hosts
    with pytest.raises(WorldlineError) as error:
        moved(pair.a, request(source, destination, pair.b.address, plan(transport="local")))
    assert error.value.reason == "NOT_LOCAL"
    assert "Freeze" not in source.calls


def test_a_coded_move_of_zeros_costs_nothing_on_the_wire(pair: Pair, hosts: Hosts) -> None:
    source, destination = hosts
    source.fill(bytes(len(source.content)))
    last = moved(pair.a, request(source, destination, pair.b.address, plan(codec="zstd")))[-1]
    assert destination.slot_bytes() == source.content
    assert (last.wire_bytes, last.total_bytes) == (0, len(source.content))
    assert last.decode_bytes_per_s > 0


def test_a_raw_move_says_that_all_crossed_the_wire(pair: Pair, hosts: Hosts) -> None:
    last = moved(pair.a, request(*hosts, pair.b.address, plan()))[-1]
    assert last.wire_bytes == last.total_bytes
    assert (last.encode_bytes_per_s, last.decode_bytes_per_s) == (0, 0)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_flips_in_a_coded_move_are_sent_again(pair: Pair, hosts: Hosts, placement: Placement) -> None:
    source, destination = hosts
    source.fill(b"worldline" * (len(source.content) // 9) + bytes(len(source.content) % 9))
    faults = (Fault(FaultKind.FLIP, chunk=2), Fault(FaultKind.FLIP, chunk=15), Fault(FaultKind.DROP, chunk=9))
    chosen = plan(codec="zstd", placement=placement)
    last = moved(pair.a, request(source, destination, pair.b.address, chosen, faults))[-1]
    assert destination.slot_bytes() == source.content
    assert (last.retried_chunks, last.injected_faults) == (3, 3)


# --- faults on the wire


def test_a_flip_is_sent_again(pair: Pair, hosts: Hosts) -> None:
    source, destination = hosts
    faults = (Fault(FaultKind.FLIP, chunk=2), Fault(FaultKind.FLIP, chunk=5), Fault(FaultKind.DROP, chunk=9))
    last = moved(pair.a, request(source, destination, pair.b.address, plan(), faults))[-1]
    assert destination.slot_bytes() == source.content
    assert (last.retried_chunks, last.injected_faults) == (3, 3)


def test_a_flip_that_comes_back_is_data_loss(pair: Pair, hosts: Hosts) -> None:
    source, destination = hosts
    faults = (Fault(FaultKind.FLIP, chunk=3, times=0),)
    with pytest.raises(DataLoss) as error:
        moved(pair.a, request(source, destination, pair.b.address, plan(), faults))
    assert error.value.reason == "CHUNK_MISMATCH"
    assert error.value.numbers["chunk"] == "3"
    assert error.value.numbers["offset"] == str(3 * (64 << 10))
    assert error.value.numbers["source_crc"] != error.value.numbers["destination_crc"]
    assert "on the way or in the landing memory" in error.value.message
    assert not any(call.startswith("Attest") for call in (*source.calls, *destination.calls))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(FaultKind.DROP, "CHUNK_MISSING"), (FaultKind.TRUNCATE, "PEER_GONE"), (FaultKind.STALL, "NO_PROGRESS")],
)
def test_what_does_not_arrive_ends_the_move(pair: Pair, hosts: Hosts, kind: FaultKind, reason: str) -> None:
    source, destination = hosts
    faults = (Fault(kind, chunk=1, times=0, seconds=60),)
    with pytest.raises(WorldlineError) as error:
        moved(pair.a, request(source, destination, pair.b.address, plan(no_progress_s=1.0), faults))
    assert error.value.reason == reason


def test_a_delay_only_takes_longer(pair: Pair, hosts: Hosts) -> None:
    source, destination = hosts
    faults = (Fault(FaultKind.DELAY, chunk=1, seconds=0.2),)
    moved(pair.a, request(source, destination, pair.b.address, plan(), faults))
    assert destination.slot_bytes() == source.content


@pytest.mark.parametrize("step", ["reserve", "freeze", "verify"])
def test_a_held_move_says_so_and_goes_on(pair: Pair, hosts: Hosts, step: str) -> None:
    source, destination = hosts
    faults = (Fault(FaultKind.HOLD, step=step, seconds=0.9),)
    said = moved(pair.a, request(source, destination, pair.b.address, plan(no_progress_s=0.6), faults))
    assert f"hold:{step}" in [message.stage for message in said]
    assert destination.slot_bytes() == source.content


# --- peers that die or stop


def held_at_verify(pair: Pair, hosts: Hosts, **bounds: object) -> tuple[grpc.Call, threading.Thread, list[Exception]]:
    """A move that is held before its verification, and what it will raise."""
    raised: list[Exception] = []
    message = request(*hosts, pair.b.address, plan(**bounds), (Fault(FaultKind.HOLD, step="verify", seconds=30),))
    call = pair.a.stub.Move(message, timeout=40)
    held = threading.Event()

    def follow() -> None:
        try:
            with rpc.calling("mover"):
                for said in call:
                    if said.stage == "hold:verify":
                        held.set()
        except WorldlineError as error:
            raised.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert held.wait(20)
    return call, thread, raised


def stalled(pair: Pair, hosts: Hosts, **bounds: object) -> tuple[grpc.Call, threading.Thread, list[Exception]]:
    """A move in the middle of its wire stage."""
    raised: list[Exception] = []
    faults = (Fault(FaultKind.DELAY, chunk=8, seconds=30),)
    call = pair.a.stub.Move(request(*hosts, pair.b.address, plan(**bounds), faults), timeout=60)
    landing = threading.Event()

    def follow() -> None:
        try:
            with rpc.calling("mover"):
                for said in call:
                    if said.stage == "wire" and said.landed_bytes:
                        landing.set()
        except WorldlineError as error:
            raised.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert landing.wait(20)
    return call, thread, raised


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_data_plane_that_dies(pair: Pair, hosts: Hosts, which: str) -> None:
    _, thread, raised = stalled(pair, hosts, no_progress_s=20.0)
    mover = pair.a if which == "a" else pair.b
    starts = mover.status().data_plane_starts
    mover.signal_plane(signal.SIGKILL)
    thread.join(20)
    assert [error.reason for error in raised if isinstance(error, Unavailable)] in (
        [["DATA_PLANE_DIED"]] if which == "a" else [["DATA_PLANE_DIED"], ["PEER_GONE"]]
    )
    until("a new data plane is up", lambda: mover.status().data_plane_starts == starts + 1)
    until("the data path serves again", lambda: _serving(mover.channel))
    # And it works.
    moved(pair.a, request(*hosts, pair.b.address, plan()))
    assert hosts[1].slot_bytes() == hosts[0].content


@pytest.mark.parametrize(("which", "codec"), [("a", "raw"), ("b", "raw"), ("a", "zstd"), ("b", "zstd")])
def test_a_data_plane_that_stops(pair: Pair, hosts: Hosts, which: str, codec: str) -> None:
    """SIGSTOP with all connections open: given up within the bound, and the stopped process is replaced."""
    _, thread, raised = stalled(pair, hosts, no_progress_s=1.0, codec=codec)
    mover = pair.a if which == "a" else pair.b
    stopped = mover.signal_plane(signal.SIGSTOP)
    thread.join(20)
    assert [type(error) for error in raised] == [TimedOut]
    assert isinstance(raised[0], TimedOut)
    assert raised[0].reason == "NO_PROGRESS"
    until("the stopped data plane was replaced", lambda: mover.status().data_plane_pid not in (0, stopped))


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_mover_that_stops(pair: Pair, hosts: Hosts, which: str) -> None:
    """The control path: a stopped mover is noticed by the other one."""
    call, thread, raised = held_at_verify(pair, hosts, no_progress_s=1.0)
    mover, other = (pair.a, pair.b) if which == "a" else (pair.b, pair.a)
    mover.process.send_signal(signal.SIGSTOP)
    try:
        until("the other mover gave up", other.idle)
    finally:
        mover.process.send_signal(signal.SIGCONT)
        if which == "a":
            call.cancel()
    thread.join(20)
    assert raised
    if which == "b":
        assert isinstance(raised[0], TimedOut)
        assert raised[0].reason == "NO_PROGRESS"


def _serving(channel: grpc.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=rpc.DATAPATH), timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


# --- cancel, deadline, bounds


@pytest.mark.parametrize("codec", CODECS)
def test_cancel(pair: Pair, hosts: Hosts, codec: str) -> None:
    call, thread, raised = stalled(pair, hosts, no_progress_s=20.0, codec=codec)
    call.cancel()
    thread.join(20)
    assert [type(error) for error in raised] == [Cancelled]
    until("both movers let go", lambda: pair.a.idle() and pair.b.idle())
    assert not any(name.startswith("Attest") for name in (*hosts[0].calls, *hosts[1].calls))


def test_the_callers_deadline(pair: Pair, hosts: Hosts) -> None:
    faults = (Fault(FaultKind.DELAY, chunk=8, seconds=30),)
    with pytest.raises(TimedOut):
        moved(pair.a, request(*hosts, pair.b.address, plan(no_progress_s=20.0), faults), timeout_s=1.0)
    until("both movers let go", lambda: pair.a.idle() and pair.b.idle())


def test_the_plans_deadline_counts_from_the_freeze(pair: Pair, hosts: Hosts) -> None:
    faults = (Fault(FaultKind.DELAY, chunk=8, seconds=30),)
    with pytest.raises(TimedOut) as error:
        moved(pair.a, request(*hosts, pair.b.address, plan(no_progress_s=20.0, deadline_s=0.7), faults))
    assert error.value.reason == "DEADLINE_EXCEEDED"
    assert "0.7 s from the freeze" in error.value.message


def test_a_block_boundary_that_does_not_come(pair: Pair, hosts: Hosts) -> None:
    gate = threading.Event()
    hosts[0].before["Freeze"] = lambda: (gate.wait(20), None)[1]
    with pytest.raises(TimedOut):
        moved(pair.a, request(*hosts, pair.b.address, plan(max_freeze_s=0.5)))
    gate.set()
    assert "Attest.SOURCE" not in hosts[0].calls


def test_a_slow_boundary_is_no_silence(pair: Pair, hosts: Hosts) -> None:
    """Both movers stay in touch while the block boundary is waited for, longer than the no-progress bound."""
    gate = threading.Event()
    hosts[0].before["Freeze"] = lambda: (gate.wait(0.9), None)[1]
    moved(pair.a, request(*hosts, pair.b.address, plan(no_progress_s=0.6)))
    assert hosts[1].slot_bytes() == hosts[0].content


@pytest.mark.parametrize(
    ("at", "verb"), [(0, "RegisterState"), (0, "Freeze"), (0, "Attest.SOURCE"), (1, "Stage"), (1, "Attest.DESTINATION")]
)
def test_a_hosts_refusal_is_the_moves(pair: Pair, hosts: Hosts, at: int, verb: str) -> None:
    hosts[at].refuse[verb] = StaleFence(f"{verb} is refused", numbers={"epoch": 7})
    with pytest.raises(StaleFence) as error:
        moved(pair.a, request(*hosts, pair.b.address, plan()))
    assert error.value.message == f"{verb} is refused"


def test_a_dead_destination_mover(pair: Pair, hosts: Hosts) -> None:
    with pytest.raises(Unavailable) as error:
        moved(pair.a, request(*hosts, "127.0.0.1:9", plan()))
    assert error.value.retry_after_s
    assert "Freeze" not in hosts[0].calls


def test_the_same_move_twice(pair: Pair, hosts: Hosts) -> None:
    call, thread, _ = stalled(pair, hosts, no_progress_s=20.0)
    move_id = pair.a.status().moves[0]
    with pytest.raises(Owned) as error:
        moved(pair.a, request(*hosts, pair.b.address, plan(), move_id=move_id))
    assert error.value.resource == ("move", move_id)
    call.cancel()
    thread.join(20)


def test_too_many_at_once(pair: Pair, hosts: Hosts) -> None:
    first = stalled(pair, hosts, no_progress_s=20.0)
    second = stalled(pair, hosts, no_progress_s=20.0)
    with pytest.raises(Exhausted) as error:
        moved(pair.a, request(*hosts, pair.b.address, plan()))
    assert error.value.retry_after_s
    for call, thread, _ in (first, second):
        call.cancel()
        thread.join(20)


def test_a_placement_that_is_not_there(pair: Pair, hosts: Hosts) -> None:
    with pytest.raises(Unsupported, match="DEVICE"):
        moved(pair.a, request(*hosts, pair.b.address, plan(placement=Placement.DEVICE)))
    assert hosts[0].calls == []


def test_a_transport_that_is_not_there(pair: Pair, hosts: Hosts) -> None:
    with pytest.raises(Unsupported, match="pigeon"):
        moved(pair.a, request(*hosts, pair.b.address, plan(transport="pigeon")))


# --- what does not belong


def test_a_control_stream_out_of_order(pair: Pair) -> None:
    for first in (
        pb.ReceiveRequest(start=pb.ReceiveStart(remaining_s=1)),
        pb.ReceiveRequest(),
        pb.ReceiveRequest(open=pb.ReceiveOpen()),
    ):
        with pytest.raises(BadRequest), rpc.calling("mover"):
            list(pair.b.stub.Receive(iter([first]), timeout=10))


def test_an_empty_request(pair: Pair) -> None:
    with pytest.raises(BadRequest):
        moved(pair.a, pb.MoveRequest())


def test_status(pair: Pair, hosts: Hosts) -> None:
    status = pair.a.status()
    assert (status.mover_id, list(status.transports), status.fault_injection) == ("mover-a", ["tcp", "local"], True)
    before = status.moved_bytes
    moved(pair.a, request(*hosts, pair.b.address, plan()))
    after = pair.a.status()
    assert after.moved_bytes - before == len(hosts[0].content)
    assert (list(after.moves), after.mapped_regions) == ([], 0)


def test_faults_are_refused_where_they_are_off(tmp_path: Path, pair: Pair, hosts: Hosts) -> None:
    quiet = MoverProcess("mover-q", tmp_path, tmp_path / "q.log", fault_injection=False)
    try:
        with pytest.raises(NotAllowed) as error:
            moved(quiet, request(*hosts, pair.b.address, plan(), (Fault(FaultKind.FLIP),)))
        assert error.value.reason == "FAULT_INJECTION_OFF"
    finally:
        assert quiet.close() == 0


@pytest.mark.slow
def test_many_moves_leave_nothing(pair: Pair, hosts: Hosts) -> None:
    """Descriptors, threads and memory of all four processes stay as they are; every third move fails."""

    def held() -> list[tuple[int, int]]:
        until("both movers are idle", lambda: pair.a.idle() and pair.b.idle())
        pids = [pid for mover in (pair.a, pair.b) for pid in (mover.process.pid, mover.status().data_plane_pid)]
        return [(psutil.Process(pid).num_fds(), psutil.Process(pid).num_threads()) for pid in pids]

    def some(count: int) -> None:
        for number in range(count):
            faults = (Fault(FaultKind.FLIP, chunk=number % 16, times=int(number % 3 > 0)),)
            chosen = plan(codec=CODECS[number % 2], placement=PLACEMENTS[number % len(PLACEMENTS)])
            if number % 3:
                moved(pair.a, request(*hosts, pair.b.address, chosen, faults))
                assert hosts[1].slot_bytes() == hosts[0].content
            else:
                with pytest.raises(DataLoss):
                    moved(pair.a, request(*hosts, pair.b.address, chosen, faults))

    some(30)  # gRPC's own pools are full after a few
    before = held()
    some(90)
    until(f"what is held is as before: {before}", lambda: all(map(_at_most, held(), before)))


def _at_most(now: tuple[int, int], before: tuple[int, int]) -> bool:
    return now[0] <= before[0] + 2 and now[1] <= before[1] + 4


@pytest.mark.slow
def test_a_mover_ends_at_once_in_the_middle_of_a_move(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = Pair(tmp_path_factory.mktemp("own"))
    try:
        with own.hosts() as hosts:
            _, thread, raised = stalled(own, hosts, no_progress_s=20.0)
            own.a.process.terminate()
            thread.join(20)
            assert [error.reason for error in raised if isinstance(error, Unavailable)] == ["DRAINING"]
            assert own.a.close() == 0
            until("the other mover let go", own.b.idle)
    finally:
        own.a.process.kill()
        assert own.b.close() == 0

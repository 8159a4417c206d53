"""The fleet of compose.yaml in real containers, used from outside as a player and an operator use it.

Jaeger is replaced by our own OTLP receiver, so that no image is pulled: this shows that the services export one trace
a move by OTLP, and nothing about Jaeger. `COMPOSE_LANE=off` turns the lane off on purpose.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import grpc
import pytest
from compose_lane import Fleet, LaneError, engine
from gateway import Gateway

from worldline.v1 import admission_service_pb2 as admission_pb2
from worldline.v1 import admission_service_pb2_grpc as admission_grpc
from worldline.v1 import engine_host_service_pb2 as host_pb2
from worldline.v1 import move_pb2

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

ADMISSION = "localhost:7400"
ADDRESSES = {"host-a": "localhost:7411", "host-b": "localhost:7412"}
SERVICES = ("admission", "mover-a", "mover-b", "host-a", "host-b")
CLOSED = (move_pb2.MOVE_STATE_REFUSED, move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED, move_pb2.MOVE_STATE_LOST)
# Spans that one trace of a move has at least, by service.
SPANS = {
    "worldline-admission": {"admission.decide", "release", "commit", "free"},
    "worldline-mover": {"mover.move", "reserve", "freeze", "wire", "verify", "mover.receive"},
    "worldline-enginehost": {"/worldline.v1.EngineHostService/Freeze", "/worldline.v1.EngineHostService/Commit"},
}
T = TypeVar("T")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    if os.environ.get("COMPOSE_LANE") == "off":
        pytest.skip("COMPOSE_LANE=off: the compose lane is off on purpose")
    try:
        with engine() as env:
            made = Fleet(env)
            with made.up():
                yield made
    except LaneError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def admission(fleet: Fleet) -> Iterator[admission_grpc.AdmissionServiceStub]:
    with grpc.insecure_channel(ADMISSION) as channel:
        stub = admission_grpc.AdmissionServiceStub(channel)
        _until("both hosts ready", lambda: _all_ready(stub))
        yield stub


def _until(what: str, ask: Callable[[], T | None], limit_s: float = 30) -> T:
    """The first answer that is not None, asked for again and again."""
    end = time.monotonic() + limit_s
    while (answer := ask()) is None:
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.1)
    return answer


def _all_ready(admission: admission_grpc.AdmissionServiceStub) -> bool | None:
    """True once every engine host may be a destination."""
    hosts = admission.ListEngineHosts(admission_pb2.ListEngineHostsRequest(), timeout=5).hosts
    return True if sum(host.ready for host in hosts) == len(ADDRESSES) else None


def _action(index: int, size: int) -> bytes:
    return bytes((7 * index + byte) % 256 for byte in range(size or 4))


def _place(seed: int) -> Gateway:
    return Gateway(ADMISSION, "window-rewrite", "tiny", seed)


def _play(gateway: Gateway, blocks: int) -> list[host_pb2.PlayBlock]:
    return list(gateway.blocks(blocks, _action))


def _request(
    admission: admission_grpc.AdmissionServiceStub, gateway: Gateway, faults: list[move_pb2.Fault] | None = None
) -> move_pb2.Move:
    """Asks for a move to the host where the session is not."""
    (other,) = (host for host, address in ADDRESSES.items() if address != gateway.address)
    request = admission_pb2.RequestMoveRequest(
        request_id=str(uuid.uuid4()), session_id=gateway.session_id, destination_host_id=other, faults=faults or []
    )
    return admission.RequestMove(request, timeout=10).move


def _closed(admission: admission_grpc.AdmissionServiceStub, move_id: str) -> move_pb2.Move | None:
    move = admission.GetMove(admission_pb2.GetMoveRequest(move_id=move_id), timeout=10).move
    return move if move.state in CLOSED else None


def _move_while_playing(
    admission: admission_grpc.AdmissionServiceStub, gateway: Gateway, faults: list[move_pb2.Fault] | None = None
) -> tuple[move_pb2.Move, list[host_pb2.PlayBlock]]:
    """Asks for a move, plays until it is closed and for three more blocks; the move and the blocks."""
    played = _play(gateway, 3)
    move = _request(admission, gateway, faults)
    assert move.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, move
    end = time.monotonic() + 60
    while (closed := _closed(admission, move.move_id)) is None:
        assert time.monotonic() < end, f"the move is not closed after 60 s: {move.move_id}"
        played += _play(gateway, 1)
    played += _play(gateway, 3)
    return closed, played


def _readouts(blocks: list[host_pb2.PlayBlock]) -> list[bytes]:
    return [block.readout for block in blocks]


def _trace(trace_id: str) -> dict[str, set[str]] | None:
    """Span names by service of one trace, once `SPANS` are among them."""
    try:
        with urllib.request.urlopen(f"http://localhost:16686/api/traces/{trace_id}", timeout=5) as answer:
            trace = json.load(answer)["data"][0]
    except urllib.error.HTTPError as error:
        error.close()
        return None
    names: dict[str, set[str]] = {process["serviceName"]: set() for process in trace["processes"].values()}
    for span in trace["spans"]:
        names[trace["processes"][span["processID"]]["serviceName"]].add(span["operationName"])
    return names if all(wanted <= names.get(service, set()) for service, wanted in SPANS.items()) else None


def test_a_session_moves_there_and_back_while_it_plays(admission: admission_grpc.AdmissionServiceStub) -> None:
    moved, still = _place(7), _place(7)
    start = moved.address
    assert start in ADDRESSES.values()
    played: list[host_pb2.PlayBlock] = []
    for times in (1, 2):
        before = moved.address
        move, blocks = _move_while_playing(admission, moved)
        played += blocks
        assert move.state == move_pb2.MOVE_STATE_MOVED, move
        assert move.source_receipt.state_crc == move.destination_receipt.state_crc
        assert list(move.source_receipt.chunk_crcs) == list(move.destination_receipt.chunk_crcs)
        assert moved.address != before, "the player was not told the new public address"
        assert blocks[-1].epoch == blocks[0].epoch + 1, f"move {times} did not raise the epoch by one"
    assert moved.address == start
    assert _readouts(played) == _readouts(_play(still, len(played)))
    moved.close()
    still.close()


def test_one_trace_spans_three_services(admission: admission_grpc.AdmissionServiceStub) -> None:
    gateway = _place(8)
    move, _ = _move_while_playing(admission, gateway)
    gateway.close()
    assert move.trace_id
    _until("one trace over three services", lambda: _trace(move.trace_id))


def test_a_corrupted_copy_is_never_installed(admission: admission_grpc.AdmissionServiceStub) -> None:
    gateway, still = _place(9), _place(9)
    home = gateway.address
    flip = move_pb2.Fault(kind=move_pb2.FAULT_KIND_FLIP, chunk=0)
    move, played = _move_while_playing(admission, gateway, [flip])
    assert move.state == move_pb2.MOVE_STATE_ABORTED, move
    assert gateway.address == home
    assert {block.epoch for block in played} == {played[0].epoch}
    assert _readouts(played) == _readouts(_play(still, len(played)))
    gateway.close()
    still.close()


def test_admission_restarts_and_still_knows_the_session(
    fleet: Fleet, admission: admission_grpc.AdmissionServiceStub
) -> None:
    gateway, still = _place(10), _place(10)
    move, played = _move_while_playing(admission, gateway)
    assert move.state == move_pb2.MOVE_STATE_MOVED, move
    fleet.compose("restart", "admission")

    def located() -> str | None:
        request = admission_pb2.LocateSessionRequest(session_id=gateway.session_id)
        try:
            return admission.LocateSession(request, timeout=5, wait_for_ready=True).public_address
        except grpc.RpcError as error:
            if cast("grpc.Call", error).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            raise

    assert _until("LocateSession after the restart", located) == gateway.address
    assert _closed(admission, move.move_id) is not None, "the journal has lost the move"

    _until("both hosts ready again", lambda: _all_ready(admission))
    again, blocks = _move_while_playing(admission, gateway)
    assert again.state == move_pb2.MOVE_STATE_MOVED, again
    played += blocks
    assert _readouts(played) == _readouts(_play(still, len(played)))
    gateway.close()
    still.close()


def test_admission_has_what_a_journal_on_postgresql_needs(fleet: Fleet) -> None:
    """No server is there: the driver in its image has tried."""
    ask = "postgresql+psycopg://user@127.0.0.1:9/none"
    command = f"WORLDLINE_LISTEN=127.0.0.1:0 worldline-admission --journal {ask} 2>&1 || echo status $?"
    said = fleet.compose("exec", "-T", "admission", "sh", "-c", command)
    assert 'connection to server at \\"127.0.0.1\\", port 9 failed' in said, said
    assert said.split()[-2:] == ["status", "2"], said


def test_containers_are_hardened_and_stop_cleanly(fleet: Fleet) -> None:
    probe = "import os; print(os.getuid(), os.access('/', os.W_OK), os.access('/usr', os.W_OK))"
    for service in SERVICES:
        assert fleet.compose("exec", "-T", service, "python", "-c", probe).split() == ["10001", "False", "False"]
    refused = fleet.compose(
        "exec", "-T", "mover-a", "python", "-c", "import importlib.util as u; print(u.find_spec('torch'))"
    )
    assert refused.strip() == "None", "the light image has torch"
    fleet.compose("stop")
    for service in SERVICES:
        container = fleet.compose("ps", "--all", "--quiet", service).strip()
        state = json.loads(fleet.docker("inspect", "--format", "{{json .State}}", container))
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), (service, state)

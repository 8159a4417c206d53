"""The process: its ready line, its settings, its end, and a real SIGKILL in the middle of a move."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from admission_cluster import SESSION
from admission_fakes import LIVE, FakeHost, FakeMover, until

from admission.settings import AdmissionSettings
from worldline import errors, rpc
from worldline.settings import load
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc
from worldline.v1.move_pb2 import FAULT_KIND_HOLD, MOVE_STATE_ABORTED, MOVE_STATE_MOVED, Fault

REQUEST_ID = "6c1a2b3c-0000-4000-8000-000000000001"


@contextmanager
def process(journal: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    command = [sys.executable, "-m", "admission", "--journal", str(journal), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started, json.loads(started.stdout.readline() or "{}")
        finally:
            started.kill()


def test_it_says_that_it_is_ready_and_ends_cleanly(tmp_path: Path) -> None:
    with process(tmp_path / "j.db", "--exit-with-parent", "--heartbeat-s", "0.25") as (started, ready):
        assert ready == {
            "ready": True,
            "service": "admission",
            "id": "admission",
            "address": ready["address"],
            "term": 1,
        }
        with rpc.channel(str(ready["address"])) as channel:
            mover = pb.MoverRegistration(mover_id="m", address="127.0.0.1:1")
            answer = pb_grpc.AdmissionServiceStub(channel).RegisterMover(pb.RegisterMoverRequest(registration=mover))
        assert (answer.term, answer.heartbeat_s) == (1, 0.25)
        started.send_signal(signal.SIGTERM)
        _, logs = started.communicate(timeout=10)
        assert started.returncode == 0
        lines = [json.loads(line) for line in logs.splitlines()]
        assert lines[0]["settings"]["heartbeat_s"] == "0.25"
        assert all(line["service"] == "admission" for line in lines)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--receiver-cap", "0"), "receiver_cap"),
        (("--listen", "nonsense"), "'nonsense' is not host:port"),
        (("--journal", "/nonexistent/a.db"), "its folder must exist"),
        (("--heartbeat-s", "60"), "silent_s 3 must be over twice heartbeat_s 60"),
    ],
)
def test_wrong_settings_refuse_to_start(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    with process(tmp_path / "j.db", *arguments) as (started, ready):
        _, logs = started.communicate(timeout=10)
        assert (started.returncode, ready) == (2, {})
        assert complaint in logs
        assert "Traceback" not in logs


def test_a_port_that_is_taken_refuses_to_start(tmp_path: Path) -> None:
    with process(tmp_path / "a.db") as (_, first):
        with process(tmp_path / "b.db", "--listen", str(first["address"])) as (second, ready):
            _, logs = second.communicate(timeout=10)
            assert (second.returncode, ready) == (2, {})
            assert f"cannot listen on {first['address']}" in logs
            assert "Traceback" not in logs


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"heartbeat_s": 1.5, "silent_s": 3.0}, "silent_s 3 must be over twice heartbeat_s 1.5"),
        ({"max_watchers": 256, "rpc_threads": 4}, "max_watchers 256 must be under half of rpc_threads 4"),
        ({"no_progress_s": 600, "move_deadline_s": 1}, "no_progress_s 600 must not be over move_deadline_s 1"),
        ({"forget_s": 2, "silent_s": 3}, "forget_s 2 must not be under silent_s 3"),
        ({"chunk_bytes": 8 << 20}, "chunk_bytes 8388608 must not be over large_chunk_bytes 4194304"),
        ({"chunk_bytes": 5000}, "chunk_bytes"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        load(AdmissionSettings, **values)
    assert complaint in caught.value.message


def test_a_held_journal_refuses_to_start(tmp_path: Path) -> None:
    with process(tmp_path / "j.db"), process(tmp_path / "j.db") as (second, ready):
        _, logs = second.communicate(timeout=10)
        assert (second.returncode, ready) == (2, {})
        assert "held by another admission process" in logs


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "admission", "--journal", str(tmp_path / "j.db"), "--exit-with-parent"]
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen({command!r}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()

    def ended() -> bool:
        try:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        return state == "Z"

    until("the child has ended", ended)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("commit", MOVE_STATE_ABORTED),
        ("release", MOVE_STATE_MOVED),
        ("take", MOVE_STATE_MOVED),
        ("free", MOVE_STATE_MOVED),
    ],
)
def test_a_killed_admission_goes_on(tmp_path: Path, step: str, state: int) -> None:
    hosts: dict[str, FakeHost] = {}
    mover = FakeMover("mover-a", hosts)
    hosts.update({name: FakeHost(name, "mover-a") for name in ("host-a", "host-b")})
    hosts["host-a"].hold_session(SESSION)
    arguments = ("--fault-injection", "true", "--silent-s", "60")
    fault = Fault(kind=FAULT_KIND_HOLD, step=step, seconds=60)
    request = pb.RequestMoveRequest(
        request_id=REQUEST_ID, session_id=SESSION, destination_host_id="host-b", faults=[fault]
    )
    with process(tmp_path / "j.db", *arguments) as (started, ready), join(ready, hosts, mover) as stub:
        move_id = stub.RequestMove(request).move.move_id
        ask = pb.GetMoveRequest(move_id=move_id)
        until("held", lambda: stub.GetMove(ask).move.stage == f"hold:{step}")
        started.kill()
        started.wait()
    with process(tmp_path / "j.db", *arguments) as (started, ready), join(ready, hosts, mover) as stub:
        until("closed", lambda: stub.GetMove(ask).move.state == state)
        assert stub.RequestMove(request).move.move_id == move_id
        where = stub.LocateSession(pb.LocateSessionRequest(session_id=SESSION))
        home = "host-a" if state == MOVE_STATE_ABORTED else "host-b"
        assert where.host_id == home
        owners = [
            name for name, host in hosts.items() if SESSION in host.sessions and host.sessions[SESSION].state == LIVE
        ]
        assert owners == [home]
    for host in hosts.values():
        host.stop()
    mover.server.stop(0)


@contextmanager
def join(
    ready: dict[str, object], hosts: dict[str, FakeHost], mover: FakeMover
) -> Iterator[pb_grpc.AdmissionServiceStub]:
    """Everybody registers."""
    with rpc.channel(str(ready["address"])) as channel:
        stub = pb_grpc.AdmissionServiceStub(channel)
        stub.RegisterMover(pb.RegisterMoverRequest(registration=mover.registration()))
        for host in hosts.values():
            stub.RegisterEngineHost(
                pb.RegisterEngineHostRequest(registration=host.registration(), status=host.status())
            )
        yield stub

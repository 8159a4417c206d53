"""The small parts: the stop, the watch, messages, flights, regions, settings."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mover.flights import Flights
from mover.messages import Pipe, error_from, error_to, plan_from, plan_to, terms_from, terms_to
from mover.regions import fetched
from mover.settings import MoverSettings
from mover.stop import Stop, Watch
from mover.streaming import Outbox
from worldline import errors
from worldline.errors import (
    BadRequest,
    Cancelled,
    DataLoss,
    Exhausted,
    Internal,
    NotAllowed,
    Owned,
    TimedOut,
    Unavailable,
    WorldlineError,
)
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.settings import load
from worldline.transport import Terms

pytestmark = pytest.mark.usefixtures("no_leaks")


# --- stop and watch


def test_the_first_reason_wins_and_wakes_everybody() -> None:
    stop = Stop()
    woken: list[int] = []

    def wait() -> None:
        with stop.waking(lambda: woken.append(1)):
            stop.tell(Cancelled("first"))
            stop.tell(DataLoss("second"))
            raise Unavailable("what the wait raised because it was woken")

    with pytest.raises(Cancelled, match="first"):
        wait()
    assert woken == [1]
    with pytest.raises(Cancelled, match="first"):
        stop.sleep(60)
    with pytest.raises(Cancelled, match="first"), stop.waking(lambda: None):
        raise AssertionError("nothing is begun after the end")


def test_a_silence_is_told() -> None:
    stop = Stop()
    watch = Watch(stop)
    watch.expect("peer", 0.1)
    with pytest.raises(TimedOut) as error:
        stop.sleep(20)
    assert (error.value.reason, error.value.numbers["where"]) == ("NO_PROGRESS", "peer")
    watch.close()


def test_who_is_heard_or_forgotten_is_not_silent() -> None:
    stop = Stop()
    watch = Watch(stop)
    watch.expect("peer", 5.0)
    with watch.during("child", 0.05):
        pass
    for _ in range(5):
        watch.heard("peer")
        stop.sleep(0.03)
    watch.heard("nobody")
    assert not stop.told
    watch.close()


def test_the_deadline_is_told() -> None:
    stop = Stop()
    watch = Watch(stop)
    watch.end_by(time.monotonic() + 0.05, lambda: TimedOut("late", reason="DEADLINE_EXCEEDED"))
    with pytest.raises(TimedOut, match="late"):
        stop.sleep(20)
    watch.close()


# --- messages


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    ours, theirs = socket.socketpair()
    both = Pipe(ours), Pipe(theirs)
    yield both
    for pipe in both:
        pipe.close()


def test_messages_and_descriptors_arrive_in_order(pipes: tuple[Pipe, Pipe]) -> None:
    descriptor = os.memfd_create("worldline-test")
    os.pwrite(descriptor, b"here", 0)
    pipes[0].send({"n": 1})
    pipes[0].send({"n": 2}, descriptor)
    pipes[0].send({"n": 3, "crcs": list(range(100_000))[:10]})
    os.close(descriptor)
    assert pipes[1].receive() == ({"n": 1}, None)
    message, came = pipes[1].receive()
    assert message == {"n": 2}
    assert came is not None
    assert os.pread(came, 4, 0) == b"here"
    os.close(came)
    assert pipes[1].receive()[0]["n"] == 3


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00", b""])
def test_what_is_no_message_ends_the_pipe(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    pipe = Pipe(ours)
    theirs.sendall(data)
    theirs.close()
    with pytest.raises(EOFError):
        pipe.receive()
    pipe.close()


_KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WorldlineError)]


@given(
    kind=st.sampled_from(_KINDS),
    message=st.text(max_size=50),
    numbers=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.floats(allow_nan=False)),
    retry_after_s=st.none() | st.floats(0, 100),
)
def test_errors_survive(
    kind: type[WorldlineError], message: str, numbers: dict[str, str | int | float], retry_after_s: float | None
) -> None:
    error = kind(message, reason="SOME_REASON", numbers=numbers, violations={"a": "b"}, retry_after_s=retry_after_s)
    back = error_from(json.loads(json.dumps(error_to(error))))
    assert type(back) is kind
    assert vars(back) == {**vars(error), "resource": None}


def test_a_foreign_error_becomes_internal() -> None:
    assert isinstance(error_from(error_to(ZeroDivisionError("oops"))), Internal)


@given(
    chunk_pages=st.integers(1, 1000),
    streams=st.integers(1, 16),
    placement=st.sampled_from(Placement),
    tail_bytes=st.lists(st.integers(1, 4096), max_size=5).map(tuple),
    seconds=st.floats(0.01, 1000),
)
def test_plans_and_terms_survive(
    chunk_pages: int, streams: int, placement: Placement, tail_bytes: tuple[int, ...], seconds: float
) -> None:
    plan = Plan("tcp", chunk_pages * 4096, streams, placement, seconds, seconds, seconds, tail_bytes=tail_bytes)
    assert plan_from(json.loads(json.dumps(plan_to(plan)))).digest == plan.digest
    terms = Terms("0f4e1d6a-50c2-4d7a-8a87-3f0d3a6a9b10", new_token(), streams, seconds, "00-ab-cd-01")
    assert terms_from(json.loads(json.dumps(terms_to(terms)))) == terms


# --- streams, flights


def test_progress_is_replaced_and_messages_are_not() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.progress("old")
    outbox.progress("newer")
    outbox.put("first")
    outbox.put("second")
    outbox.progress("newest")
    outbox.end()
    assert list(outbox.stream(1.0, lambda: "beat")) == ["first", "second", "newest"]


def test_a_quiet_stream_beats() -> None:
    outbox: Outbox[str] = Outbox()
    stream = outbox.stream(0.01, lambda: "beat")
    assert [next(stream), next(stream)] == ["beat", "beat"]
    outbox.put("word")
    assert next(stream) == "word"


def test_flights_are_single_bounded_and_drained() -> None:
    flights = Flights(1)
    stop = Stop()
    with flights.out("a", stop), flights.incoming("a", stop):
        assert flights.ids() == ["a"]
        with pytest.raises(Owned), flights.out("a", Stop()):
            pass
        with pytest.raises(Exhausted), flights.incoming("b", Stop()):
            pass
        drained = threading.Thread(target=flights.drain, args=(20.0,))
        drained.start()
        with pytest.raises(Unavailable):
            stop.sleep(20)
        with pytest.raises(Unavailable), flights.out("c", Stop()):
            pass
    drained.join()
    assert flights.ids() == []


# --- regions


def serve_once(path: Path, answer: bytes | None, descriptor: int | None) -> threading.Thread:
    """A host's socket that answers one ticket; `answer` None closes without a word."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        with server, server.accept()[0] as connected:
            connected.recv(32)
            if answer is not None and descriptor is not None:
                socket.send_fds(connected, [answer], [descriptor])
            elif answer is not None:
                connected.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_ticket_brings_a_descriptor(tmp_path: Path) -> None:
    descriptor = os.memfd_create("worldline-test")
    os.pwrite(descriptor, b"region", 0)
    thread = serve_once(tmp_path / "host-a.sock", b"\x01", descriptor)
    with fetched(tmp_path, "host-a", bytes(32), Stop(), 5.0) as came:
        assert os.pread(came, 6, 0) == b"region"
        assert not os.get_inheritable(came)
    thread.join()
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(came, 1, 0)


@pytest.mark.parametrize("answer", [b"\x00", None])
def test_a_refused_ticket(tmp_path: Path, answer: bytes | None) -> None:
    thread = serve_once(tmp_path / "host-a.sock", answer, None)
    with pytest.raises(NotAllowed), fetched(tmp_path, "host-a", bytes(32), Stop(), 5.0):
        pass
    thread.join()


def test_a_move_that_must_end_is_not_called_a_refused_ticket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "host-a.sock"))
        server.listen()
        stop = Stop()

        def tell() -> None:
            with server.accept()[0] as connected:
                connected.recv(32)
                stop.tell(Cancelled("enough"))

        thread = threading.Thread(target=tell)
        thread.start()
        with pytest.raises(Cancelled, match="enough"), fetched(tmp_path, "host-a", bytes(32), stop, 20.0):
            pass
        thread.join()


def test_a_host_without_a_socket(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as error, fetched(tmp_path, "host-a", bytes(32), Stop(), 5.0):
        pass
    assert error.value.reason == "REGION_UNREACHABLE"


def test_a_host_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "host-a.sock"))
        server.listen()
        with pytest.raises(Unavailable), fetched(tmp_path, "host-a", bytes(32), Stop(), 0.1):
            pass


# --- settings


@pytest.mark.parametrize(
    "values",
    [
        {"mover_id": "Not An Id"},
        {"transports": "tcp,pigeon"},
        {"transports": ""},
        {"data_listen": "nowhere"},
        {"data_listen": "0.0.0.0:0"},
        {"max_receives": 0},
        {"lane_threads": 0},
        {"congestion": "cubic; rm"},
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, values: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        load(MoverSettings, **{"mover_id": "mover-a", "regions_dir": tmp_path, **values})


def test_a_wrong_command_line_ends_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mover", "--mover-id", "Not An Id", "--regions-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "mover_id" in done.stderr
    assert done.stdout == ""

"""What a process does while it does not lead, and what it is told of its journal: no server is needed for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from admission_cluster import Cluster
from admission_fakes import until

from admission.journal import Journal
from admission.journal_database import PostgresUrl
from admission.leadership import not_leader
from admission.settings import AdmissionSettings
from admission.workers import Workers
from worldline import errors, rpc
from worldline.settings import load, shown
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.move_pb2 import FAULT_KIND_HOLD, MOVE_STATE_MOVED, MOVE_STATE_OPEN, Fault

URL = "postgresql+psycopg://worldline:hunter2@db.internal/journal"


def test_a_url_is_a_servers_and_anything_else_a_files(tmp_path: Path) -> None:
    on_server = load(AdmissionSettings, journal=URL)
    assert isinstance(on_server.journal, PostgresUrl)
    assert load(AdmissionSettings, journal=str(tmp_path / "j.db")).journal == tmp_path / "j.db"
    assert load(AdmissionSettings).journal == Path("admission.db")


def test_the_password_of_a_journal_is_shown_nowhere() -> None:
    settings = load(AdmissionSettings, journal=URL)
    for text in (str(settings), repr(settings), str(shown(settings)), repr(settings.journal), f"{settings.journal}"):
        assert "hunter2" not in text
    assert shown(settings)["journal"] == "postgresql+psycopg://worldline:***@db.internal/journal"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://root:hunter2@db/journal",
        "postgresql://root:hunter2@db/journal",
        "postgresql+psycopg://root:hunter2@db",
        "postgresql+psycopg://root:hunter2@db:port/journal",
    ],
)
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(errors.BadRequest, match=r"postgresql\+psycopg://user@host/database") as caught:
        load(AdmissionSettings, journal=url)
    assert "hunter2" not in str(caught.value)


def refused(cluster: Cluster) -> errors.WorldlineError:
    with pytest.raises(errors.Unavailable) as caught, rpc.calling("admission"):
        cluster.locate()
    return caught.value


def test_behind_a_closed_gate_nothing_is_answered(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.admission._gate.close()
    assert refused(cluster).reason == "NOT_LEADER"
    with pytest.raises(errors.Unavailable), rpc.calling("admission"):
        cluster.move()
    assert cluster.admission.journal.open_moves() == []


def test_what_was_begun_under_a_term_is_not_answered_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.with_session()
    journal = cluster.admission.journal
    session = journal.session

    def ends(session_id: str) -> object:
        journal.tenure.over.set()
        return session(session_id)

    monkeypatch.setattr(journal, "session", ends)
    assert refused(cluster).reason == "NOT_LEADER"


def test_a_watcher_is_told_when_the_term_ends(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.hold_mover()
    asked = cluster.move()
    watching = cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=asked.move_id), timeout=10)
    assert next(watching).move.state == MOVE_STATE_OPEN
    cluster.admission.journal.tenure.over.set()
    gate = cluster.gate()
    gate.set()
    cluster.movers["mover-a"].gate = gate
    with pytest.raises(grpc.RpcError) as caught:
        list(watching)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", ["release", "take", "free"])
def test_a_move_asks_nothing_once_the_term_is_over(cluster: Cluster, step: str) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[Fault(kind=FAULT_KIND_HOLD, step=step, seconds=0.3, times=1)])
    cluster.held_at(asked.move_id, step)
    before = list(cluster.a.asked), list(cluster.b.asked)
    tried = threading.Semaphore(0)
    tenure = cluster.admission.journal.tenure

    def over() -> None:
        tried.release()
        raise not_leader("", 1.0)

    # As if another process had begun its term: nothing of this one's may follow.
    tenure.require = over  # type: ignore[method-assign]
    for _ in range(3):
        assert tried.acquire(timeout=10)
    assert (cluster.a.asked, cluster.b.asked) == before
    cluster.restart_admission()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)


def test_a_newer_term_fences_every_write(in_file: Journal) -> None:
    in_file.register_host("host-a", 1, b"a")
    in_file._db.execute("UPDATE leadership SET term = term + 1")
    for write in (
        lambda: in_file.register_host("host-b", 1, b"b"),
        lambda: in_file.clear_drain("host-a"),
        lambda: in_file.save_estimates([]),
    ):
        with pytest.raises(errors.Unavailable) as caught:
            write()
        assert caught.value.reason == "NOT_LEADER"
    assert in_file.tenure.over.is_set()
    assert [row.host_id for row in in_file.hosts()] == ["host-a"]


def test_the_refusal_says_who_leads() -> None:
    error = not_leader("10.0.0.7:7400", 3.0)
    assert "10.0.0.7:7400 leads" in error.message
    assert (error.numbers, error.retry_after_s) == ({"leader": "10.0.0.7:7400"}, 3.0)
    assert "nobody is known to lead" in not_leader("", 3.0).message


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers("test", warm=2)
    yield made
    made.stop(5.0)


def test_every_task_runs_at_once_however_many_there_are(workers: Workers) -> None:
    together = threading.Barrier(9)
    for _ in range(8):
        workers.run(lambda: together.wait(10) and None)
    together.wait(10)


def test_a_thread_that_is_done_is_used_again(workers: Workers) -> None:
    names: set[str] = set()
    for _ in range(20):
        done = threading.Event()
        workers.run(lambda done=done: (names.add(threading.current_thread().name), done.set())[1])  # type: ignore[misc]
        assert done.wait(10)
        until("it waits again", lambda: workers._idle == 2)
    assert names <= {"test-0", "test-1"}

"""Who leads, on a real PostgreSQL: one at a time, and whoever stalls and wakes decides nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from admission_cluster import SESSION
from admission_fakes import LIVE, FakeHost, FakeMover, until
from journal_tools import advance, lead, record, register, session
from postgres_server import Server

from admission import leadership
from admission.journal import Journal
from admission.journal_database import PostgresUrl
from admission.leadership import Candidate, Tenure
from admission.machine import EventKind
from worldline import errors, health, rpc
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc
from worldline.v1 import move_pb2
from worldline.v1.move_pb2 import FAULT_KIND_HOLD, MOVE_STATE_ABORTED, MOVE_STATE_MOVED, Fault

pytestmark = pytest.mark.postgres

SERVICE = "worldline.v1.AdmissionService"
LEASE_S = 2.0


@contextmanager
def standing(candidate: Candidate) -> Iterator[list[Tenure]]:
    """The candidate stands on a thread of its own; what it won is in the list."""
    stopped, won = threading.Event(), []

    def stand() -> None:
        tenure = candidate.stand(stopped, lambda: None)
        if tenure is not None:
            won.append(tenure)

    thread = threading.Thread(target=stand)
    thread.start()
    try:
        yield won
    finally:
        stopped.set()
        thread.join()
        for tenure in won:
            tenure.close()


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_journal()


def test_of_many_that_stand_at_once_one_leads(url: str) -> None:
    stopped = threading.Event()
    won: list[Tenure] = []

    def stand(number: int) -> None:
        tenure = Candidate(PostgresUrl(url), 30.0, f"a:{number}").stand(stopped, looked.release)
        if tenure is not None:
            won.append(tenure)
            looked.release()

    looked = threading.Semaphore(0)
    with ThreadPoolExecutor(6) as pool:
        standing = [pool.submit(stand, number) for number in range(6)]
        for _ in range(6):
            looked.acquire(timeout=20)
        stopped.set()
        for done in standing:
            done.result()
    assert [tenure.term for tenure in won] == [1]
    won[0].close()


def test_a_leader_that_renews_is_not_followed(url: str) -> None:
    first = lead(url, lease_s=LEASE_S)
    other = Candidate(PostgresUrl(url), LEASE_S, "b:1")
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += 1
        # The lease is twelve looks long.
        if looks == 30:
            stopped.set()

    stopped = threading.Event()
    assert other.stand(stopped, looked) is None
    assert other.leader == "a:1"
    first.require()
    first.close()


def test_a_leader_that_leaves_is_followed_at_once(url: str) -> None:
    first = lead(url, lease_s=60.0)
    with standing(Candidate(PostgresUrl(url), 60.0, "b:1")) as won:
        first.close()
        until("the other leads", lambda: bool(won))
        assert won[0].term == 2


def test_a_stalled_leader_writes_nothing_when_it_wakes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as stalled:
        stalled.setattr(leadership, "_RENEW", 1000.0)
        old = Journal(lead(url, lease_s=LEASE_S))
    register(old)
    old.adopt([session()])
    kept = old.add_move(record(), None)
    with standing(Candidate(PostgresUrl(url), LEASE_S, "b:1")) as won:
        until("the other leads", lambda: bool(won))
        with pytest.raises(errors.Unavailable) as may_not:
            old.tenure.require()
        assert may_not.value.reason == "NOT_LEADER"
        for write in (
            lambda: advance(old, kept, EventKind.VERIFIED),
            lambda: old.add_move(record("s-2"), None),
            lambda: old.register_host("host-c", 1, b"c"),
            lambda: old.adopt([session("s-3")]),
        ):
            with pytest.raises(errors.Unavailable) as fenced:
                write()
            assert fenced.value.reason == "NOT_LEADER"
        new = Journal(won[0])
        assert new.open_moves() == [kept]
        assert [row.host_id for row in new.hosts()] == ["host-a", "host-b"]
        advance(new, kept, EventKind.VERIFIED)
    old.close()


def test_a_leader_that_stops_in_a_transaction_holds_nobody_up(url: str) -> None:
    old = Journal(lead(url, lease_s=LEASE_S))
    register(old)
    # Its renewals stop too, as they do when a process is stopped.
    old.tenure.over.set()
    with standing(Candidate(PostgresUrl(url), LEASE_S, "b:1")) as won:

        def stopped_in_the_middle() -> None:
            with old._transaction() as db:
                db.execute("DELETE FROM hosts")
                until("the other leads", lambda: bool(won))

        with pytest.raises(errors.Unavailable):
            stopped_in_the_middle()
        assert [row.host_id for row in Journal(won[0]).hosts()] == ["host-a", "host-b"]
    old.close()


def test_a_term_ends_between_writes_and_never_in_one(url: str) -> None:
    old = Journal(lead(url, lease_s=LEASE_S))
    old.tenure.over.set()
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with standing(Candidate(PostgresUrl(url), LEASE_S, "b:1")) as won:
        with old._transaction() as db:
            until("the other waits", lambda: bool(won) or bool(db.execute(waiting)))
            assert won == []
            db.execute("INSERT INTO drains VALUES ('host-a', 1.0, 'in time')")
        until("the other leads", lambda: bool(won))
        assert Journal(won[0]).drains() == {"host-a": "in time"}
    old.close()


def test_a_lost_server_ends_the_term(postgres: Server, url: str) -> None:
    tenure = lead(url, lease_s=LEASE_S)
    journal = Journal(tenure)
    register(journal)
    postgres.stop()
    postgres.start()
    with pytest.raises(errors.Unavailable) as caught:
        register(journal)
    assert caught.value.reason == "JOURNAL_FAILED"
    until("the term is over", tenure.over.is_set)
    again = lead(url, "b:1", LEASE_S)
    assert again.term == 2
    assert len(Journal(again).hosts()) == 2
    again.close()
    journal.close()


def test_a_journal_of_a_newer_release_is_refused(url: str) -> None:
    tenure = lead(url, lease_s=LEASE_S)
    tenure.writer.execute("UPDATE schema_version SET version = 99")
    tenure.close()
    with pytest.raises(errors.Precondition) as caught:
        lead(url, lease_s=LEASE_S)
    assert caught.value.reason == "JOURNAL_NEWER"


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be opened") as caught:
        lead(f"postgresql+psycopg://postgres:hunter2@/x?host={tmp_path}")
    assert caught.value.reason == "JOURNAL_FAILED"
    assert "hunter2" not in caught.value.message


# --- two processes


@dataclass
class Replica:
    """One admission process, and a stub of it."""

    process: subprocess.Popen[str]
    address: str
    channel: grpc.Channel
    stub: pb_grpc.AdmissionServiceStub

    def leads(self) -> bool:
        return health.check(self.address, SERVICE) == "SERVING"

    def move(self, move_id: str) -> move_pb2.Move:
        return self.stub.GetMove(pb.GetMoveRequest(move_id=move_id), timeout=5).move

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()


class TermedHost(FakeHost):
    """Remembers the term of each verb it was asked."""

    def __init__(self, host_id: str, mover_id: str) -> None:
        self.terms: list[int] = []
        super().__init__(host_id, mover_id)

    def _enter(self, verb: str, fence: move_pb2.Fence | None = None) -> None:
        if fence is not None:
            self.terms.append(fence.term)
        super()._enter(verb, fence)


@dataclass
class Pair:
    """Two replicas with a fleet of fakes around them."""

    url: str
    hosts: dict[str, FakeHost] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mover = FakeMover("mover-a", self.hosts)
        self.hosts.update({name: TermedHost(name, "mover-a") for name in ("host-a", "host-b")})
        self.hosts["host-a"].hold_session(SESSION)
        processes = [self._begin() for _ in range(2)]
        self.replicas += [self._ready(process) for process in processes]

    def _begin(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "admission", "--journal", self.url, "--lease-s", str(LEASE_S)]
        command += ["--fault-injection", "true", "--exit-with-parent", "--stall-s", "1"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    @staticmethod
    def _ready(process: subprocess.Popen[str]) -> Replica:
        assert process.stdout is not None
        address = str(json.loads(process.stdout.readline())["address"])
        process.stdout.close()
        channel = rpc.channel(address)
        return Replica(process, address, channel, pb_grpc.AdmissionServiceStub(channel))

    def leader(self, *but: Replica) -> Replica:
        """Wait for one that leads, and join the fleet to it."""
        candidates = [replica for replica in self.replicas if replica not in but]
        until("one leads", lambda: any(replica.leads() for replica in candidates), 15.0)
        (found,) = [replica for replica in candidates if replica.leads()]
        found.stub.RegisterMover(pb.RegisterMoverRequest(registration=self.mover.registration()), timeout=5)
        for host in self.hosts.values():
            found.stub.RegisterEngineHost(
                pb.RegisterEngineHostRequest(registration=host.registration(), status=host.status()), timeout=5
            )
        return found

    def other(self, leader: Replica) -> Replica:
        (found,) = [replica for replica in self.replicas if replica is not leader]
        return found

    def request(self, leader: Replica, *faults: Fault) -> str:
        request = pb.RequestMoveRequest(
            request_id=str(uuid.uuid4()), session_id=SESSION, destination_host_id="host-b", faults=faults
        )
        return leader.stub.RequestMove(request, timeout=5).move.move_id

    def close(self) -> None:
        for replica in self.replicas:
            replica.end()
        for host in self.hosts.values():
            host.stop()
        self.mover.server.stop(0)


@pytest.fixture
def pair(url: str) -> Iterator[Pair]:
    opened = Pair(url)
    yield opened
    opened.close()


def hold(step: str, seconds: float = 30.0) -> Fault:
    return Fault(kind=FAULT_KIND_HOLD, step=step, seconds=seconds, times=1)


def refused(replica: Replica) -> errors.WorldlineError:
    with pytest.raises(errors.Unavailable) as caught, rpc.calling("admission"):
        replica.stub.LocateSession(pb.LocateSessionRequest(session_id=SESSION), timeout=5)
    return caught.value


def test_of_two_processes_one_leads_and_the_other_says_where(pair: Pair) -> None:
    leader = pair.leader()
    standby = pair.other(leader)
    assert health.check(standby.address, SERVICE) == "NOT_SERVING"
    assert health.check(standby.address) == "SERVING"
    until("the standby has looked", lambda: refused(standby).numbers.get("leader") == leader.address)
    told = refused(standby)
    assert told.reason == "NOT_LEADER"
    assert told.resource == ("admission", leader.address)
    assert told.retry_after_s == LEASE_S
    with pytest.raises(grpc.RpcError) as stream:
        next(standby.stub.WatchMove(pb.WatchMoveRequest(move_id=str(uuid.uuid4())), timeout=5))
    assert stream.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("commit", MOVE_STATE_ABORTED),
        ("release", MOVE_STATE_MOVED),
        ("take", MOVE_STATE_MOVED),
        ("free", MOVE_STATE_MOVED),
    ],
)
def test_a_killed_leader_is_followed_in_the_middle_of_a_move(pair: Pair, step: str, state: int) -> None:
    old = pair.leader()
    move_id = pair.request(old, hold(step))
    until("held", lambda: old.move(move_id).stage == f"hold:{step}")
    old.signal(signal.SIGKILL)
    new = pair.leader(old)
    until("over", lambda: new.move(move_id).state == state)
    owner = "host-b" if state == MOVE_STATE_MOVED else "host-a"
    assert new.stub.LocateSession(pb.LocateSessionRequest(session_id=SESSION)).host_id == owner
    assert pair.hosts[owner].sessions[SESSION].state == LIVE
    assert [host.sessions[SESSION].state for host in pair.hosts.values() if SESSION in host.sessions].count(LIVE) == 1


@pytest.mark.parametrize("step", ["release", "take", "free"])
def test_a_stopped_leader_that_wakes_decides_nothing(pair: Pair, step: str) -> None:
    old = pair.leader()
    move_id = pair.request(old, hold(step, 0.5))
    until("held", lambda: old.move(move_id).stage == f"hold:{step}")
    old.signal(signal.SIGSTOP)
    new = pair.leader(old)
    until("moved", lambda: new.move(move_id).state == MOVE_STATE_MOVED)
    asked = [len(host.terms) for host in pair.hosts.values()]
    # The hold is over when it wakes: its next step is to ask.
    old.signal(signal.SIGCONT)
    until("it knows who leads", lambda: refused(old).numbers.get("leader") == new.address)
    assert refused(old).reason == "NOT_LEADER"
    assert health.check(old.address, SERVICE) == "NOT_SERVING"
    assert [len(host.terms) for host in pair.hosts.values()] == asked
    assert new.move(move_id).state == MOVE_STATE_MOVED
    assert new.stub.LocateSession(pb.LocateSessionRequest(session_id=SESSION)).host_id == "host-b"
    # It stands by, and leads again when it is needed.
    new.signal(signal.SIGKILL)
    assert pair.leader(new) is old
    assert old.move(move_id).state == MOVE_STATE_MOVED


def test_a_leader_that_is_told_to_stop_hands_over(pair: Pair) -> None:
    old = pair.leader()
    move_id = pair.request(old, hold("release"))
    until("held", lambda: old.move(move_id).stage == "hold:release")
    old.signal(signal.SIGTERM)
    new = pair.leader(old)
    until("moved", lambda: new.move(move_id).state == MOVE_STATE_MOVED)
    assert old.process.wait(10) == 0


def test_a_restarted_server_is_waited_for(pair: Pair, postgres: Server) -> None:
    old = pair.leader()
    move_id = pair.request(old, hold("release"))
    until("held", lambda: old.move(move_id).stage == "hold:release")
    postgres.stop()
    until("nobody leads", lambda: not any(replica.leads() for replica in pair.replicas))
    postgres.start()
    new = pair.leader()
    until("moved", lambda: new.move(move_id).state == MOVE_STATE_MOVED)

"""Leases never exceed a receiver's cap, whatever clients decided meanwhile and whenever admission crashes."""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from admission_cluster import Cluster
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from journal_tools import advance, record, register, session

from admission.journal import Journal
from admission.journal_rows import Caps, Lease
from admission.machine import _NEXT, EventKind, Phase, State
from admission.record import MoveRecord
from worldline import errors, rpc
from worldline.move import HostRef
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.move_pb2 import MOVE_STATE_OPEN

CAPS = Caps(receiver=1, mover=2)
SESSIONS = [f"s-{number}" for number in range(6)]
# Three hosts share a mover.
MOVERS = {"host-b": "mover-b", "host-c": "mover-b", "host-d": "mover-b"}


def made(session_id: str, epoch: int, destination: str) -> tuple[MoveRecord, Lease]:
    move = replace(record(session_id, epoch=epoch), destination=HostRef(destination, 4, "127.0.0.1:2"))
    return move, Lease(move.move_id, destination, move.state_bytes, 1000.5, 1001.0, True, MOVERS[destination])


def possible(state: State) -> list[EventKind]:
    return [kind for phase, kind in _NEXT if phase is state.phase]


class Interleavings(RuleBasedStateMachine):
    """Clients decide on what they see, then ask for it later; moves go on; admission crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.journal = Journal(self.folder / "j.db", keep=100)
        register(self.journal)
        self.journal.register_host("host-c", 4, b"c")
        self.journal.register_host("host-d", 4, b"d")
        self.journal.adopt([session(name) for name in SESSIONS])
        self.decided: list[tuple[MoveRecord, Lease]] = []

    @rule(session_id=st.sampled_from(SESSIONS), destination=st.sampled_from(sorted(MOVERS)))
    def decides(self, session_id: str, destination: str) -> None:
        row = self.journal.session(session_id)
        held = [lease for lease in self.journal.leases() if lease.receives and lease.host_id == destination]
        if row is not None and not row.move_id and row.host_id == "host-a" and not row.lost and not held:
            self.decided.append(made(session_id, row.epoch, destination))

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def opens(self, data: st.DataObject) -> None:
        move, lease = self.decided.pop(data.draw(st.integers(0, len(self.decided) - 1)))
        before = self.journal.leases()
        try:
            self.journal.add_move(move, lease, CAPS)
        except (errors.Exhausted, errors.Owned, errors.SessionLost):
            assert self.journal.leases() == before
            assert self.journal.move(move.move_id) is None

    @precondition(lambda self: self.journal.open_moves())
    @rule(data=st.data())
    def goes_on(self, data: st.DataObject) -> None:
        moves = self.journal.open_moves()
        move = moves[data.draw(st.integers(0, len(moves) - 1))]
        advance(self.journal, move, data.draw(st.sampled_from(possible(move.state))))

    @rule()
    def crashes(self) -> None:
        self.journal.close()
        self.journal = Journal(self.folder / "j.db", keep=100)

    @invariant()
    def no_receiver_is_over_its_cap(self) -> None:
        leases = self.journal.leases()
        receiving = [lease for lease in leases if lease.receives]
        assert all(count <= CAPS.receiver for count in Counter(lease.host_id for lease in receiving).values())
        assert all(count <= CAPS.mover for count in Counter(lease.mover_id for lease in receiving).values())

    @invariant()
    def a_lease_is_an_open_moves(self) -> None:
        moves = {move.move_id: move for move in self.journal.open_moves()}
        leased = {lease.move_id for lease in self.journal.leases()}
        assert leased == {name for name, move in moves.items() if move.phase is not Phase.DONE}
        assert len({move.session_id for move in moves.values()}) == len(moves)

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


def test_of_many_that_open_at_once_as_many_as_the_cap_do(journal: Journal) -> None:
    register(journal)
    journal.adopt([session(name) for name in SESSIONS])
    begin = threading.Barrier(len(SESSIONS))
    refusals: list[tuple[str, dict[str, object]]] = []

    def opened(session_id: str) -> bool:
        move, lease = made(session_id, 1, "host-b")
        begin.wait()
        try:
            journal.add_move(move, lease, Caps(receiver=2))
        except errors.Exhausted as error:
            refusals.append((error.reason, error.numbers))
            return False
        return True

    with ThreadPoolExecutor(len(SESSIONS)) as pool:
        assert sum(pool.map(opened, SESSIONS)) == 2
    assert refusals == [("RECEIVER_BUSY", {"in_flight": 2, "cap": 2})] * 4
    assert len(journal.leases()) == 2
    assert len(journal.open_moves()) == 2


@pytest.fixture
def two_at_most(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, receiver_cap=2)


def test_of_many_requests_at_once_as_many_as_the_cap_are_opened(two_at_most: Cluster) -> None:
    cluster = two_at_most
    try:
        for name in SESSIONS:
            cluster.a.hold_session(name)
        cluster.beat(cluster.a)
        cluster.hold_mover()
        begin = threading.Barrier(len(SESSIONS))

        def state(session_id: str) -> int:
            request = pb.RequestMoveRequest(
                request_id=str(uuid.uuid4()), session_id=session_id, destination_host_id="host-b"
            )
            begin.wait()
            with rpc.calling("admission"):
                return cluster.stub.RequestMove(request, timeout=20).move.state

        with ThreadPoolExecutor(len(SESSIONS)) as pool:
            states = list(pool.map(state, SESSIONS))
        assert states.count(MOVE_STATE_OPEN) == 2
        leases = cluster.admission.journal.leases()
        assert [(lease.host_id, lease.mover_id) for lease in leases] == [("host-b", "mover-b")] * 2
    finally:
        cluster.close()

"""Kill any one process at each step of a move.

At most one host can ever advance the session, no played block is replayed from older state, no slot leaks, and the
session lives on wherever a verified, granted or still-owned copy lives.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_tools import Reference, all_free, await_hold, direct_sessions, hold, shown, step, until

from worldline.client import Client, Play
from worldline.errors import SessionLost
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2

BEFORE_COMMIT = ("reserve", "freeze", "verify", "commit")
AFTER_COMMIT = ("release", "granted", "take", "done", "free")
STEPS = BEFORE_COMMIT + AFTER_COMMIT
VICTIMS = ("admission", "mover-a", "mover-b", "host-a", "host-b")
BLOCKS = 24
# Long enough to restart a host while the move is held: its proven death ends the hold. Movers' deaths end none.
HOLD_S = {"host-a": 20.0, "host-b": 20.0, "admission": 20.0, "mover-a": 2.0, "mover-b": 2.0}
MOVED, ABORTED, LOST = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED, move_pb2.MOVE_STATE_LOST


def expected(victim: str, at: str) -> set[int]:
    """How the move may end. The source is host-a, the destination host-b."""
    if victim == "host-a":
        # Its own host died before its grant was in admission's hands: lost. Afterwards the destination takes.
        return {LOST} if at in (*BEFORE_COMMIT, "release") else {MOVED}
    if victim == "host-b":
        # Proven dead before DONE: the source is reinstated. After DONE it owned the session, which dies with it.
        return {LOST} if at == "free" else {ABORTED}
    if victim == "admission":
        # Nothing of an open move outlives its decider; from COMMIT on the journal carries it through.
        return {ABORTED} if at in BEFORE_COMMIT else {MOVED}
    if victim == "mover-b" and at == "reserve":
        return {ABORTED, MOVED}  # it has not been asked for anything yet, and may be back in time
    return {ABORTED} if at in BEFORE_COMMIT[:3] else {MOVED}


@pytest.fixture(scope="module")
def crash_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = {"admission": {"heartbeat_s": 0.2, "silent_s": 1.0, "stall_s": 1.0, "no_progress_s": 30.0}}
    with Fleet(tmp_path_factory.mktemp("crash"), TWO_NODES, fault_injection=True, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def reference(crash_fleet: Fleet) -> Reference:
    """Frames of the session never moved; played ahead and recorded, since its host will be killed too."""
    with Client(crash_fleet.target) as client:
        made = Reference(client, "host-a").upto(BLOCKS)
        made.close()
    return made


def live_on(fleet: Fleet, session_id: str) -> list[str]:
    """Hosts on which the session could advance now, as they say themselves."""
    return [
        name
        for name in ("host-a", "host-b")
        if fleet.members[name].running
        for info in direct_sessions(fleet.members[name].address)
        if info.descriptor.session_id == session_id and info.state == host_pb.SESSION_STATE_LIVE
    ]


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("at", STEPS)
def test_kill(crash_fleet: Fleet, reference: Reference, victim: str, at: str) -> None:
    kill_and_check(crash_fleet, reference, victim, at)


@pytest.mark.parametrize(("victim", "at"), [("host-b", "take"), ("admission", "granted"), ("host-a", "verify")])
def test_kill_the_telling_ones(crash_fleet: Fleet, reference: Reference, victim: str, at: str) -> None:
    """Three of the matrix above that are quick enough for every run."""
    kill_and_check(crash_fleet, reference, victim, at)


def kill_and_check(fleet: Fleet, reference: Reference, victim: str, at: str) -> None:
    with Client(fleet.target) as client:
        until("both hosts ready", lambda: sum(host.ready for host in client.hosts()) == 2)
        until("nothing is left of the last test", lambda: all_free(client))
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            for _ in range(3):
                assert shown(step(play)) == reference[play.next_block - 1]
            asked = client.request_move(session.session_id, "host-b", faults=[hold(at, HOLD_S[victim])])
            await_hold(client, asked.move_id, at)
            assert len(live_on(fleet, session.session_id)) <= 1
            fleet.kill(victim)
            if victim != "host-a":
                assert len(live_on(fleet, session.session_id)) <= 1
            fleet.restart(victim)
            closed = client.wait(asked.move_id, timeout_s=90) if victim != "admission" else _wait(client, asked.move_id)
            assert closed.state in expected(victim, at), (closed.reason, closed.message, closed.transitions)
            if closed.state == LOST:
                with pytest.raises(SessionLost):
                    client.locate(session.session_id)
                with pytest.raises(SessionLost):
                    step(play)
                assert live_on(fleet, session.session_id) == []
            else:
                home = "host-b" if closed.state == MOVED else "host-a"
                for _ in range(3):
                    _play_on(play, reference)
                assert play.host_id == home
                assert live_on(fleet, session.session_id) == [home]
        if closed.state != LOST:
            client.close_session(session)
        until("every slot is free again", lambda: all_free(client))


def _play_on(play: Play, reference: Reference) -> None:
    block = step(play)
    assert shown(block) == reference[block.index]


def _wait(client: Client, move_id: str) -> move_pb2.Move:
    """The closed move, asked anew each time: watches end with the admission that is killed."""
    until("the move is closed", lambda: client.get_move(move_id).state in (MOVED, ABORTED, LOST), timeout_s=90)
    return client.get_move(move_id)

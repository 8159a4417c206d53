"""A silent host (SIGSTOP, its connections open): abort before the grant, STALLED after it, and done when it wakes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from e2e_tools import (
    QUICK_TIMERS,
    Reference,
    all_free,
    all_ready,
    await_hold,
    direct_sessions,
    hold,
    shown,
    step,
    until,
)

from worldline.client import Client
from worldline.errors import NotFound
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2

MOVED, ABORTED, LOST = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED, move_pb2.MOVE_STATE_LOST


def closed(client: Client, move_id: str) -> move_pb2.Move:
    until("the move is closed", lambda: client.get_move(move_id).state in (MOVED, ABORTED, LOST), 60)
    return client.get_move(move_id)


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("silent"), TWO_NODES, fault_injection=True, options=QUICK_TIMERS) as running:
        yield running


@pytest.fixture
def waking(_shared: Fleet) -> Iterator[Fleet]:
    """For tests whose silent members all wake, and whose sessions are all closed: it is whole again after each."""
    yield _shared
    with Client(_shared.target) as client:
        until("everybody is back, and holds nothing", lambda: all_ready(client) and all_free(client))


@pytest.mark.parametrize("victim", ["mover-b", "host-b"])
def test_a_silent_destination_before_the_grant_aborts(waking: Fleet, victim: str) -> None:
    with Client(waking.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("verify", 1.0)])
            await_hold(client, asked.move_id, "verify")
            waking.signal(victim, signal.SIGSTOP)
            # The source plays on although the destination has not dropped its copy yet.
            for index in (1, 2, 3):
                assert shown(step(play)) == reference[index]
            assert play.host_id == "host-a"
            waking.signal(victim, signal.SIGCONT)
            move = closed(client, asked.move_id)
            assert move.state == ABORTED, move
        until(
            "the destination has dropped its copy",
            lambda: not direct_sessions(waking.members["host-b"].address),
        )
        reference.close()
        client.close_session(session)


def test_a_destination_silent_after_the_grant_stalls_and_completes_when_it_wakes(waking: Fleet) -> None:
    with Client(waking.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("take", 1.0)])
            await_hold(client, asked.move_id, "take")
            waking.signal("host-b", signal.SIGSTOP)
            until("the move is stalled", lambda: client.get_move(asked.move_id).stalled)
            assert client.get_move(asked.move_id).state == move_pb2.MOVE_STATE_GRANTED
            waking.signal("host-b", signal.SIGCONT)
            move = closed(client, asked.move_id)
            assert move.state == MOVED, move
            assert not move.stalled
            for index in (1, 2):
                assert shown(step(play)) == reference[index]
            assert play.host_id == "host-b"
        reference.close()
        client.close_session(session)


@pytest.mark.slow
def test_a_silent_destination_that_is_fenced_gives_the_session_back(own_fleet: Fleet) -> None:
    with Client(own_fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("take", 1.0)])
            await_hold(client, asked.move_id, "take")
            own_fleet.signal("host-b", signal.SIGSTOP)
            until("the move is stalled", lambda: client.get_move(asked.move_id).stalled)
            incarnation = int(
                next(h for h in client.hosts() if h.registration.host_id == "host-b").registration.incarnation
            )
            fenced = client.fence("host-b", incarnation, "test: stopped for good")
            assert list(fenced.move_ids) == [asked.move_id]
            assert closed(client, asked.move_id).state == ABORTED
            for index in (1, 2):
                assert shown(step(play)) == reference[index]
            assert play.host_id == "host-a"
        # When it wakes it learns that it was fenced, and ends.
        own_fleet.signal("host-b", signal.SIGCONT)
        until("the fenced host ends", lambda: not own_fleet.members["host-b"].running)


@pytest.mark.slow
def test_a_silent_source_that_wakes_too_late_plays_on_and_the_copy_is_dropped(waking: Fleet) -> None:
    with Client(waking.target) as client:
        reference = Reference(client, "host-b")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("release", 1.0)])
            await_hold(client, asked.move_id, "release")
            waking.signal("host-a", signal.SIGSTOP)
            until("the move is stalled", lambda: client.get_move(asked.move_id).stalled)
            waking.signal("host-a", signal.SIGCONT)
            move = closed(client, asked.move_id)
            # It woke inside its freeze and gave, or after it and had resumed: one owner either way.
            assert move.state in (MOVED, ABORTED), move
            for index in (1, 2):
                assert shown(step(play)) == reference[index]
            assert play.host_id == ("host-b" if move.state == MOVED else "host-a")
        reference.close()
        client.close_session(session)


@pytest.mark.slow
def test_a_silent_source_that_is_fenced_loses_the_session_and_never_promotes_a_copy(own_fleet: Fleet) -> None:
    with Client(own_fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session) as play:
            step(play)
            asked = client.request_move(session.session_id, "host-b", faults=[hold("release", 1.0)])
            await_hold(client, asked.move_id, "release")
            own_fleet.signal("host-a", signal.SIGSTOP)
            until("the move is stalled", lambda: client.get_move(asked.move_id).stalled)
            host = next(h for h in client.hosts() if h.registration.host_id == "host-a")
            client.fence("host-a", host.registration.incarnation, "test: stopped for good")
            assert closed(client, asked.move_id).state == LOST
            with pytest.raises(NotFound) as lost:
                client.locate(session.session_id)
            assert lost.value.reason == "SESSION_LOST"
            states = [info.state for info in direct_sessions(own_fleet.members["host-b"].address)]
            assert host_pb.SESSION_STATE_LIVE not in states
        own_fleet.signal("host-a", signal.SIGCONT)
        until("the fenced host ends", lambda: not own_fleet.members["host-a"].running)

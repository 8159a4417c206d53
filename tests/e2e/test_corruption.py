"""A bit flipped anywhere between the source's memory and the live slot: never installed, the source plays on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_tools import Reference, await_hold, hold, shown, step
from memory_of import flip

from worldline.client import Client, Play, Session
from worldline.fleet import Fleet
from worldline.move import Fault, FaultKind
from worldline.v1 import move_pb2

MOVED, ABORTED = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED


@pytest.fixture
def played(client: Client) -> Iterator[tuple[Client, Session, Play, Reference]]:
    """A session on host-a that has played a block, and its reference."""
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        yield client, session, play, reference
        home = play.host_id
        for _ in range(2):
            index = play.next_block
            assert shown(step(play)) == reference[index]
        assert play.host_id == home
    client.close_session(session)
    reference.close()


def test_a_flip_on_the_way_is_sent_again_once(played: tuple[Client, Session, Play, Reference]) -> None:
    client, session, play, reference = played
    asked = client.request_move(
        session.session_id, "host-b", faults=[Fault(FaultKind.FLIP, chunk=1, times=1), Fault(FaultKind.FLIP, chunk=3)]
    )
    move = client.wait(asked.move_id, timeout_s=60)
    assert (move.state, move.retried_chunks) == (MOVED, 2), move
    assert shown(step(play)) == reference[1]
    assert play.host_id == "host-b"


def test_a_flip_that_comes_back_is_never_installed(played: tuple[Client, Session, Play, Reference]) -> None:
    client, session, play, _ = played
    asked = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.FLIP, chunk=2, times=0)])
    move = client.wait(asked.move_id, timeout_s=60)
    assert (move.state, move.reason) == (ABORTED, "CHUNK_MISMATCH"), move
    assert "chunk 2" in move.message
    assert play.host_id == "host-a"


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATE, FaultKind.DROP])
def test_what_does_not_arrive_is_never_installed(
    played: tuple[Client, Session, Play, Reference], kind: FaultKind
) -> None:
    client, session, play, _ = played
    asked = client.request_move(session.session_id, "host-b", faults=[Fault(kind, chunk=1, times=0)])
    move = client.wait(asked.move_id, timeout_s=60)
    assert move.state == ABORTED, move
    assert move.reason
    assert play.host_id == "host-a"


def test_a_stalled_wire_aborts(played: tuple[Client, Session, Play, Reference]) -> None:
    client, session, play, _ = played
    asked = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.STALL, chunk=1, seconds=60)])
    move = client.wait(asked.move_id, timeout_s=60)
    assert (move.state, move.reason) == (ABORTED, "NO_PROGRESS"), move
    assert play.host_id == "host-a"


def test_a_delayed_chunk_only_takes_longer(played: tuple[Client, Session, Play, Reference]) -> None:
    client, session, play, reference = played
    asked = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.DELAY, chunk=1, seconds=0.2)])
    assert client.wait(asked.move_id, timeout_s=60).state == MOVED
    assert shown(step(play)) == reference[1]


def test_a_flip_in_the_landing_memory(fleet: Fleet, played: tuple[Client, Session, Play, Reference]) -> None:
    """A chunk has landed and was checked; its memory changes while the last chunk is still on its way."""
    client, session, _, _ = played
    last = -(-client.get_move(_move_once(client)).total_bytes // (256 << 10)) - 1
    asked = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.STALL, chunk=last, seconds=1.5)])
    for move in client.watch(asked.move_id, timeout_s=60):
        if move.stage == "wire" and move.landed_bytes >= 256 << 10:
            break
    flip(fleet.members["host-b"].pid, session.session_id, offset=5_000, bit=3)
    move = client.wait(asked.move_id, timeout_s=60)
    assert move.state == ABORTED, move
    assert "chunk 0" in move.message


def _move_once(client: Client) -> str:
    """A move of another session, to learn how large `tiny` is."""
    other = client.place("window-rewrite", "tiny", 1, host_id="host-a")
    move = client.move(other.session_id, "host-b", timeout_s=60)
    client.close_session(other)
    return move.move_id


@pytest.mark.parametrize("at", ["commit", "release", "take"])
def test_a_flip_in_the_shadow_slot_after_its_receipt(
    fleet: Fleet, played: tuple[Client, Session, Play, Reference], at: str
) -> None:
    client, session, play, _ = played
    asked = client.request_move(session.session_id, "host-b", faults=[hold(at, 1.0)])
    await_hold(client, asked.move_id, at)
    flip(fleet.members["host-b"].pid, session.session_id, offset=300_000, bit=7)
    move = client.wait(asked.move_id, timeout_s=60)
    assert (move.state, move.reason) == (ABORTED, "CHUNK_MISMATCH"), move
    assert "chunk 1" in move.message
    assert "shadow slot" in move.message
    assert play.host_id == "host-a"

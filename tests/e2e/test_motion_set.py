"""Fleets whose engine hosts leave proven cold leaves off the wire: exact all the same, refused where it is false."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_tools import Reference, await_hold, hold, shown, step, until
from memory_of import flip

from enginehost.engines.window_geometry import GEOMETRIES
from worldline import wire
from worldline.client import Client, Play, Session
from worldline.fleet import ONE_NODE, TWO_NODES, Fleet, Node
from worldline.made import Made
from worldline.move import Fault, FaultKind
from worldline.plan import Placement
from worldline.v1 import move_pb2

pytestmark = pytest.mark.slow

MOVED, ABORTED = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED
COLD_BYTES = sum(spec.size_bytes for spec in GEOMETRIES["tiny"].cold_tensors())


def fleet_of(directory: Path, nodes: tuple[Node, ...]) -> Fleet:
    options = {
        "enginehost": {"motion_set": "window-rewrite/tiny", "motion_set_blocks": 2},
        "admission": {"heartbeat_s": 0.2},
    }
    return Fleet(directory, nodes, fault_injection=True, options=options)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(tmp_path_factory.mktemp("motion"), TWO_NODES) as running:
        yield running


@pytest.fixture
def played(fleet: Fleet) -> Iterator[tuple[Client, Session, Play, Reference]]:
    """A session on host-a that has played a block, and its reference."""
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            assert shown(step(play)) == reference[0]
            yield client, session, play, reference
            assert shown(step(play)) == reference[play.next_block - 1]
        client.close_session(session)
        reference.close()


def require_made(move: move_pb2.Move) -> None:
    """The move made what is cold, and both receipts bind all of it."""
    made = wire.made_from(move.plan.made)
    assert sum(item.size_bytes for item in made) >= COLD_BYTES
    assert sum(item.size_bytes for item in made) / move.total_bytes >= 0.194
    assert move.source_receipt.size_bytes == move.destination_receipt.size_bytes == move.total_bytes
    assert list(move.source_receipt.chunk_crcs) == list(move.destination_receipt.chunk_crcs)
    (gate,) = [clause for clause in move.verdict.clauses if clause.name == "deadline_gate"]
    assert "made there) B" in gate.arithmetic


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("placement", list(Placement))
def test_to_and_fro(played: tuple[Client, Session, Play, Reference], placement: Placement, codec: str) -> None:
    client, session, play, reference = played
    for destination in ("host-b", "host-a"):
        asked = client.request_move(session.session_id, destination, placement=placement, codec=codec)
        move = client.wait(asked.move_id, timeout_s=60)
        assert (move.state, move.plan.codec, move.plan.placement) == (MOVED, codec, int(placement)), move
        assert move.plan.staged is (placement is Placement.DEVICE), "between nodes it goes through host memory"
        assert move.retried_chunks == 0
        require_made(move)
        for _ in range(2):
            index = play.next_block
            assert shown(step(play)) == reference[index]
        assert play.host_id == destination


@pytest.mark.parametrize("placement", [Placement.PIPELINED, Placement.DEVICE])
def test_within_one_node(tmp_path: Path, placement: Placement) -> None:
    """Over the mover's own memory, and pulled by the destination host."""
    with fleet_of(tmp_path / "node", ONE_NODE) as fleet, Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            for number in range(3):
                assert shown(step(play)) == reference[number]
                asked = client.request_move(
                    session.session_id, ("host-b", "host-a")[number % 2], transport="local", placement=placement
                )
                move = client.wait(asked.move_id, timeout_s=60)
                assert (move.state, move.plan.placement) == (MOVED, int(placement)), move
                require_made(move)
            assert shown(step(play)) == reference[3]
        client.close_session(session)
        reference.close()


def test_flips_in_what_is_sent(played: tuple[Client, Session, Play, Reference]) -> None:
    client, session, _, _ = played
    move = client.wait(
        client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.FLIP, chunk=0, times=1)]).move_id,
        timeout_s=60,
    )
    assert (move.state, move.retried_chunks) == (MOVED, 1), move
    require_made(move)


def told(client: Client, session: Session) -> tuple[Made, ...] | None:
    """What the session's host has told admission that a move makes; None if it has not told of the session."""
    for host in client.hosts():
        for info in host.status.sessions:
            if info.descriptor.session_id == session.session_id:
                return wire.made_from(info.made)
    return None


def made_at(client: Client, session: Session) -> int:
    """A byte in the middle of what a move of the session makes."""
    until("the host tells what a move makes", lambda: bool(told(client, session)))
    largest = max(told(client, session) or (), key=lambda item: item.size_bytes)
    return largest.offset + largest.size_bytes // 2


@pytest.mark.parametrize("at", ["freeze", "take"])
def test_a_flip_in_the_made_part_of_the_slot(
    fleet: Fleet, played: tuple[Client, Session, Play, Reference], at: str
) -> None:
    """Before the bytes come it is mended by sending that chunk; after the receipt the slot is never installed."""
    client, session, play, _ = played
    offset = made_at(client, session)
    asked = client.request_move(session.session_id, "host-b", faults=[hold(at, 1.0)])
    await_hold(client, asked.move_id, at)
    flip(fleet.members["host-b"].pid, session.session_id, offset)
    move = client.wait(asked.move_id, timeout_s=60)
    if at == "freeze":
        assert (move.state, move.retried_chunks) == (MOVED, 1), move
        require_made(move)
    else:
        assert (move.state, move.reason) == (ABORTED, "CHUNK_MISMATCH"), move
        assert play.host_id == "host-a"


def test_a_cold_leaf_that_is_written_after_all(fleet: Fleet) -> None:
    """The move ends by name before anything is installed, the source plays on, and the next move sends all of it."""
    with Client(fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 7, host_id="host-a")
        with client.play(session, patience_s=60) as play:
            step(play)
            flip(fleet.members["host-a"].pid, session.session_id, made_at(client, session))
            asked = client.request_move(session.session_id, "host-b")
            move = client.wait(asked.move_id, timeout_s=60)
            assert (move.state, move.reason) == (ABORTED, "COLD_LEAF_WRITTEN"), move
            assert "layers/" in move.message
            step(play)
            assert play.host_id == "host-a"
            until("the host tells that it makes nothing", lambda: told(client, session) == ())
            move = client.move(session.session_id, "host-b", timeout_s=60)
            assert (move.state, len(move.plan.made)) == (MOVED, 0), move
            step(play)
            assert play.host_id == "host-b"
        client.close_session(session)

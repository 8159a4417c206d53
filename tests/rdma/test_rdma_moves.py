"""Whole moves over verbs, three services and two hosts' devices, on a wire that is late and loses packets."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_tools import Reference, all_free, shown, step, until

from worldline import fleet as fleets
from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.move import Fault, FaultKind
from worldline.v1 import move_pb2

pytestmark = pytest.mark.rdma

# In an emulated machine torch alone takes half a minute to start.
START_S = 300.0
MOVE_S = 120.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, devices: tuple[str, str]) -> Iterator[Fleet]:
    options: dict[str, dict[str, str | int | float | bool]] = {
        "admission": {"heartbeat_s": 1.0, "silent_s": 20.0, "no_progress_s": 10.0, "move_deadline_s": MOVE_S},
        "mover-a": {"rdma_device": devices[0]},
        "mover-b": {"rdma_device": devices[1]},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleets, "START_TIMEOUT_S", START_S)
        with Fleet(tmp_path_factory.mktemp("fleet"), TWO_NODES, fault_injection=True, options=options) as running:
            yield running


def test_a_session_over_verbs_is_frame_for_frame_the_same(fleet: Fleet, wire: Callable[[str], None]) -> None:
    """There and back, with a chunk that is corrupted on the way back: frame for frame the session never moved."""
    wire("delay 2ms loss 1%")
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=MOVE_S) as play:
            for number, destination in enumerate(("host-b", "host-a")):
                assert shown(step(play)) == reference[2 * number]
                faults = [Fault(FaultKind.FLIP, chunk=0)] if number else []
                asked = client.request_move(session.session_id, destination, transport="rdma", faults=faults)
                assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, asked.verdict
                move = client.wait(asked.move_id, timeout_s=MOVE_S)
                assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
                assert move.plan.transport == "rdma"
                assert move.retried_chunks == number
                assert move.source_receipt.state_crc == move.destination_receipt.state_crc
                assert shown(step(play)) == reference[2 * number + 1]
                assert play.host_id == destination
        client.close_session(session)
        reference.close()
        until("all slots are free", lambda: all_free(client))


def test_a_mover_that_dies_aborts(fleet: Fleet, wire: Callable[[str], None]) -> None:
    """The destination's mover is killed while bytes are on the wire: the source plays on from where it was."""
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=MOVE_S) as play:
            assert shown(step(play)) == reference[0]
            wire("delay 300ms")
            asked = client.request_move(session.session_id, "host-b", transport="rdma")
            assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, asked.verdict
            until("bytes are on the wire", lambda: client.get_move(asked.move_id).stage in ("wire", "verify"), MOVE_S)
            fleet.signal("mover-b", signal.SIGKILL)
            move = client.wait(asked.move_id, timeout_s=MOVE_S)
            assert move.state == move_pb2.MOVE_STATE_ABORTED, (move.reason, move.message)
            assert shown(step(play)) == reference[1]
            assert play.host_id == "host-a"
        client.close_session(session)
        reference.close()


def test_what_a_log_shows(fleet: Fleet) -> None:
    """Movers offer what they truly have, and say so."""
    log = Path(fleet.members["mover-a"].log).read_text()
    assert "tcp,local,rdma" in log
    assert "rdma_not_offered" not in log

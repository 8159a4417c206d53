"""Whole moves over verbs, three services and two hosts' devices, on a wire that is late and loses packets."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_tools import Reference, all_free, shown, step, until

from worldline import fleet as fleets
from worldline import rpc
from worldline.client import Client
from worldline.contract import Contract, ContractClass, Tier
from worldline.fleet import TWO_NODES, Fleet
from worldline.move import Fault, FaultKind
from worldline.v1 import move_pb2
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

pytestmark = pytest.mark.rdma

# In an emulated machine torch alone takes half a minute to start.
START_S = 300.0
MOVE_S = 120.0
HORIZON_S = 90.0
# The bounds of the contract have other names: DEADLINE_EXCEEDED, and the freeze's own.
REASONS = {"frozen": {"NO_PROGRESS"}, "killed": {"PEER_GONE", "DATA_PLANE_DIED", "MOVER_GONE", "UNAVAILABLE"}}


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
    """There raw and back coded, with a chunk that is corrupted on the way back: frame for frame it never moved."""
    wire("delay 2ms loss 1%")
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=MOVE_S) as play:
            for number, (destination, codec) in enumerate((("host-b", "raw"), ("host-a", "zstd"))):
                assert shown(step(play)) == reference[2 * number]
                faults = [Fault(FaultKind.FLIP, chunk=0)] if number else []
                asked = client.request_move(
                    session.session_id, destination, transport="rdma", codec=codec, faults=faults
                )
                assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, asked.verdict
                move = client.wait(asked.move_id, timeout_s=MOVE_S)
                assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
                assert (move.plan.transport, move.plan.codec) == ("rdma", codec)
                assert move.retried_chunks == number
                assert move.source_receipt.state_crc == move.destination_receipt.state_crc
                assert shown(step(play)) == reference[2 * number + 1]
                assert play.host_id == destination
        client.close_session(session)
        reference.close()
        until("all slots are free", lambda: all_free(client))


def data_plane(fleet: Fleet, mover: str) -> int:
    """Process id of what holds a mover's queue pairs; 0 while there is none."""
    with rpc.channel(fleet.members[mover].address) as channel:
        return int(MoverServiceStub(channel).GetStatus(mover_pb.GetStatusRequest(), timeout=30).data_plane_pid)


def admitted(client: Client, session_id: str) -> str:
    """Ask for the move to host-b until it is admitted: a mover that came back is not heard of at once."""
    asked: list[move_pb2.Move] = []

    def ask() -> bool:
        asked.append(client.request_move(session_id, "host-b", transport="rdma"))
        return asked[-1].verdict.kind == move_pb2.VERDICT_KIND_ADMIT

    until("the move is admitted", ask, MOVE_S)
    return asked[-1].move_id


@pytest.mark.parametrize(("mover", "how"), [("mover-a", "frozen"), ("mover-b", "killed")])
def test_an_end_that_is_gone_aborts(fleet: Fleet, wire: Callable[[str], None], mover: str, how: str) -> None:
    """While bytes are on the wire, a mover's data plane is frozen, or the mover is killed and comes back.

    The move ends by its own name long before the deadline of the session's contract: the source plays on from where it
    was, and the same move is then made.
    """
    with Client(fleet.target) as client:
        reference = Reference(client, "host-a")
        contract = Contract(ContractClass.C1, HORIZON_S, Tier.T0)
        session = client.place("window-rewrite", "tiny", 42, contract=contract, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=MOVE_S) as play:
            assert shown(step(play)) == reference[0]
            wire("delay 300ms")
            asked = client.request_move(session.session_id, "host-b", transport="rdma")
            assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, asked.verdict
            until("bytes are on the wire", lambda: client.get_move(asked.move_id).stage in ("wire", "verify"), MOVE_S)
            before = data_plane(fleet, mover)
            if how == "frozen":
                os.kill(before, signal.SIGSTOP)
            else:
                fleet.kill(mover)
            move = client.wait(asked.move_id, timeout_s=MOVE_S)
            assert move.state == move_pb2.MOVE_STATE_ABORTED, (move.reason, move.message)
            assert move.reason in REASONS[how], (move.reason, move.message)
            assert move.plan.deadline_s == HORIZON_S
            assert shown(step(play)) == reference[1]
            assert play.host_id == "host-a"
            if how == "killed":
                fleet.restart(mover)
            wire("delay 0ms")
            until("the slot is free", lambda: slots_used(client, "host-b") == 0, MOVE_S)
            until("a new data plane is up", lambda: data_plane(fleet, mover) not in (0, before), MOVE_S)
            move = client.wait(admitted(client, session.session_id), timeout_s=MOVE_S)
            assert move.state == move_pb2.MOVE_STATE_MOVED, (move.reason, move.message)
            assert shown(step(play)) == reference[2]
            assert play.host_id == "host-b"
        client.close_session(session)
        reference.close()
        until("all slots are free", lambda: all_free(client), MOVE_S)


def slots_used(client: Client, host_id: str) -> int:
    """Bytes of slots that an engine host has given out."""
    (host,) = [host for host in client.hosts() if host.registration.host_id == host_id]
    return int(host.registration.budget_bytes - host.status.free_bytes)


def test_what_a_log_shows(fleet: Fleet) -> None:
    """Movers offer what they truly have, and say so."""
    log = Path(fleet.members["mover-a"].log).read_text()
    assert "tcp,local,rdma" in log
    assert "rdma_not_offered" not in log

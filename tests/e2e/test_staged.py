"""Staged moves over tcp between processes. Hosts on CPUs stand in for devices: all is the same but the copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_tools import Reference, all_free, await_hold, hold, shown, step, until

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.move import Fault, FaultKind
from worldline.plan import Placement
from worldline.v1 import move_pb2

pytestmark = pytest.mark.slow

MOVED, ABORTED = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two nodes of these tests alone: what they leave is counted."""
    with Fleet(tmp_path_factory.mktemp("staged"), TWO_NODES, fault_injection=True) as running:
        yield running


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_over_tcp_to_and_fro(client: Client, codec: str) -> None:
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        for number in range(4):
            assert shown(step(play)) == reference[number]
            asked = client.request_move(
                session.session_id,
                ("host-b", "host-a")[number % 2],
                transport="tcp",
                placement=Placement.DEVICE,
                codec=codec,
            )
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == MOVED, move
            plan = move.plan
            assert (plan.transport, plan.codec, plan.staged) == ("tcp", codec, True)
            assert plan.placement == int(Placement.DEVICE)
        assert shown(step(play)) == reference[4]
    client.close_session(session)
    reference.close()
    until("all memory is given back", lambda: all_free(client))


def test_what_the_wire_breaks_is_sent_again(client: Client) -> None:
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        for times, state in ((0, ABORTED), (1, MOVED)):
            asked = client.request_move(
                session.session_id,
                "host-b",
                transport="tcp",
                placement=Placement.DEVICE,
                faults=[Fault(FaultKind.FLIP, chunk=1, times=times)],
            )
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == state, move
            assert shown(step(play)) == reference[play.next_block - 1]
        assert move.retried_chunks == 1
        assert play.host_id == "host-b"
    client.close_session(session)
    reference.close()


@pytest.mark.parametrize("at", ["freeze", "verify"])
@pytest.mark.parametrize("victim", ["host-b", "mover-a", "mover-b"])
def test_a_process_dies_while_buffers_are_mapped(own_fleet: Fleet, victim: str, at: str) -> None:
    with Client(own_fleet.target) as client:
        reference = Reference(client, "host-a").upto(4)
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(
                session.session_id, "host-b", transport="tcp", placement=Placement.DEVICE, faults=[hold(at, 3.0)]
            )
            await_hold(client, asked.move_id, at)
            own_fleet.kill(victim)
            own_fleet.restart(victim)
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == ABORTED, move
            assert shown(step(play)) == reference[1]
            assert play.host_id == "host-a"
        client.close_session(session)
        reference.close()

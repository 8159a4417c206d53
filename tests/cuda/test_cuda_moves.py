"""Fleets of real processes on GPUs, one engine host each: moves through the three services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from e2e_tools import Reference, all_free, await_hold, hold, shown, step, until

from worldline.client import Client
from worldline.fleet import ONE_NODE, Fleet
from worldline.move import Fault, FaultKind
from worldline.plan import Placement
from worldline.v1 import move_pb2

pytestmark = pytest.mark.cuda

MOVED, ABORTED = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED


def _fleet(directory: Path) -> Fleet:
    last = torch.cuda.device_count() - 1
    options = {
        "host-a": {"device": "cuda:0"},
        "host-b": {"device": f"cuda:{last}"},
        "enginehost": {"budget_bytes": 4 << 30},
        "admission": {"heartbeat_s": 0.2, "silent_s": 1.0, "stall_s": 1.0, "no_progress_s": 2.0},
    }
    return Fleet(directory, ONE_NODE, fault_injection=True, options=options)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with _fleet(tmp_path_factory.mktemp("gpus")) as running:
        yield running


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.target) as opened:
        yield opened


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_sessions_play_on_exactly(client: Client, preset: str) -> None:
    reference = Reference(client, "host-a", preset)
    session = client.place("window-rewrite", preset, 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        for number in range(4):
            assert shown(step(play)) == reference[number]
            move = client.move(session.session_id, ("host-b", "host-a")[number % 2], timeout_s=60)
            assert move.state == MOVED, move
            assert (move.plan.transport, move.plan.placement) == ("local", int(Placement.DEVICE))
        assert shown(step(play)) == reference[4]
    client.close_session(session)
    reference.close()
    until("all memory is given back", lambda: all_free(client))


def test_flips_on_the_device(client: Client) -> None:
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        bad = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.FLIP, chunk=2, times=0)])
        move = client.wait(bad.move_id, timeout_s=60)
        assert (move.state, move.reason) == (ABORTED, "CHUNK_MISMATCH"), move
        assert shown(step(play)) == reference[1]
        once = client.request_move(session.session_id, "host-b", faults=[Fault(FaultKind.FLIP, chunk=1)])
        move = client.wait(once.move_id, timeout_s=60)
        assert (move.state, move.retried_chunks) == (MOVED, 1), move
        assert shown(step(play)) == reference[2]
        assert play.host_id == "host-b"
    client.close_session(session)
    reference.close()


def test_what_no_mover_can_map_is_rejected(client: Client) -> None:
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    asked = client.request_move(session.session_id, "host-b", transport="tcp", placement=Placement.PIPELINED)
    assert asked.verdict.kind == move_pb2.VERDICT_KIND_REJECT, asked
    client.close_session(session)


@pytest.mark.parametrize("at", ["freeze", "verify"])
@pytest.mark.parametrize("victim", ["host-b", "mover-a"])
def test_a_process_dies_while_the_region_is_mapped(tmp_path: Path, victim: str, at: str) -> None:
    with _fleet(tmp_path / "fleet") as fleet, Client(fleet.target) as client:
        reference = Reference(client, "host-a").upto(4)
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold(at, 3.0)])
            await_hold(client, asked.move_id, at)
            fleet.kill(victim)
            fleet.restart(victim)
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == ABORTED, move
            assert shown(step(play)) == reference[1]
            assert play.host_id == "host-a"
        client.close_session(session)
        reference.close()


@pytest.mark.parametrize("at", ["freeze", "verify"])
def test_the_source_dies_while_its_region_is_mapped(tmp_path: Path, at: str) -> None:
    with _fleet(tmp_path / "fleet") as fleet, Client(fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        other = client.place("window-rewrite", "tiny", 43, host_id="host-b")
        asked = client.request_move(session.session_id, "host-b", faults=[hold(at, 3.0)])
        await_hold(client, asked.move_id, at)
        fleet.kill("host-a")
        fleet.restart("host-a")
        move = client.wait(asked.move_id, timeout_s=60)
        assert move.state in (ABORTED, move_pb2.MOVE_STATE_LOST), move
        with client.play(other, patience_s=60) as play:
            step(play)
        client.close_session(other)
        until("the staged copy is dropped", lambda: all_free(client))

"""`worldline inspect` on a session of a running fleet: found wherever it lives, seen block by block, left as it was."""

from __future__ import annotations

import json
import threading

import pytest
from e2e_tools import SEED, Reference, shown, step

from worldline import rpc
from worldline.cli.main import main
from worldline.client import Client
from worldline.errors import Owned, Precondition
from worldline.fleet import Fleet
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import move_pb2

BLOCKS = 4
pytestmark = pytest.mark.slow


def test_a_moved_session_is_inspected_where_it_lives(
    fleet: Fleet, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    session = client.place("window-rewrite", "tiny", SEED, host_id="host-a")
    reference = Reference(client, "host-a")
    answers: list[int] = []
    words = ["inspect", session.session_id, "--target", fleet.target, "--blocks", str(BLOCKS), "--json"]
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        assert client.move(session.session_id, "host-b").state == move_pb2.MOVE_STATE_MOVED
        inspecting = threading.Thread(target=lambda: answers.append(main(words)))
        inspecting.start()
        # However many blocks are played before it begins and after it has ended.
        while inspecting.is_alive():
            assert shown(step(play)) == reference[play.next_block - 1]
        inspecting.join()
    assert answers == [0]
    found = json.loads(capsys.readouterr().out)
    first = found["blocks"][0]["first_block"]
    assert [(step["first_block"], step["blocks"]) for step in found["blocks"]] == [
        (first + number, 1) for number in range(BLOCKS)
    ]
    assert {step["dirty_bytes"] for step in found["blocks"]} == {found["blocks"][0]["dirty_bytes"]}
    assert 0.7 < found["dirty_share"] < 0.8
    assert found["cold"]["written"] == []
    assert 0.4 < found["wire_share"] < 0.8
    client.close_session(session)


def test_a_move_is_not_kept_waiting(client: Client) -> None:
    session = client.place("window-rewrite", "tiny", SEED, host_id="host-a")
    reference = Reference(client, "host-a")
    asked = pb.InspectSessionRequest(session_id=session.session_id, blocks=1000)
    with client.play(session, with_state_crc=True) as play, client.host(session.address) as stub:
        told = stub.InspectSession(asked, timeout=120)
        assert next(told).HasField("session")
        for _ in range(3):
            assert shown(step(play)) == reference[play.next_block - 1]
        assert client.move(session.session_id, "host-b").state == move_pb2.MOVE_STATE_MOVED
        with pytest.raises((Precondition, Owned)) as caught, rpc.calling("host-a"):
            assert all(response.HasField("boundary") for response in told)
        # Gone, or still frozen when it came to the next boundary.
        assert caught.value.reason in ("SESSION_GONE", "SESSION_OWNED")
        for _ in range(3):
            assert shown(step(play)) == reference[play.next_block - 1]
    client.close_session(session)


def test_what_is_not_there(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such", "--target", fleet.target]) == 3
    assert "no-such" in capsys.readouterr().err

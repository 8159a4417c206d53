"""Suspend, resume and prewarm as an operator uses them: on a whole fleet, by the command line, between moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_tools import SEED, Reference, shown, step, until

from worldline.cli.main import main
from worldline.client import AsyncClient, Client
from worldline.errors import NotFound
from worldline.fleet import ONE_NODE, Fleet
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import move_pb2
from worldline.v1.engine_host_service_pb2 import SESSION_STATE_LIVE, SESSION_STATE_SUSPENDED, SessionInfo

pytestmark = pytest.mark.slow
PRESET = "window-rewrite/tiny"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = {
        "enginehost": {"suspend_bytes": 8 << 20, "warm_slots": f"{PRESET}:1"},
        "admission": {"heartbeat_s": 0.1},
    }
    with Fleet(tmp_path_factory.mktemp("warm"), ONE_NODE, options=options) as running:
        yield running


@pytest.fixture
def client(warm: Fleet) -> Iterator[Client]:
    with Client(warm.target) as opened:
        yield opened


def told(client: Client, host_id: str) -> pb.EngineHostInfo:
    return next(host for host in client.hosts() if host.registration.host_id == host_id)


def info(client: Client, session_id: str) -> SessionInfo:
    """What its host told last; nothing before its next heartbeat."""
    every = (item for host in client.hosts() for item in host.status.sessions)
    return next((item for item in every if item.descriptor.session_id == session_id), SessionInfo())


def test_a_session_is_suspended_resumed_and_moved_as_if_it_never_was(
    warm: Fleet, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", SEED, host_id="host-a")
    command = ["--target", warm.target]
    played = []
    with client.play(session, with_state_crc=True) as play:
        played += [shown(step(play)) for _ in range(2)]
        assert main(["suspend", session.session_id, *command]) == 0
        assert "freed" in capsys.readouterr().out
        until("admission hears", lambda: info(client, session.session_id).state == SESSION_STATE_SUSPENDED)
        assert info(client, session.session_id).host_memory_bytes == info(client, session.session_id).state_bytes
        played.append(shown(step(play)))  # the player acts, and so opens it again
    assert main(["suspend", session.session_id, "--json", *command]) == 0
    assert json.loads(capsys.readouterr().out)["session"]["state"] == "SESSION_STATE_SUSPENDED"
    assert main(["resume", session.session_id, *command]) == 0
    assert "is live" in capsys.readouterr().out
    until("admission hears", lambda: info(client, session.session_id).state == SESSION_STATE_LIVE)
    client.suspend(session.session_id)
    move = client.move(session.session_id, "host-b", timeout_s=30)
    assert (move.state, move.destination_host_id) == (move_pb2.MOVE_STATE_MOVED, "host-b")
    with client.play(session, with_state_crc=True) as play:
        played += [shown(step(play)) for _ in range(2)]
    reference.upto(len(played))
    assert played == [reference[index] for index in range(len(played))]
    client.close_session(session)
    reference.close()


def test_hosts_tell_how_warm_they_are_and_are_warmed_on_request(
    warm: Fleet, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    until("nobody is there", lambda: not told(client, "host-b").status.sessions)
    until("a slot ahead", lambda: told(client, "host-b").status.warm_bytes > 0)
    status = told(client, "host-b").status
    (entry,) = [entry for entry in status.presets if entry.preset == PRESET]
    assert (entry.warm, entry.slots) == (True, 1)
    assert entry.first_touch_s > 0
    assert not next(entry for entry in status.presets if entry.preset == "window-rewrite/small").warm
    assert status.warm_bytes < status.free_bytes == told(client, "host-b").registration.budget_bytes
    assert main(["prewarm", "host-b", PRESET, "--slots", "3", "--target", warm.target]) == 0
    assert "3 slots allocated ahead" in capsys.readouterr().out
    until("admission hears", lambda: told(client, "host-b").status.warm_bytes == 3 * status.warm_bytes)
    assert main(["prewarm", "host-b", "tiny", "--target", warm.target]) == 3
    with pytest.raises(NotFound, match="host-a, host-b"):
        client.prewarm("host-c", "window-rewrite", "tiny")
    client.prewarm("host-b", "window-rewrite", "tiny", 1)


def test_an_asyncio_client_does_the_same(warm: Fleet) -> None:
    async def asked() -> None:
        async with AsyncClient(warm.target) as client:
            session = await client.place("window-rewrite", "tiny", SEED, host_id="host-a")
            suspended = await client.suspend(session.session_id)
            assert suspended.session.state == SESSION_STATE_SUSPENDED
            assert suspended.freed_bytes > 0
            assert (await client.resume(session.session_id)).session.state == SESSION_STATE_LIVE
            with pytest.raises(NotFound, match="host-a, host-b"):
                await client.prewarm("host-c", "window-rewrite", "tiny")
            warmed = await client.prewarm("host-b", "window-rewrite", "tiny", 1)
            assert warmed.slots >= 1
            assert {host.registration.host_id for host in await client.hosts()} == {"host-a", "host-b"}
            with Client(warm.target) as other:
                other.close_session(session)

    asyncio.run(asked())


def test_what_cannot_be_suspended_says_why(warm: Fleet, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suspend", "nobody", "--target", warm.target]) == 3
    assert "UNKNOWN_SESSION" in capsys.readouterr().err
    session = client.place("window-rewrite", "small", 1, host_id="host-a")
    assert main(["suspend", session.session_id, "--target", warm.target]) == 3
    assert "SUSPEND_OFF" in capsys.readouterr().err
    client.close_session(session)


def test_documentation_names_the_settings() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text()
    assert all(name in text for name in ("--suspend-bytes", "--warm-slots", "worldline prewarm"))

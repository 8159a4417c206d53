"""Draining a node of real processes while its sessions are played, with admission killed in the middle."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator

import pytest
from e2e_tools import SEED, Reference, all_free, owners, shown, step, until

from worldline.cli.main import main
from worldline.client import Client, Play
from worldline.fleet import Fleet, Node
from worldline.v1 import admission_service_pb2 as pb

NODES = tuple(Node(f"mover-{name}", (f"host-{name}",)) for name in "abc")
# Enough to be played before, during and after the drain.
BLOCKS = 40


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Shared by both tests, which close their sessions and undrain their hosts."""
    options = {"admission": {"heartbeat_s": 0.2, "silent_s": 1.0}}
    with Fleet(tmp_path_factory.mktemp("drained"), NODES, options=options) as running:
        yield running


class Players:
    """Plays sessions, each in its own thread, and keeps what it saw."""

    def __init__(self, plays: list[Play]) -> None:
        self.seen: list[list[tuple[int, bytes, int | None]]] = [[] for _ in plays]
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._play, args=(play, seen), daemon=True)
            for play, seen in zip(plays, self.seen, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _play(self, play: Play, seen: list[tuple[int, bytes, int | None]]) -> None:
        try:
            for _ in range(BLOCKS):
                seen.append(shown(step(play)))
        except BaseException as error:
            self.failures.append(error)

    def join(self) -> None:
        """Until all have played their blocks."""
        for thread in self._threads:
            thread.join(120)


def test_a_node_is_drained_while_it_is_played_and_admission_is_killed(three_nodes: Fleet) -> None:
    fleet = three_nodes
    with Client(fleet.target) as client:
        reference = Reference(client, "host-b").upto(BLOCKS)
        reference.close()
        sessions = [client.place("window-rewrite", "tiny", SEED, host_id="host-a") for _ in range(3)]
        plays = [client.play(session, with_state_crc=True, patience_s=60) for session in sessions]
        players = Players(plays)
        asked = client.drain("host-a", patience_s=60)
        for schedule in client.watch_schedule(asked.schedule_id):
            if any(each.state == pb.STEP_STATE_MOVING for each in schedule.steps):
                break
        fleet.kill("admission")
        with sqlite3.connect(fleet.directory / "journal.sqlite") as journal:
            left = [state for (state,) in journal.execute("SELECT state FROM steps")]
        journal.close()
        assert {pb.STEP_STATE_WAITING, pb.STEP_STATE_MOVING}.intersection(left), "the drain was over too early"
        fleet.restart("admission")
        *_, ended = client.watch_schedule(asked.schedule_id, timeout_s=60)
        players.join()
        assert players.failures == []
        assert ended.state == pb.SCHEDULE_STATE_DONE
        assert [each.state for each in ended.steps] == [pb.STEP_STATE_MOVED] * 3
        where = {session.session_id: client.locate(session.session_id).host_id for session in sessions}
        assert set(where.values()) == {"host-b", "host-c"}
        for session in sessions:
            until("its owner is known", lambda id_=session.session_id: owners(client, id_) == [where[id_]])
        for seen in players.seen:
            assert seen == [reference[index] for index in range(BLOCKS)]
        drained = {host.registration.host_id: host.status.draining for host in client.hosts()}
        assert drained == {"host-a": True, "host-b": False, "host-c": False}
        placed = client.place("window-rewrite", "tiny", SEED)
        assert placed.host_id != "host-a"
        client.close_session(placed)
        for play, session in zip(plays, sessions, strict=True):
            play.close()
            client.close_session(session)
        client.undrain("host-a")
        until("all is free", lambda: all_free(client))


def test_the_command_drains_and_plans(three_nodes: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    target = ("--target", three_nodes.target)
    with Client(three_nodes.target) as client:
        sessions = [client.place("window-rewrite", "tiny", SEED, host_id="host-a") for _ in range(2)]
        assert main(["drain", "host-a", "--dry-run", *target]) == 0
        assert "2 rounds" in capsys.readouterr().out
        assert main(["drain", "host-a", "--json", *target]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["host_id"]) == ("SCHEDULE_STATE_DONE", "host-a")
        assert main(["hosts", *target]) == 0
        assert "draining" in capsys.readouterr().out
        assert main(["undrain", "host-a", *target]) == 0
        assert main(["plan", *(f"{each.session_id}=host-a" for each in sessions), *target]) == 0
        out = capsys.readouterr().out
        assert "2 moved" in out
        assert "MOVED" in out
        assert main(["schedule", told["schedule_id"], *target]) == 0
        assert "drain of host-a" in capsys.readouterr().out
        assert main(["moves", *target]) == 0
        assert "to wire" in capsys.readouterr().out
        for session in sessions:
            assert client.locate(session.session_id).host_id == "host-a"
            client.close_session(session)
        until("all is free", lambda: all_free(client))

"""Two engine hosts that claim one id from two state directories: a higher incarnation alone fences nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e_tools import Reference, shown, step, until

from worldline.client import Client
from worldline.errors import SessionLost
from worldline.fleet import Fleet
from worldline.v1 import admission_service_pb2 as pb

pytestmark = pytest.mark.slow


@contextmanager
def twin_of(fleet: Fleet, name: str, directory: Path) -> Iterator[Path]:
    """A second process of a host, from a directory whose incarnation is far ahead. Gives its log."""
    (directory / "regions").mkdir(parents=True)
    (directory / f"{name}.lock").write_text(f"{7:020}\n")
    command = list(fleet.members[name].command)
    for option, value in (
        ("--listen", "127.0.0.1:0"),
        ("--state-dir", str(directory)),
        ("--regions-dir", str(directory / "regions")),
    ):
        command[command.index(option) + 1] = value
    path = directory / "twin.log"
    with path.open("wb") as log:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log) as process:
            try:
                yield path
            finally:
                process.terminate()
                process.wait(20)


def registered(client: Client, host_id: str) -> pb.EngineHostInfo:
    return next(host for host in client.hosts() if host.registration.host_id == host_id)


def test_a_twin_waits_until_the_first_is_gone(own_fleet: Fleet, tmp_path: Path) -> None:
    with Client(own_fleet.target) as client:
        reference = Reference(client, "host-b")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            with twin_of(own_fleet, "host-a", tmp_path / "other") as log:
                refusals = "another state directory"
                until("the twin is refused", lambda: log.read_text().count(refusals) >= 2, 60)
                # The first has lost nothing, also across a restart of admission.
                own_fleet.kill("admission")
                told = log.read_text().count(refusals)
                own_fleet.restart("admission")
                until("the twin is refused again", lambda: log.read_text().count(refusals) > told, 60)
                until("the first has joined again", lambda: registered(client, "host-a").ready)
                for index in (1, 2):
                    assert shown(step(play)) == reference[index]
                assert registered(client, "host-a").registration.incarnation == 1
                assert own_fleet.members["host-a"].running
                # Once it is dead and was silent, the twin has the id, and what died with the first is lost.
                own_fleet.kill("host-a")
                until("the twin has joined", lambda: registered(client, "host-a").registration.incarnation == 8, 60)
                with pytest.raises(SessionLost):
                    client.locate(session.session_id)
                # A start from the first directory is the older one now, and ends.
                own_fleet.restart("host-a")
                until("it ends", lambda: not own_fleet.members["host-a"].running)
        reference.close()

"""Two admission processes over one journal, with real hosts and movers: the leader dies, or is stopped and wakes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e_tools import Reference, await_hold, hold, shown, step, until
from postgres_server import Server

from worldline import errors, health
from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2

pytestmark = pytest.mark.postgres

SERVICE = "worldline.v1.AdmissionService"
LEASE_S = 2.0
SETTINGS = {"heartbeat_s": 0.2, "silent_s": 2.0, "stall_s": 1.0, "lease_s": LEASE_S}


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


@dataclass
class Replicated:
    """A fleet with a second admission process beside its own."""

    fleet: Fleet
    second: subprocess.Popen[bytes]
    addresses: list[str]

    @property
    def target(self) -> str:
        return ",".join(self.addresses)


@pytest.fixture
def replicated(tmp_path: Path, _support_on_path: None) -> Iterator[Replicated]:
    server = Server()
    url = server.new_journal()
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    everywhere = {"admission": ",".join(addresses)}
    options = {"admission": {"journal": url, **SETTINGS}, "mover": everywhere, "enginehost": everywhere}
    fleet = Fleet(tmp_path / "fleet", TWO_NODES, fault_injection=True, options=options, port=ports[0])
    command = [sys.executable, "-m", "admission", "--exit-with-parent", "--fault-injection", "true"]
    command += ["--listen", addresses[1], "--journal", url]
    for name, value in SETTINGS.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    try:
        with fleet:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as second:
                assert second.stdout is not None
                assert json.loads(second.stdout.readline())["term"] == 0
                yield Replicated(fleet, second, addresses)
                second.kill()
    finally:
        server.remove()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_move_and_its_player_outlive_the_leader(replicated: Replicated, end: signal.Signals) -> None:
    fleet, (first, second) = replicated.fleet, replicated.addresses
    with Client(replicated.target) as client:
        reference = Reference(client, "host-a")
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("release", 0.5)])
            await_hold(client, asked.move_id, "release")
            fleet.signal("admission", end)
            until("the other leads", lambda: health.check(second, SERVICE) == "SERVING", 60)
            with Client(second) as other:
                until("it is moved", lambda: other.get_move(asked.move_id).state == move_pb2.MOVE_STATE_MOVED, 60)
            for index in (1, 2, 3):
                assert shown(step(play)) == reference[index]
            assert play.host_id == "host-b"
            if end is signal.SIGSTOP:
                fleet.signal("admission", signal.SIGCONT)
                until("it stands by", lambda: health.check(first, SERVICE) == "NOT_SERVING", 60)
                with Client(first) as woken, pytest.raises(errors.Unavailable) as refusal:
                    woken.locate(session.session_id)
                assert refusal.value.reason == "NOT_LEADER"
            until("hosts have joined", lambda: all(host.ready for host in client.hosts()), 60)
            back = client.move(session.session_id, "host-a", timeout_s=60)
            assert back.state == move_pb2.MOVE_STATE_MOVED, back
            for index in (4, 5):
                assert shown(step(play)) == reference[index]
            assert play.host_id == "host-a"

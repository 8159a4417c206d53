"""The health check that compose.yaml runs inside each container."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from worldline.rpc import DATAPATH, Server
from worldline.settings import ServiceSettings, load


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server(load(ServiceSettings), ("a.Service",))
    started.start()
    yield started
    started.stop(0)


def _check(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "worldline.health", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return ran.returncode, (ran.stdout + ran.stderr).strip()


def test_status_follows_the_service(server: Server) -> None:
    assert _check(server.address) == (0, "SERVING")
    assert _check(server.address, "a.Service") == (0, "SERVING")
    server.set_serving(DATAPATH, False)
    assert _check(server.address, DATAPATH) == (1, "NOT_SERVING")
    server.set_serving(DATAPATH, True)
    assert _check(server.address, DATAPATH) == (0, "SERVING")


def test_what_does_not_answer_is_unhealthy(server: Server) -> None:
    status, said = _check(server.address, "unknown.Service")
    assert (status, said.split(":")[0]) == (1, "NOT_FOUND")
    status, said = _check("127.0.0.1:1")
    assert (status, said.split(":")[0]) == (1, "UNAVAILABLE")
    assert _check()[0] == 1

"""`worldline demo` as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from worldline.client import Client
from worldline.fleet import Fleet

STAGES = {"reserve", "freeze", "wire", "verify", "release", "commit"}


def demo(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "worldline.cli.main", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_against_a_running_fleet(fleet: Fleet) -> None:
    status, printed = demo("--target", fleet.target, "--json", "--blocks", "12", "--moves", "2")
    assert status == 0, printed
    shown = json.loads(printed)
    assert shown["blocks_equal"] == shown["blocks_played"] >= 12
    assert len(shown["moves"]) == 2
    for move in shown["moves"]:
        assert move["verdict"] == "ADMIT"
        assert move["receipts_equal"] is True
        assert set(move["stages_s"]) == STAGES
        assert move["bytes"] > 1_000_000
    control = shown["corrupted_control"]
    assert (control["installed"], control["source_plays_on"]) == (False, True)
    assert control["reason"] == "CHUNK_MISMATCH"
    with Client(fleet.target) as client:
        assert all(len(host.status.sessions) == 0 or host.ready for host in client.hosts())


@pytest.mark.slow
def test_with_a_fleet_of_its_own() -> None:
    status, printed = demo("--blocks", "8", "--moves", "1")
    assert status == 0, printed
    assert "all is well" in printed
    assert "CHUNK_MISMATCH" in printed

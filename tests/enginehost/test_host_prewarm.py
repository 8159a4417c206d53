"""Prewarming: weights and a first block before the host is ready, nothing of it left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, processes

from enginehost.prewarm import names_of, prewarm
from worldline.errors import BadRequest, Exhausted, NotFound


def test_names() -> None:
    assert names_of(" a/b, c/d ,") == [("a", "b"), ("c", "d")]
    for wrong in ("a", "a/", "/b"):
        with pytest.raises(BadRequest, match="engine/preset"):
            names_of(wrong)


def test_a_block_is_played_and_its_memory_given_back(tmp_path: Path) -> None:
    local = LocalHost(tmp_path, prewarm="toy/one,toy/one")
    played: list[object] = []
    local.engine.misbehave = played.append
    prewarm(local.host)
    assert len(played) == 1  # named twice
    assert (local.host.budget.free_bytes, local.host.sessions.count()) == (1 << 20, 0)
    local.close()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"prewarm": "toy/two"}, NotFound),
        ({"prewarm": "none/one"}, NotFound),
        ({"prewarm": "toy/one", "budget_bytes": 100}, Exhausted),
    ],
)
def test_what_cannot_be_prewarmed_is_told(tmp_path: Path, values: dict[str, object], kind: type[Exception]) -> None:
    local = LocalHost(tmp_path, **values)
    with pytest.raises(kind):
        prewarm(local.host)
    local.close()


def test_a_process_is_ready_when_it_is_warm(tmp_path: Path) -> None:
    with processes(tmp_path, "host-a", prewarm="window-rewrite/tiny") as (host,):
        lines = [json.loads(line) for line in host.log.read_text().splitlines() if line.startswith("{")]
    (warm,) = [line for line in lines if line.get("event") == "prewarmed"]
    assert (warm["engine"], warm["preset"]) == ("window-rewrite", "tiny")
    command = [sys.executable, "-m", "enginehost", "--prewarm", "nothing/there", "--state-dir", str(tmp_path)]
    ended = subprocess.run([*command, "--regions-dir", str(tmp_path)], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, b"nothing" in ended.stderr) == (2, True)

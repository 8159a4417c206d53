"""Every suite runs, on the smallest state and over loopback; what it measures then means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import suites
from worldline.cli.main import main


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in suites.SUITES if name != "tiny"])
def test_a_suite_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = ["--link", "0"] if name in suites.SHAPED else []
    arguments = [*link, "--preset", "tiny", "--runs", "1", "--anyway", "--json", "--out", str(tmp_path)]
    assert main(["bench", name, *arguments, "--picture", str(tmp_path / "list.svg")]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in printed["rows"]}
    for row in printed["rows"]:
        if row["runs"]:
            assert row["median_s"] > 0
            assert row["ratio_to"] in {"", *names}
        else:
            assert row["note"]
    assert sum(bool(row["runs"]) for row in printed["rows"]) >= 3
    assert (tmp_path / "list.svg").stat().st_size > 0

"""`worldline lab` as people call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from admission.lab.arms import ARMS
from worldline.cli.main import main

SMALL = ["lab", "--requests", "20", "--seeds", "1", "--loads", "1,2"]


def test_help_names_every_arm_in_a_screenful(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["lab", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {arm} " in text for arm in ARMS)
    assert len(text.splitlines()) < 60


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--arms", "ours,paper", "--fabric", "fluid"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["load", "arm"]
    assert [line.split()[:2] for line in lines[1:]] == [["1", "ours"], ["1", "paper"], ["2", "ours"], ["2", "paper"]]


def test_json_has_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--arms", "ours", "--json", "--layout", "cell", "--arrivals", "bursts"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fabric"]["senders"] == 2
    assert found["hidden"]["rate"] == 0.2
    for cell in found["cells"]:
        (seed,) = cell["seeds"]
        assert seed["on_time"] + seed["missed"] + seed["rejected"] == seed["offered"] == 20
        assert sum(seed["reasons"].values()) == seed["rejected"]


def test_hidden_errors_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--arms", "naive", "--json", "--rate-error", "0.01", "--freezes", "0"]) == 0
    hidden = json.loads(capsys.readouterr().out)["hidden"]
    assert (hidden["rate"], hidden["jitter"], hidden["freezes_per_s"]) == (0.01, 0.01, 0.0)


def test_a_plot(tmp_path: Path) -> None:
    path = tmp_path / "lab.png"
    assert main([*SMALL, "--arms", "ours,naive", "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    stamps = (f"2023-11-16 18:17:{number % 60:02}.{number:07}" for number in range(40))
    path.write_text("TIMESTAMP,ContextTokens\n" + "".join(f"{stamp},1\n" for stamp in stamps))
    assert main([*SMALL, "--arms", "ours", "--trace", str(path)]) == 0
    assert "ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "status", "what"),
    [
        (["--arms", "nobody"], 3, "no such arm: nobody"),
        (["--trace", "no.csv"], 3, "cannot read the trace no.csv"),
        (["--png", "no-such-folder/x.png"], 3, "no-such-folder"),
        (["--rate-error", "1.5"], 3, "rate error of 1.5"),
        (["--nodes", "1"], 3, "a move needs"),
        (["--loads", "0"], 2, "offered loads"),
        (["--loads", "a,b"], 2, "not a list of numbers"),
        (["--seeds", "0"], 2, "--seeds"),
    ],
)
def test_wrong_usage(options: list[str], status: int, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main([*SMALL, *options])
    except SystemExit as left:
        found = int(left.code or 0)
    assert found == status
    assert what in capsys.readouterr().err


def test_other_commands_do_not_load_what_only_the_lab_needs() -> None:
    heavy = "{'simpy', 'matplotlib', 'numpy'}"
    code = f"import sys, worldline.cli.main as m; m.parser(); print(sorted({heavy} & set(sys.modules)))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"

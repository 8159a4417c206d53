"""`worldline bench`: what it prints, stores and refuses; one tiny suite end to end."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import worldline
from benchmarks import attribution, child, peer_end, price_list, report, runner, suites
from benchmarks.attribution import Reading
from benchmarks.child import Child
from benchmarks.report import Row
from benchmarks.suite import Figures, Setup
from worldline.cli.main import main
from worldline.errors import Internal, NotFound, Unavailable, WorldlineError

FIGURES = Figures(
    [
        Row("ceiling", 1_000_000_000, "", [0.2, 0.1, 0.4]),
        Row("ours", 1_000_000_000, "ceiling", [0.4, 0.5, 0.25]),
        Row("a peer", 1_000_000_000, "ceiling", note="not installed"),
    ],
    {"chunk_bytes": 4},
    ["a sentence"],
)


def reading(at_s: float, load: float = 0.1) -> Reading:
    """A machine on which only this process ran, on both cores."""
    return Reading(at_s, 2, load, 2 * at_s, 0.0, 2 * at_s, 5.0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """Readings that are taken from the front; the suite `tiny` gives FIGURES."""
    readings = [reading(1.0), reading(2.0)]
    monkeypatch.setattr(attribution, "read", lambda: readings.pop(0))
    monkeypatch.setattr(suites, "load", lambda name: lambda setup: FIGURES)
    return readings


def test_what_is_stored(quiet: list[Reading], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--json", "--out", str(tmp_path / "new"), "--preset", "tiny"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "new" / "tiny.json").read_text())
    assert printed["suite"] == "tiny"
    assert printed["attributed"] is True
    assert printed["failures"] == []
    assert printed["notes"] == ["a sentence"]
    for name in (*attribution.FINGERPRINT, "at", "steal_s_during", "load_1min_at_start", "preset", "chunk_bytes"):
        assert name in printed["host"]
    assert [row["name"] for row in printed["rows"]] == ["ceiling", "ours", "a peer"]
    ours = printed["rows"][1]
    assert ours == {
        "name": "ours",
        "bytes": 1_000_000_000,
        "runs": 3,
        "median_s": 0.4,
        "min_s": 0.25,
        "max_s": 0.5,
        "ratio_to": "ceiling",
        "ratio": 0.5,
    }
    assert printed["rows"][2] == {"name": "a peer", "bytes": 1_000_000_000, "runs": 0, "note": "not installed"}


def test_what_is_printed(quiet: list[Reading], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    (ours,) = (line.split() for line in text.splitlines() if line.startswith("ours"))
    assert ours == ["ours", "400.0", "ms", "250.0", "ms", "500.0", "ms", "3", "2.50", "0.50", "ceiling"]
    assert "not installed" in text
    assert "a sentence" in text
    assert runner.UNATTRIBUTED not in text


def test_a_busy_machine_is_refused_before_anything_runs(
    quiet: list[Reading], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(setup: Setup) -> Figures:
        raise AssertionError("it ran")

    monkeypatch.setattr(suites, "load", lambda name: run)
    quiet[0] = reading(1.0, load=3.0)
    assert main(["bench", "tiny", "--out", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "NOT_ATTRIBUTABLE" in said.err
    assert "3.00 before the first run" in said.err
    assert list(tmp_path.iterdir()) == []


def test_figures_that_others_disturbed_are_not_printed(
    quiet: list[Reading], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet[1] = Reading(2.0, 2, 0.1, 4.0, 0.0, 3.0, 6.0)
    assert main(["bench", "tiny", "--out", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "other processes used 1.00 s, 50.0%" in said.err
    assert list(tmp_path.iterdir()) == []


def test_anyway_marks_them_and_replaces_nothing(
    quiet: list[Reading], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.json").write_text("figures that mean something")
    quiet[1] = Reading(2.0, 2, 0.1, 4.0, 0.0, 3.0, 6.0)
    picture = tmp_path / "list.svg"
    assert main(["bench", "tiny", "--anyway", "--out", str(tmp_path), "--picture", str(picture)]) == 0
    assert "tiny: UNATTRIBUTED" in capsys.readouterr().out
    stored = json.loads((tmp_path / "tiny.unattributed.json").read_text())
    assert stored["attributed"] is False
    assert len(stored["failures"]) == 1
    assert (tmp_path / "tiny.json").read_text() == "figures that mean something"
    assert "<svg" in picture.read_text()


def test_tiny_runs_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "tiny", "--anyway", "--json", "--runs", "1", "--preset", "tiny", "--out", str(tmp_path)]
    assert main(arguments) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in printed["rows"]}
    assert {"memcpy", "raw socket", "verify off", "the checksums of both ends", "verified"} < set(rows)
    assert all(row["runs"] == 1 and row["median_s"] > 0 for row in rows.values())
    assert rows["verified"]["ratio_to"] == "verify off"


def test_without_a_suite_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json"]) == 0
    assert [item["suite"] for item in json.loads(capsys.readouterr().out)] == list(suites.SUITES)


@pytest.mark.parametrize("arguments", [["nonsense"], ["tiny", "--preset", "nonsense"]])
def test_what_there_is_not(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 3
    assert "'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["-1", "x", "nan", "1001"])
def test_a_link_that_is_none(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "codec", "--link", rate])
    assert caught.value.code == 2


def test_a_link_for_suites_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "duplex", "--link", "1"]) == 3
    assert "tiny, duplex runs over loopback" in capsys.readouterr().err


def test_a_machine_that_cannot_shape_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench", "codec", "--link", "1", "--preset", "tiny", "--anyway", "--out", str(tmp_path)]) == 3
    assert "NO_SHAPED_LINKS" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_outside_a_checkout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(worldline, "__file__", "/nowhere/site-packages/worldline/__init__.py")
    assert main(["bench", "tiny"]) == 3
    assert "BENCHMARKS_NOT_HERE" in capsys.readouterr().err


def test_names_of_suites() -> None:
    assert suites.names(["all", "tiny", "move"]) == list(suites.SUITES)
    assert suites.names(["move", "move"]) == ["move"]
    with pytest.raises(NotFound):
        suites.names(["move", "moves"])
    for module, _ in suites.SUITES.values():
        assert importlib.util.find_spec(module) is not None, module


def test_a_collector_that_ends() -> None:
    with pytest.raises(Unavailable, match="ended with status 0") as caught:
        Child("benchmarks.child")
    assert caught.value.reason == "COLLECTOR_ENDED"


def test_a_collector_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "READY_S", 0.05)
    with pytest.raises(Unavailable, match=r"within 0\.05 s") as caught:
        Child("code")  # waits for input, behind a prompt without a line's end
    assert caught.value.reason == "COLLECTOR_SILENT"


def test_a_collector_that_says_something_else() -> None:
    with pytest.raises(Internal, match="in JSON"):
        Child("this")


def test_a_collector_that_rests_stands_still() -> None:
    with Child("benchmarks.grpc_stream", 4096, "127.0.0.1") as resting:
        resting.rest()
        resting.ask("address")
        with pytest.raises(Unavailable):
            resting.answer(0.1)
        with resting.awake():
            assert resting.told("address").startswith("127.0.0.1:")


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer_end.PEERS, "nobody", ("no_such_library", "benchmarks.no_such_end"))  # type: ignore[arg-type]
    assert peer_end.lack_of("nobody") == "not installed"
    monkeypatch.setitem(peer_end.PEERS, "nobody", ("json", "benchmarks.no_such_end"))  # type: ignore[arg-type]
    assert "No module named 'benchmarks.no_such_end'" in peer_end.lack_of("nobody")


def test_bars_of_the_price_list() -> None:
    bars = price_list.bars("suite", [*FIGURES.rows, Row("not of bytes", 0, "", [1.0])])
    assert [(bar.name, bar.median_s, bar.note) for bar in bars] == [
        ("ceiling", 0.2, ""),
        ("ours", 0.4, ""),
        ("a peer", None, "not installed"),
    ]
    half = price_list.bars("suite", [Row("half", 500_000_000, "", [0.1])])
    assert half[0].median_s == pytest.approx(0.2)


def test_a_suite_that_fails_stores_nothing(
    quiet: list[Reading], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(setup: Setup) -> Figures:
        raise Unavailable("a process has ended", reason="COLLECTOR_ENDED")

    monkeypatch.setattr(suites, "load", lambda name: run)
    with pytest.raises(WorldlineError, match="has ended"):
        runner.run(["tiny"], Setup(), runner.Wanted(anyway=True, directory=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_one_place_writes(tmp_path: Path) -> None:
    path = report.store("some", report.document(report.host(), [{"name": "a"}], {"more": 1}), tmp_path)
    stored = json.loads(path.read_text())
    assert stored["rows"] == [{"name": "a"}]
    assert stored["more"] == 1
    assert stored["host"]["steal_s_during"] >= 0

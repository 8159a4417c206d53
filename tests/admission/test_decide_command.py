"""`worldline decide` and `worldline map`: what the rules say, as people and programs read it."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from types import ModuleType

import pytest
from admission_cluster import SESSION, Cluster

from admission.cli.regime_map import fleet_points
from admission.cli.regimes import Point, Regime
from worldline.cli.main import main
from worldline.client import Client


def decided(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["decide", "--json", *arguments]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def mapped(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["map", "--json", *arguments]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["sessions"]
    return found


def test_the_grid_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    cells = decided(capsys)
    verdicts = {(cell["fabric_gbps"], cell["horizon_s"]): cell["verdict"] for cell in cells}
    assert len(verdicts) == 35
    assert {verdicts[10.0, horizon] for horizon in (0.1, 0.2, 0.4, 0.6, 1.0)} == {"REJECT"}
    assert {verdicts[400.0, horizon] for horizon in (0.1, 0.2, 0.4, 0.6, 1.0)} == {"ADMIT"}
    assert (verdicts[25.0, 0.4], verdicts[25.0, 0.6]) == ("REJECT", "ADMIT")
    refused = next(cell for cell in cells if (cell["fabric_gbps"], cell["horizon_s"]) == (25.0, 0.4))
    assert refused["reasons"] == ["PREDICTED_DEADLINE_MISS", "FLUX"]
    assert refused["predicted_s"] == pytest.approx(0.553, abs=0.0005)
    assert refused["bandwidth_needed_gbps"] == pytest.approx(33.4, abs=0.05)


def test_a_codec_admits_where_raw_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = decided(capsys, "--fabrics", "25", "--horizons", "0.4", "--codec", "ans")
    assert (cell["verdict"], cell["codec"]) == ("ADMIT", "ans")
    (cell,) = decided(capsys, "--fabrics", "25", "--horizons", "0.4", "--codec", "ans", "--idiom", "python")
    assert cell["verdict"] == "REJECT"
    (cell,) = decided(capsys, "--fabrics", "25", "--horizons", "0.4", "--codec", "0.644,230G,252G", "--setup", "0.0188")
    assert (cell["verdict"], cell["codec"]) == ("ADMIT", "codec")
    (cell,) = decided(capsys, "--fabrics", "36", "--horizons", "0.4", "--mode", "any")
    assert (cell["verdict"], cell["mode"]) == ("ADMIT", "FROZEN")


def test_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", "--fabrics", "7,100", "--horizons", "0.4", "--mode", "live"]) == 0
    shown = capsys.readouterr().out
    assert "S 1.67 GB, D 0.93 GB/s, C1, live, 18.8 ms setup" in shown
    assert "REJECT never" in shown
    assert "PRECOPY_DIVERGES" in shown
    assert "ADMIT 163 ms" in shown


def test_a_move_that_never_ends_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = decided(capsys, "--fabrics", "7", "--horizons", "0.4", "--mode", "live")
    assert (cell["predicted_s"], cell["margin_s"]) == (None, None)


def test_two_into_one_receiver_share_it(capsys: pytest.CaptureFixture[str]) -> None:
    alone, shared = (decided(capsys, "--fabrics", "60", "--horizons", "0.4", "--fan-in", count) for count in "12")
    assert [cell["verdict"] for cell in alone + shared] == ["ADMIT", "REJECT"]


def test_a_class_without_deadline_has_a_longest_freeze(capsys: pytest.CaptureFixture[str]) -> None:
    cells = decided(capsys, "--class", "C3", "--fabrics", "1", "--horizons", "10,20")
    assert [cell["reasons"] for cell in cells] == [["PREDICTED_FREEZE_TOO_LONG"], []]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["decide", "--state", "x"], 2, "not a number such as"),
        (["decide", "--fabrics", "10,-1"], 2, "not above 0"),
        (["decide", "--codec", "2,1G,1G"], 2, "neither 'ans' nor a ratio"),
        (["decide", "--fan-in", "0"], 2, "--fan-in"),
        (["decide", "--class", "C4", "--tier", "T1"], 3, "C4 is bit-exact replay"),
        (["decide", "--chunk", "100G"], 3, "a chunk of"),
        (["map", "--session", "1,2"], 2, "is not S,D,H"),
        (["map", "--session", "1G,-2,0.4"], 2, "below 0"),
        (["map", "--png", "/nowhere/at/all.png"], 3, "no directory"),
    ],
)
def test_wrong_usage_says_so(arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(arguments)
    except SystemExit as ended:
        found = int(str(ended.code))
    assert found == status
    assert told in capsys.readouterr().err


# --- the map


def test_the_papers_objects(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast, append = mapped(capsys)
    assert (slow["regime"], fast["regime"], append["regime"]) == ("LIVE", "FROZEN", "LIVE")
    assert (slow["precopy_converges"], fast["precopy_converges"]) == (True, False)
    assert main(["map"]) == 0
    assert "gate of S 1.67 GB, H 0.4 s: B = 33.4 Gb/s + D; phase line: D = B" in capsys.readouterr().out


def test_sessions_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    named, plain = mapped(capsys, "--session", "big=32G,17.8G,0.4", "--session", "1G,0,0", "--fabric", "700")
    assert (named["name"], named["regime"]) == ("big", "FROZEN")
    assert named["live_gate_Bps"] == pytest.approx(783 / 8 * 1e9, rel=0.001)
    assert (plain["name"], plain["regime"], plain["frozen_gate_Bps"]) == ("1G,0,0", "LIVE", 0.0)


def test_both_sides_of_each_line() -> None:
    at = Point("s", 4e9, 1e9, 1.0, 5e9)
    assert at.regime is Regime.LIVE
    assert Point("s", 4e9, 1e9, 1.0, 4.999e9).regime is Regime.FROZEN
    assert Point("s", 4e9, 1e9, 1.0, 3.999e9).regime is Regime.INADMISSIBLE
    assert Point("s", 4e9, None, 1.0, 3.999e9).regime is Regime.INADMISSIBLE
    assert Point("s", 4e9, None, 1.0, 5e9).regime is None
    assert Point("s", 4e9, 1e9, 1.0, None).regime is None
    assert Point("s", 4e9, 1e9, 0.0, 1e9).regime is Regime.FROZEN  # D = B: a live move never ends


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_map_as_a_picture(form: str, begins: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"map.{form}"
    mapped(capsys, f"--{form}", str(path), "--session", "still=1G,0,0")
    assert path.read_bytes().startswith(begins)


def test_without_matplotlib_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = builtins.__import__

    def none_of_it(name: str, *rest: object, **named: object) -> ModuleType:
        if name == "matplotlib":
            raise ImportError(name)
        return imported(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", none_of_it)
    assert main(["map", "--png", str(tmp_path / "map.png")]) == 3
    assert "pip install 'worldline[plots]'" in capsys.readouterr().err
    assert main(["map"]) == 0


def test_the_sessions_of_a_fleet(cluster: Cluster) -> None:
    cluster.with_session()
    with Client(cluster.address) as client:
        (point,) = fleet_points(client)
        assert (point.name, point.horizon_s, point.regime) == (SESSION, 5.0, Regime.LIVE)
        assert point.dirty_rate_Bps == point.state_bytes / 2 / 0.1
        assert point.note == "on host-a, to host-b: ADMIT"
        cluster.hold_mover()
        cluster.move()
        (moving,) = fleet_points(client)
    assert (moving.bandwidth_Bps, moving.regime, moving.note) == (None, None, "on host-a: SESSION_OWNED")


def test_the_fleet_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "--fleet", "--target", "127.0.0.1:1"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err

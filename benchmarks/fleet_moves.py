"""Whole moves of one session between two nodes of a fleet, for suites that show them beside bare transfers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.namespaces import Link
from benchmarks.suite import ENGINE
from worldline.client import Client
from worldline.errors import Unavailable
from worldline.fleet import TWO_NODES, Fleet
from worldline.plan import Placement
from worldline.v1 import move_pb2


def moves_of(link: Link, preset: str, runs: int, placement: Placement | None = None) -> list[move_pb2.Move]:
    """A session moved to and fro between the places "a" and "b", a block played between moves; the first is left out.

    With a placement moves go raw over tcp with it; without, admission chooses.

    Raises:
        Unavailable: a move did not end as MOVED.
    """
    # Rates are measured here, not patience: a busy machine makes a slow one, not a failed one.
    admission: dict[str, str | int | float | bool] = {"listen": f"{link.hub}:0", "no_progress_s": 20.0}
    settings = {"admission": admission}
    within: dict[str, Sequence[str]] = {}
    for name in "ab":
        address = f"{link.places[name].address}:0"
        settings[f"mover-{name}"] = {"listen": address, "data_listen": address}
        settings[f"host-{name}"] = {"listen": address}
        within[f"mover-{name}"] = within[f"host-{name}"] = link.places[name].within
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="worldline-bench-") as directory,
        Fleet(Path(directory), TWO_NODES, options=settings, within=within) as fleet,
        Client(fleet.target) as client,
    ):
        session = client.place(ENGINE, preset, 1, host_id="host-a")
        with client.play(session, patience_s=120) as play:
            for number in range(runs + 1):
                play.step(bytes(play.action_bytes))
                to = ("host-b", "host-a")[number % 2]
                if placement is None:
                    asked = client.request_move(session.session_id, to)
                else:
                    asked = client.request_move(
                        session.session_id, to, transport="tcp", codec="raw", placement=placement
                    )
                move = client.wait(asked.move_id, timeout_s=120)
                if move.state != move_pb2.MOVE_STATE_MOVED:
                    raise Unavailable(f"a move of the benchmark failed: {move.reason}: {move.message}")
                found.append(move)
        client.close_session(session)
    return found[1:]

"""A path that nothing moves on is probed, mover to mover, and what is known of it stays fresh."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from e2e_tools import SEED, until

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2


def test_an_idle_path_is_probed(tmp_path: Path) -> None:
    options = {"admission": {"probe_idle_s": 0.4}}
    with Fleet(tmp_path / "fleet", TWO_NODES, options=options) as fleet, Client(fleet.target) as client:

        def pace() -> tuple[float, float]:
            """Weight and mean of what is known of each byte from host-a's mover to host-b's."""
            with sqlite3.connect(fleet.directory / "journal.sqlite") as journal:
                rows = journal.execute(
                    "SELECT weight, mean FROM estimates WHERE quantity = 'pace_s_per_byte' AND source_mover = 'mover-a'"
                ).fetchall()
            journal.close()
            return rows[0] if rows else (0.0, 0.0)

        session = client.place("window-rewrite", "tiny", SEED, host_id="host-a")
        assert client.move(session.session_id, "host-b").state == move_pb2.MOVE_STATE_MOVED
        # So small a state measures no bandwidth: whatever is learned of it now, a probe has measured.
        until("the path was probed twice", lambda: pace()[0] >= 2)
        assert 1e7 < 1 / pace()[1] < 1e12
        client.close_session(session)

"""A journal of an older release is taken over whole or not at all; one of a newer release is refused by name."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from journal_tools import PLAN, advance, lease, record, session

from admission import journal_migrations
from admission.journal import Journal
from admission.journal_rows import PlacementRow
from admission.journal_schema import TABLES, VERSION
from admission.machine import EventKind, Phase, State
from admission.record import MoveRecord, move_to
from worldline import errors
from worldline.move import StageTimes
from worldline.receipt import Receipt, Side

# As the first release made it.
VERSION_1 = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hosts (
    host_id TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, fenced INTEGER NOT NULL, fence_reason TEXT NOT NULL,
    registration BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY, host_id TEXT NOT NULL, incarnation INTEGER NOT NULL, epoch INTEGER NOT NULL,
    lost INTEGER NOT NULL, move_id TEXT NOT NULL, info BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS sessions_by_host ON sessions (host_id);
CREATE INDEX IF NOT EXISTS sessions_lost ON sessions (lost) WHERE lost > 0;
CREATE TABLE IF NOT EXISTS moves (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, move_id TEXT UNIQUE NOT NULL, request_id TEXT UNIQUE NOT NULL,
    request_digest BLOB NOT NULL, session_id TEXT NOT NULL, phase INTEGER NOT NULL, closed INTEGER NOT NULL,
    source_dead INTEGER NOT NULL, destination_dead INTEGER NOT NULL,
    source_incarnation INTEGER NOT NULL, source_address TEXT NOT NULL,
    destination_incarnation INTEGER NOT NULL, destination_address TEXT NOT NULL,
    grant_token BLOB NOT NULL, traceparent TEXT NOT NULL, move BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS moves_by_session ON moves (session_id, sequence);
CREATE INDEX IF NOT EXISTS moves_open ON moves (closed) WHERE closed = 0;
CREATE TABLE IF NOT EXISTS transitions (
    move_id TEXT NOT NULL, line INTEGER NOT NULL, at_s REAL NOT NULL, before INTEGER NOT NULL, event TEXT NOT NULL,
    after INTEGER NOT NULL, effects TEXT NOT NULL, PRIMARY KEY (move_id, line)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    move_id TEXT PRIMARY KEY, host_id TEXT NOT NULL, slot_bytes INTEGER NOT NULL, begins_s REAL NOT NULL,
    ends_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS placements (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT UNIQUE NOT NULL, request_digest BLOB NOT NULL,
    host_id TEXT NOT NULL, incarnation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS profile (
    source_mover TEXT NOT NULL, destination_mover TEXT NOT NULL, transport TEXT NOT NULL,
    bandwidth_Bps REAL NOT NULL, setup_s REAL NOT NULL, moves INTEGER NOT NULL,
    PRIMARY KEY (source_mover, destination_mover, transport));
"""


def write_move(db: sqlite3.Connection, move: MoveRecord) -> None:
    """As the first release wrote it: one message, whole but for the transitions."""
    values = (
        move.sequence,
        move.move_id,
        move.request_id,
        move.request_digest,
        move.session_id,
        int(move.phase),
        int(move.phase.closed),
        0,
        0,
        move.source.incarnation,
        move.source.address,
        move.destination.incarnation,
        move.destination.address,
        move.grant,
        move.traceparent,
        move_to(replace(move, transitions=())).SerializeToString(),
    )
    db.execute(f"INSERT INTO moves VALUES ({', '.join('?' * len(values))})", values)
    for number, line in enumerate(move.transitions):
        effects = "\n".join(line.effects)
        cells = (move.move_id, number, line.at_s, int(line.before), line.event, int(line.after), effects)
        db.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?)", cells)


def granted() -> MoveRecord:
    """A move between its grant and its commit."""
    move = record()
    source = Receipt(Side.SOURCE, move.move_id, 1, b"l" * 32, b"m" * 32, PLAN.digest, 8192, (1, 2), 3, "host-a", 1)
    return replace(
        move,
        sequence=7,
        state=State(Phase.GRANTED),
        stage="granted",
        grant=b"g" * 32,
        stages=StageTimes(reserve_s=0.5, wire_s=0.25),
        source_receipt=source,
        destination_receipt=replace(source, side=Side.DESTINATION, host_id="host-b", incarnation=4),
    )


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, MoveRecord, MoveRecord]:
    """A journal of the first release, with a move that is open and one that was refused."""
    path = tmp_path / "j.db"
    open_move, refused = granted(), replace(record("s-2", Phase.REFUSED), sequence=6)
    with sqlite3.connect(path) as db:
        db.executescript(VERSION_1)
        db.execute("INSERT INTO meta VALUES ('term', 41)")
        db.execute("INSERT INTO hosts VALUES ('host-a', 1, 0, '', x'61'), ('host-b', 4, 1, 'burnt', x'62')")
        db.execute(
            "INSERT INTO sessions VALUES ('s-1', 'host-a', 1, 1, 0, ?, ?), ('s-2', 'host-b', 4, 3, 5, '', ?)",
            (open_move.move_id, b"info", b"info"),
        )
        write_move(db, refused)
        write_move(db, open_move)
        held = lease(open_move)
        db.execute(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?)",
            (held.move_id, held.host_id, held.slot_bytes, held.begins_s, held.ends_s),
        )
        db.execute("INSERT INTO placements VALUES (3, 'r', x'64', 'host-a', 1)")
        db.execute("INSERT INTO profile VALUES ('m', 'n', 'tcp', 1e9, 0.1, 2)")
    db.close()
    return path, open_move, refused


def shape(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Tables with their columns, and indexes, without the order in which they came."""
    db = sqlite3.connect(path)
    names = db.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name").fetchall()
    found = {}
    for kind, name in names:
        if kind == "table":
            columns = db.execute(
                f"SELECT name, \"notnull\" OR pk > 0, pk FROM pragma_table_info('{name}') ORDER BY name"
            )
            found[name] = columns.fetchall()
        else:
            found[name] = db.execute(f"SELECT name FROM pragma_index_info('{name}')").fetchall()
    db.close()
    return found


def test_a_journal_of_the_first_release_is_taken_over(old: tuple[Path, MoveRecord, MoveRecord]) -> None:
    path, open_move, refused = old
    journal = Journal(path, keep=100)
    assert journal.term == 42
    assert [(row.host_id, row.incarnation, row.fenced) for row in journal.hosts()] == [
        ("host-a", 1, False),
        ("host-b", 4, True),
    ]
    assert journal.session("s-1") == replace(session(), move_id=open_move.move_id)
    lost = journal.session("s-2")
    assert lost is not None
    assert lost.lost
    assert journal.open_moves() == [open_move]
    assert journal.moves(1 << 62, "", 10) == [replace(move, transitions=()) for move in (open_move, refused)]
    assert journal.leases() == [lease(open_move)]
    assert journal.placement("r") == PlacementRow("r", b"d", "host-a", 1)
    # It goes on from where it was.
    done = advance(journal, replace(open_move, stages=StageTimes(0.5, wire_s=0.25, commit_s=2.0)), EventKind.COMMITTED)
    assert journal.move(open_move.move_id) == done
    newer = journal.add_move(record("s-1", Phase.REFUSED), None)
    assert newer.sequence == 8
    journal.close()
    again = Journal(path, keep=100)
    assert again.term == 43
    assert again.move(open_move.move_id) == done
    again.close()


def test_a_journal_that_was_taken_over_is_as_a_new_one(
    old: tuple[Path, MoveRecord, MoveRecord], tmp_path: Path
) -> None:
    Journal(old[0]).close()
    Journal(tmp_path / "new.db").close()
    assert shape(old[0]) == shape(tmp_path / "new.db")
    assert set(TABLES.tables) <= set(shape(old[0]))


def test_a_step_that_fails_changes_nothing(
    old: tuple[Path, MoveRecord, MoveRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shape(old[0])

    def broken(connection: object) -> None:
        raise errors.Internal("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(journal_migrations, "_create", broken)
        with pytest.raises(errors.Internal):
            Journal(old[0])
    assert shape(old[0]) == before
    Journal(old[0]).close()


def test_a_journal_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    Journal(path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE schema_version SET version = ?", (VERSION + 1,))
    db.close()
    with pytest.raises(errors.Precondition, match=f"is of schema {VERSION + 1}") as caught:
        Journal(path)
    assert caught.value.reason == "JOURNAL_NEWER"
    assert str(path) in caught.value.message
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT term FROM leadership").fetchone() == (1,)
    db.close()

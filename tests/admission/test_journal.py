"""The journal: what is written is there after a kill, and nothing is owned twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from journal_tools import PLAN, advance, compact, lease, record, register, session

from admission.journal import Journal
from admission.journal_database import Connection
from admission.journal_rows import PlacementRow, SessionRow
from admission.machine import EventKind, Phase, State
from admission.record import MoveRecord
from worldline import errors
from worldline.move import HostRef, StageTimes
from worldline.receipt import Receipt, Side


def test_the_term_rises_at_each_start(tmp_path: Path) -> None:
    terms = []
    for _ in range(3):
        opened = Journal(tmp_path / "j.db")
        terms.append(opened.term)
        opened.close()
    assert terms == [1, 2, 3]


def test_two_processes_never_share_a_journal(tmp_path: Path, in_file: Journal) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        Journal(tmp_path / "j.db")
    assert caught.value.reason == "JOURNAL_HELD"
    in_file.close()
    Journal(tmp_path / "j.db").close()


def test_a_move_comes_back_as_it_was(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    receipt = Receipt(
        Side.SOURCE, str(uuid.uuid4()), 1, b"l" * 32, b"m" * 32, PLAN.digest, 8192, (1, 2), 3, "host-a", 1
    )
    kept = journal.add_move(record(), None)
    kept = replace(
        kept,
        source_receipt=receipt,
        destination_receipt=replace(receipt, side=Side.DESTINATION),
        stages=StageTimes(reserve_s=0.5, downtime_s=1.5),
        grant=b"g" * 32,
        landed_bytes=8192,
        retried_chunks=1,
    )
    kept = advance(journal, kept, EventKind.VERIFIED, EventKind.GRANTED)
    found = journal.move(kept.move_id)
    assert found == kept
    assert journal.move_of_request(kept.request_id) == kept
    assert journal.open_moves() == [kept]


def test_ownership_follows_the_move(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = record()
    kept = journal.add_move(kept, lease(kept))
    row = journal.session("s-1")
    assert row is not None
    assert row.move_id == kept.move_id
    assert journal.leases() == [lease(kept)]
    kept = advance(journal, kept, EventKind.VERIFIED, EventKind.GRANTED)
    assert journal.session("s-1") == row
    kept = advance(journal, kept, EventKind.COMMITTED)
    assert journal.session("s-1") == replace(row, host_id="host-b", incarnation=4, epoch=2)
    assert journal.leases() == []
    advance(journal, kept, EventKind.ACTIVATED, EventKind.FREED)
    assert journal.session("s-1") == replace(row, host_id="host-b", incarnation=4, epoch=2, move_id="")


def test_an_aborted_move_leaves_the_session_where_it_was(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = record()
    kept = journal.add_move(kept, lease(kept))
    advance(journal, kept, EventKind.CANCELLED, EventKind.SOURCE_LIVE, EventKind.DROPPED)
    assert journal.session("s-1") == session()
    assert journal.leases() == []


def test_a_session_is_in_one_move_at_most(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    journal.add_move(record(), None)
    second = record()
    with pytest.raises(errors.Owned):
        journal.add_move(second, lease(second))
    assert journal.leases() == []
    assert journal.move(second.move_id) is None


@pytest.mark.parametrize("stale", [record("s-1", epoch=2), record("s-2")])
def test_a_move_decided_on_old_facts_is_not_opened(journal: Journal, stale: MoveRecord) -> None:
    register(journal)
    journal.adopt([session()])
    with pytest.raises(errors.Owned):
        journal.add_move(stale, None)


def test_a_new_incarnation_loses_what_the_old_one_had(journal: Journal) -> None:
    register(journal)
    journal.adopt([session("s-1"), session("s-2"), session("s-3", "host-b", 4)])
    journal.add_move(record("s-2"), None)
    assert journal.register_host("host-a", 2, b"a") == ["s-1"]
    with pytest.raises(errors.SessionLost):
        journal.add_move(record("s-1"), None)
    assert [row.session_id for row in journal.sessions_of("host-a")] == ["s-2"]


def test_a_host_that_died_while_a_move_had_its_session_loses_it_at_the_end(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = journal.add_move(record(), None)
    kept = advance(journal, kept, EventKind.VERIFIED, EventKind.GRANTED, EventKind.COMMITTED, EventKind.ACTIVATED)
    assert journal.fence_host("host-b", 4, "burnt down") == []
    advance(journal, kept, EventKind.FREED)
    row = journal.session("s-1")
    assert row is not None
    assert row.lost


@pytest.mark.parametrize(
    "claim",
    [
        session(epoch=4),  # older than what is journaled
        session(host_id="host-b", incarnation=4, epoch=6),  # another host owns it
        session(incarnation=0, epoch=6),  # a dead incarnation speaks
    ],
)
def test_nothing_is_adopted_over_what_is_known(journal: Journal, claim: SessionRow) -> None:
    register(journal)
    journal.adopt([session(epoch=5)])
    assert journal.adopt([claim]) == ["s-1"]
    assert journal.session("s-1") == session(epoch=5)


def test_a_lost_session_stays_lost(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    journal.register_host("host-a", 2, b"a")
    assert journal.adopt([session(incarnation=2)]) == ["s-1"]
    row = journal.session("s-1")
    assert row is not None
    assert row.lost


def test_the_oldest_losses_are_let_go(journal: Journal) -> None:
    register(journal)
    journal.adopt([session("s-first", "host-b", 4)])
    journal.adopt([session(f"s-{number}") for number in range(100)])
    journal.register_host("host-a", 2, b"a")
    journal.adopt([session("s-last", incarnation=2)])
    kept = journal.add_move(replace(record("s-last"), source=HostRef("host-a", 2, "127.0.0.1:1")), None)
    advance(journal, kept, EventKind.MOVER_FAILED, EventKind.SOURCE_EMPTY, EventKind.DROPPED)
    journal.fence_host("host-b", 4, "burnt down")
    compact(journal)
    # Lost in the order of their losses, not of their ids or births: two more than are kept.
    found = {name: journal.session(name) for name in ("s-last", "s-first")}
    assert all(row is not None and row.lost for row in found.values())
    assert sum(journal.session(f"s-{number}") is not None for number in range(100)) == 98


def test_a_session_that_was_closed_is_deleted_with_its_move(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = record()
    kept = journal.add_move(kept, lease(kept))
    kept = advance(journal, kept, EventKind.CANCELLED, EventKind.SOURCE_CLOSED)
    assert journal.move(kept.move_id) == kept
    assert kept.state.session_closed
    assert not journal.leases()[0].receives
    kept = advance(journal, kept, EventKind.SOURCE_DIED, EventKind.DROPPED)
    assert (kept.phase, kept.state.reason) == (Phase.ABORTED, "SESSION_CLOSED")
    assert journal.session("s-1") is None
    assert journal.leases() == []


def test_a_full_disk_says_so_and_changes_nothing(in_file: Journal) -> None:
    register(in_file)
    ((pages,),) = in_file._db.execute("PRAGMA page_count")
    in_file._db.execute(f"PRAGMA max_page_count = {pages}")
    large = PlacementRow("large", b"x" * (1 << 20), "host-a", 1)
    with pytest.raises(errors.Unavailable, match="database or disk is full") as caught:
        in_file.place(large)
    assert caught.value.reason == "JOURNAL_FAILED"
    in_file._db.execute(f"PRAGMA max_page_count = {10 * pages}")
    assert in_file.placement("large") is None
    in_file.place(replace(large, request_digest=b"d"))
    assert in_file.placement("large") is not None


def test_only_its_owner_reads_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    for mode in (0o644, 0o600):
        if path.exists():
            path.chmod(mode)
        opened = Journal(path)
        register(opened)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob("j.db*")}
        assert modes == dict.fromkeys(("j.db", "j.db-shm", "j.db-wal", "j.db.lock"), 0o600)
        opened.close()


@pytest.mark.parametrize("broken", ["missing folder", "folder", "no database"])
def test_a_journal_that_cannot_be_opened(tmp_path: Path, broken: str) -> None:
    path = {"missing folder": tmp_path / "none" / "j.db", "folder": tmp_path, "no database": tmp_path / "j.db"}[broken]
    if broken == "no database":
        path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(errors.Unavailable, match="cannot be opened") as caught:
        Journal(path)
    assert caught.value.reason == "JOURNAL_FAILED"


def test_every_transition_but_the_first_and_the_last_is_synced(
    in_file: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(in_file)
    in_file.adopt([session()])
    modes: list[tuple[str, int]] = []
    follow, take = in_file._follow, in_file._take_session

    def taken(db: Connection, written: MoveRecord) -> None:
        ((mode,),) = db.execute("PRAGMA synchronous")
        modes.append((written.phase.name, mode))
        take(db, written)

    monkeypatch.setattr(in_file, "_take_session", taken)
    kept = in_file.add_move(record(), None)

    def noted(db: Connection, written: MoveRecord) -> None:
        ((mode,),) = db.execute("PRAGMA synchronous")
        modes.append((written.phase.name, mode))
        follow(db, written)

    monkeypatch.setattr(in_file, "_follow", noted)
    advance(in_file, kept, EventKind.VERIFIED, EventKind.RESUMED, EventKind.SOURCE_LIVE, EventKind.DROPPED)
    normal, full = 1, 2
    assert modes == [("OPEN", normal), ("COMMIT", full), ("ABORT", full), ("DROPPING", full), ("ABORTED", normal)]
    assert in_file._db.execute("PRAGMA synchronous") == [(full,)]


def test_what_was_not_waited_for_is_synced_beside_the_work(in_file: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    register(in_file)
    in_file.adopt([session()])
    in_file.add_move(record(), None)
    in_file.settle()
    assert [Path(path).name for path in synced] == ["j.db-wal"]
    in_file.close()
    in_file.settle()  # whoever comes late finds nothing to do


def test_placements_are_kept(journal: Journal) -> None:
    row = PlacementRow("r", b"d", "host-a", 1)
    journal.place(row)
    journal.place(replace(row, host_id="host-b"))
    assert journal.placement("r") == replace(row, host_id="host-b")
    assert journal.placement("other") is None
    for number in range(150):
        journal.place(replace(row, request_id=str(number)))
    compact(journal)
    assert journal.placement("r") is None
    assert journal.placement("50") == replace(row, request_id="50")


def test_old_closed_moves_are_let_go(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = journal.add_move(record(), None)
    refused = [journal.add_move(record(phase=Phase.REFUSED), None) for _ in range(120)]
    assert journal.compact(limit=8) == 8
    compact(journal)
    assert journal.move(kept.move_id) == kept
    assert journal.move(refused[0].move_id) is None
    assert journal.move(refused[-1].move_id) == refused[-1]
    assert len(journal.moves(1 << 62, "", 1000)) == 101


def test_a_failed_write_changes_nothing(journal: Journal) -> None:
    register(journal)
    journal.adopt([session()])
    kept = journal.add_move(record(), None)
    # The line exists already, so that the transaction fails after its first statements.
    bad = replace(kept, state=State(Phase.ABORTED), transitions=kept.transitions)
    with pytest.raises(errors.Unavailable) as caught:
        journal.save_move(bad, 1)
    assert caught.value.reason == "JOURNAL_FAILED"
    assert journal.move(kept.move_id) == kept
    row = journal.session("s-1")
    assert row is not None
    assert row.move_id == kept.move_id


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import journal_tools as t
from admission.leadership import Candidate
from admission.machine import EventKind
journal = t.Journal(Path(sys.argv[1]))
t.register(journal)
journal.adopt([t.session()])
for _ in range(10_000):
    row = journal.session("s-1")
    made = t.replace(t.record(epoch=row.epoch), source=t.HostRef("host-a", 1, "127.0.0.1:1"))
    kept = journal.add_move(made, t.lease(made))
    kept = t.advance(journal, kept, EventKind.VERIFIED)
    print(kept.move_id, "COMMIT", flush=True)
    kept = t.advance(journal, kept, EventKind.RESUMED, EventKind.SOURCE_LIVE)
    print(kept.move_id, "DROPPING", flush=True)
    t.advance(journal, kept, EventKind.DROPPED)
    print(kept.move_id, "ABORTED", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 5, 23])
def test_what_was_said_after_its_write_survives_a_kill(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "j.db"
    program = WRITER.format(tests=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline().split() for _ in range(lines)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [line.split() for line in writer.stdout.read().splitlines() if len(line.split()) == 2]
    journal = Journal(path)
    for move_id, phase in dict(said).items():
        found = journal.move(move_id)
        assert found is not None
        assert found.phase >= Phase[phase]
        assert found.transitions[-1].after is found.phase
    row = journal.session("s-1")
    assert row is not None
    assert [move.move_id for move in journal.open_moves()] == ([row.move_id] if row.move_id else [])
    assert [held.move_id for held in journal.leases()] == ([row.move_id] if row.move_id else [])
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    journal.close()

"""A long past costs nothing: neither a decision nor a transition, and letting it go is done in small steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from admission_fakes import until
from journal_tools import compact, record

from admission.journal import Journal
from admission.journal_database import Connection
from admission.journal_upkeep import Upkeep
from admission.machine import Phase
from admission.record import MoveRecord
from benchmarks.journal import SESSION, fill, made, one_move, populate


def instructions(journal: Journal, call: Callable[[], object]) -> int:
    """SQLite's own instructions that a call takes: what it costs, whatever the machine does meanwhile."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    drivers = [connection._driver for connection in (journal._db, journal._reader)]
    for driver in drivers:
        driver.set_progress_handler(counted, 1)  # type: ignore[attr-defined]
    try:
        call()
    finally:
        for driver in drivers:
            driver.set_progress_handler(None, 1)  # type: ignore[attr-defined]
    return count


def costs(journal: Journal) -> dict[str, int]:
    """Instructions of each step of one move, and of what people ask."""
    found = {
        "the newest moves": instructions(journal, lambda: journal.moves(1 << 62, "", 10)),
        "the moves of a session": instructions(journal, lambda: journal.moves(1 << 62, SESSION, 10)),
        "open moves": instructions(journal, journal.open_moves),
    }

    def timed(name: str, call: Callable[[], MoveRecord | None]) -> MoveRecord:
        answers: list[MoveRecord | None] = []
        found[name] = instructions(journal, lambda: answers.append(call()))
        return answers[0] or made()

    one_move(journal, timed)
    return found


def grown(journal: Journal, moves: int) -> None:
    """Costs are as before after so many past moves, and so are the steps that let them go."""
    populate(journal)
    for _ in range(20):
        journal.add_move(made(Phase.REFUSED), None)
    before = costs(journal)
    fill(journal, moves, record("s-1", Phase.REFUSED))
    after = costs(journal)
    assert {name: cost for name, cost in after.items() if cost > 1.5 * before[name] + 50} == {}
    journal.keep = moves // 2
    steps = [instructions(journal, journal.compact) for _ in range(20)]
    assert max(steps) < 20_000
    assert max(steps) < 1.2 * min(steps)
    assert len(journal.moves(1 << 62, "", 1 << 30)) <= moves + 100 - 20 * 32


def test_a_thousand_past_moves_cost_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db", keep=1 << 40)
    grown(journal, 2_000)
    journal.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_past_moves_cost_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db", keep=1 << 40)
    grown(journal, 1_000_000)
    journal.close()


def test_open_moves_are_kept_however_old(journal: Journal) -> None:
    populate(journal)
    kept = journal.add_move(made(), None)
    for _ in range(130):
        journal.add_move(made(Phase.REFUSED), None)
    compact(journal)
    assert len(journal.moves(1 << 62, "", 1000)) == 101
    assert journal.open_moves() == [kept]
    assert journal._rows("SELECT count(*) FROM transitions") == [(101,)]
    assert journal.compact() == 0


def test_a_step_touches_no_more_than_its_limit(journal: Journal) -> None:
    populate(journal)
    fill(journal, 500, made(Phase.REFUSED))
    assert [journal.compact(limit=64) for _ in range(3)] == [64, 64, 64]
    assert len(journal.moves(1 << 62, "", 1000)) == 501 - 3 * 64


@pytest.fixture
def kept_up(journal: Journal) -> Iterator[Journal]:
    upkeep = Upkeep(journal)
    upkeep.start()
    yield journal
    upkeep.stop()


def test_upkeep_lets_old_moves_go_beside_the_work(kept_up: Journal) -> None:
    populate(kept_up)
    fill(kept_up, 300, made(Phase.REFUSED))
    until("old moves are let go", lambda: len(kept_up.moves(1 << 62, "", 1000)) == 100)


def test_a_files_log_is_copied_into_the_file(in_file: Journal, tmp_path: Path) -> None:
    populate(in_file)
    asked: list[str] = []
    execute = Connection.execute
    before = (tmp_path / "j.db").stat().st_size
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Connection, "execute", lambda self, sql, *rest: (asked.append(sql), execute(self, sql, *rest))[1]
        )
        fill(in_file, 2_000, made(Phase.REFUSED))
        in_file.checkpoint()
    assert asked[-1] == "PRAGMA wal_checkpoint(PASSIVE)"
    assert (tmp_path / "j.db").stat().st_size > before + (1 << 20)


def test_a_file_that_was_left_behind_keeps_what_its_log_holds(tmp_path: Path) -> None:
    """Its log is lengthened at the next start; what a process that was killed has written there is read first."""
    journal = Journal(tmp_path / "j.db", keep=100)
    populate(journal)
    fill(journal, 20, made(Phase.REFUSED))
    before = journal.moves(1 << 62, "", 1000)
    left = tmp_path / "left"
    left.mkdir()
    for name in ("j.db", "j.db-wal"):
        (left / name).write_bytes((tmp_path / name).read_bytes())
    journal.close()
    header, frame = 32, 24 + 4096
    frames = -(-(len((left / "j.db-wal").read_bytes().rstrip(b"\0")) - header) // frame)
    assert frames > 20
    os.truncate(left / "j.db-wal", header + frames * frame)
    again = Journal(left / "j.db", keep=100)
    assert again.moves(1 << 62, "", 1000) == before
    again.close()

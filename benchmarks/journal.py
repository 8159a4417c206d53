"""`python -m benchmarks.journal`: what the journal costs a move, and whether its past makes that dearer.

Prints medians and 99th percentiles, in a new journal and in one with a million past moves: of what a decision reads, of
opening a move, of a transition that waits for the disk, of one that does not, and of one step of letting old moves go.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from admission.journal import Journal
from admission.journal_database import PostgresUrl
from admission.journal_rows import MOVE_COLUMNS, Caps, Lease, SessionRow
from admission.leadership import Candidate
from admission.machine import Event, EventKind, Phase, State, Transition, step
from admission.record import MoveRecord
from admission.rules import Mode
from worldline.errors import Unavailable
from worldline.move import HostRef
from worldline.plan import Placement, Plan
from worldline.verdict import Clause, Kind, Verdict

SESSION, SOURCE, DESTINATION = "session", HostRef("host-a", 1, "10.0.0.1:1"), HostRef("host-b", 1, "10.0.0.2:1")
PAST = 1_000_000
_PART = 50_000
# A verdict as long as those that the rules give.
_CLAUSES = tuple(Clause(f"rule-{number}", Kind.ADMIT, "x" * 80, {"a": 1.0, "b": 2.0}) for number in range(12))


def made(phase: Phase = Phase.OPEN, epoch: int = 1) -> MoveRecord:
    """A move that was just asked for."""
    line = Transition(time.time(), phase, "admit", phase, ("mover: move",))
    return MoveRecord(
        move_id=str(uuid.uuid4()),
        request_id=str(uuid.uuid4()),
        request_digest=b"d" * 32,
        session_id=SESSION,
        source=SOURCE,
        destination=DESTINATION,
        epoch=epoch,
        mode=Mode.FROZEN,
        state_bytes=1 << 30,
        verdict=Verdict(Kind.ADMIT, _CLAUSES, 0.0, 0.25, 0.75),
        state=State(phase),
        requested_at_s=time.time(),
        plan=Plan("tcp", 4 << 20, 2, Placement.PIPELINED, 1.0, 2.0, 3.0),
        transitions=(line,),
        stage=phase.name.lower(),
    )


def populate(journal: Journal) -> None:
    """One session on one host, and another host to move it to."""
    for host in (SOURCE, DESTINATION):
        journal.register_host(host.host_id, host.incarnation, b"registration")
    journal.adopt([SessionRow(SESSION, SOURCE.host_id, SOURCE.incarnation, 1, False, "", b"info")])


def fill(journal: Journal, moves: int, like: MoveRecord) -> None:
    """Add closed moves of the past, each `like` that refused one, with two transitions."""
    template = journal.add_move(like, None).move_id
    fixed = {"move_id": "'past-' || i", "request_id": "'asked-' || i", "session_id": "'session-' || (i % 1000)"}
    fixed |= {"phase": str(int(Phase.MOVED)), "closed": "1"}
    cells = ", ".join(fixed.get(name, name) for name in MOVE_COLUMNS)
    numbers = "WITH RECURSIVE n (i) AS (SELECT CAST(:first AS INTEGER) UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
    for first in range(0, moves, _PART):
        bounds = {"first": first, "last": min(first + _PART, moves) - 1}
        with journal._transaction(synced=False) as db:
            db.execute(
                f"INSERT INTO moves ({', '.join(MOVE_COLUMNS)}) {numbers} SELECT {cells} FROM n, moves "
                "WHERE moves.move_id = :template",
                {**bounds, "template": template},
            )
            for line in range(2):
                db.execute(
                    f"INSERT INTO transitions (move_id, line, at_s, before, event, after, effects) {numbers} "
                    f"SELECT 'past-' || i, {line}, 1.0, 2, 'verified', 3, 'source: release' FROM n",
                    bounds,
                )


def advance(journal: Journal, move: MoveRecord, kind: EventKind) -> MoveRecord:
    """One transition of a move."""
    state, effects = step(move.state, Event(kind))
    line = Transition(time.time(), move.phase, kind.value, state.phase, tuple(effect.value for effect in effects))
    move = replace(move, state=state, transitions=(*move.transitions, line))
    journal.save_move(move, 1)
    return move


def one_move(journal: Journal, timed: Callable[[str, Callable[[], MoveRecord | None]], MoveRecord]) -> None:
    """What the journal does for one move, each step through `timed`."""

    def decide() -> None:
        journal.move_of_request("none")
        journal.session(SESSION)
        journal.leases()

    timed("what a decision reads", decide)
    row = journal.session(SESSION)
    move = made(epoch=row.epoch if row else 1)
    ends_s = move.requested_at_s + 1
    lease = Lease(move.move_id, DESTINATION.host_id, 1 << 30, move.requested_at_s, ends_s, True, "mover-b")
    move = timed("open a move", lambda: journal.add_move(move, lease, Caps(1, 4)))
    for kind in (EventKind.VERIFIED, EventKind.RESUMED, EventKind.SOURCE_LIVE):
        move = timed("transition", lambda move=move, kind=kind: advance(journal, move, kind))  # type: ignore[misc]
    timed("transition that closes", lambda: advance(journal, move, EventKind.DROPPED))


def measure(journal: Journal, runs: int) -> dict[str, list[float]]:
    """Seconds of each step, by its name."""
    found: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], MoveRecord | None]) -> MoveRecord:
        began_s = time.perf_counter()
        answer = call()
        found.setdefault(name, []).append(time.perf_counter() - began_s)
        return answer if answer is not None else made()

    for _ in range(runs):
        one_move(journal, timed)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a journal on a server, postgresql+psycopg://...; default: a file")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--past", type=int, default=PAST, help="past moves")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as folder:
        journal = _open(options.url, Path(folder))
        populate(journal)
        columns = [measure(journal, options.runs)]
        began_s = time.perf_counter()
        fill(journal, options.past, made(Phase.REFUSED))
        print(f"{options.past} past moves added in {time.perf_counter() - began_s:.0f} s")
        columns.append(measure(journal, options.runs))
        print(f"{'':28}{'new, ms':>20}{f'{options.past} moves, ms':>24}")
        for name in columns[0]:
            print(f"{name:28}{_shown(columns[0][name]):>20}{_shown(columns[1][name]):>24}")
        journal.keep = options.past // 2
        steps = []
        for _ in range(min(options.runs, 50)):
            began_s = time.perf_counter()
            journal.compact()
            steps.append(time.perf_counter() - began_s)
        print(f"{'let 32 old moves go':28}{'':20}{_shown(steps):>24}")
        journal.close()


def _open(url: str | None, folder: Path) -> Journal:
    if url is None:
        return Journal(folder / "journal.sqlite", keep=10 * PAST)
    tenure = Candidate(PostgresUrl(url), 3.0, "127.0.0.1:1").stand(threading.Event(), lambda: None)
    if tenure is None:
        raise Unavailable("another process leads on this journal: give an empty database")
    return Journal(tenure, keep=10 * PAST)


def _shown(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{statistics.median(ordered) * 1e3:.2f} (p99 {ordered[int(0.99 * (len(ordered) - 1))] * 1e3:.2f})"


if __name__ == "__main__":
    main()

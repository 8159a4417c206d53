"""The journal: who owns which session and how far each move is, durable before anything follows from it.

One transaction, one sync, a transition. Only the opening of a move and its closing are not synced by themselves: what a
power cut before the next sync takes away is a move that owned nothing yet, or makes admission ask again what it asked
before. A process that is killed loses neither. One thread writes at a time,
under the term of this process (leadership.py); who only reads waits for no disk. docs/admission-state.md tells it all.
"""

from __future__ import annotations

from pathlib import Path

from admission.journal_fleet import FleetTables
from admission.journal_rows import PlacementRow
from admission.journal_schedules import ScheduleTables
from admission.leadership import Tenure, hold_file

_PLACE = (
    "INSERT INTO placements (request_id, request_digest, host_id, incarnation) "
    "VALUES (:request_id, :request_digest, :host_id, :incarnation) "
    "ON CONFLICT (request_id) DO UPDATE SET host_id = excluded.host_id, incarnation = excluded.incarnation"
)
# What there is too much of, oldest first; `:keep` of the newest numbers stay.
_OLD_MOVES = (
    "SELECT move_id FROM moves WHERE sequence <= (SELECT max(sequence) FROM moves) - :keep AND closed = 1 "
    "ORDER BY sequence LIMIT :limit"
)
_OLD_SCHEDULES = (
    "SELECT schedule_id FROM schedules WHERE sequence <= (SELECT max(sequence) FROM schedules) - :keep AND state > 1 "
    "ORDER BY sequence LIMIT :limit"
)
_OLD_PLACEMENTS = (
    "SELECT request_id FROM placements WHERE sequence <= (SELECT max(sequence) FROM placements) - :keep "
    "ORDER BY sequence LIMIT :limit"
)
_OLD_LOSSES = (
    "SELECT session_id FROM sessions WHERE lost > 0 "
    "AND lost <= (SELECT max(lost) FROM sessions WHERE lost > 0) - :keep ORDER BY lost LIMIT :limit"
)
_PRUNING = (
    (_OLD_MOVES, ("DELETE FROM transitions WHERE move_id = :id", "DELETE FROM moves WHERE move_id = :id")),
    (_OLD_SCHEDULES, ("DELETE FROM steps WHERE schedule_id = :id", "DELETE FROM schedules WHERE schedule_id = :id")),
    (_OLD_PLACEMENTS, ("DELETE FROM placements WHERE request_id = :id",)),
    (_OLD_LOSSES, ("DELETE FROM sessions WHERE session_id = :id AND lost > 0",)),
)


class Journal(FleetTables, ScheduleTables):
    """The open journal of one term. All methods may be called from any thread.

    Raises:
        Unavailable: JOURNAL_HELD if another process has the file, JOURNAL_FAILED if it cannot be opened or written,
            NOT_LEADER where a newer term has begun.
        Precondition: JOURNAL_NEWER, a newer release has written it.
    """

    def __init__(self, where: Path | Tenure, keep: int = 10_000) -> None:
        """`keep`: closed moves, schedules, placements and lost sessions that are kept, of each."""
        super().__init__(hold_file(where) if isinstance(where, Path) else where)
        self.keep = keep

    def placement(self, request_id: str) -> PlacementRow | None:
        """The placement of that request; None if there is none."""
        rows = self._rows(
            "SELECT request_id, request_digest, host_id, incarnation FROM placements WHERE request_id = :request_id",
            {"request_id": request_id},
        )
        return PlacementRow(*rows[0]) if rows else None

    def place(self, row: PlacementRow) -> None:
        """Keep which host a placement is asked of."""
        with self._transaction() as db:
            db.execute(
                _PLACE,
                {
                    "request_id": row.request_id,
                    "request_digest": row.request_digest,
                    "host_id": row.host_id,
                    "incarnation": row.incarnation,
                },
            )

    def compact(self, limit: int = 32) -> int:
        """Let go at most `limit` of what there is too much of, of each. Returns how much that was.

        One short transaction: a transition that comes meanwhile waits for no more than that.
        """
        bounds = {"keep": self.keep, "limit": limit}
        due = [(self._rows(query, bounds), deletions) for query, deletions in _PRUNING]
        count = sum(len(rows) for rows, _ in due)
        if count:
            with self._transaction(synced=False) as db:
                for rows, deletions in due:
                    for deletion in deletions:
                        db.many(deletion, [{"id": name} for (name,) in rows])
        return count

    def checkpoint(self) -> None:
        """Copy a journal file's log into the file, beside whoever reads and writes; a server does that by itself."""
        self.tenure.checkpoint()

    def settle(self) -> None:
        """Put what was written without a sync on the disk now. For a thread that nobody waits for."""
        self.tenure.settle()

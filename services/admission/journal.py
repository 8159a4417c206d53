"""The journal: who owns which session and how far each move is, durable before anything follows from it.

SQLite in WAL mode with synchronous=FULL: one transaction, one fsync, a transition. Only the closing of a move is not
synced by itself (synchronous=NORMAL): nothing follows from it, and a power cut before the next sync only makes
admission ask again what it asked before. One process holds the journal (a lock on a file beside it), one thread writes
at a time. The term rises at each start.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from admission.journal_file import JournalFile
from admission.journal_rows import (
    MOVE_COLUMNS,
    HostRow,
    Lease,
    PathRow,
    PlacementRow,
    SessionRow,
    move_from_row,
    move_to_row,
    session_from_row,
)
from admission.machine import RECEIVING, Phase, Transition
from admission.record import MoveRecord
from worldline.errors import Owned, SessionLost, Unavailable

# Losses are numbered in `lost`, so that the oldest can be let go.
_NEXT_LOSS = "SELECT coalesce(max(lost), 0) + 1 FROM sessions WHERE lost > 0"


class Journal:
    """The open journal. All methods may be called from any thread.

    Raises:
        Unavailable: JOURNAL_HELD if another process has it, JOURNAL_FAILED if it cannot be opened or written.
    """

    def __init__(self, path: Path, keep: int = 10_000) -> None:
        """`keep`: closed moves, placements and lost sessions that are kept, of each."""
        self._keep = keep
        self._lock = threading.RLock()
        self._file = JournalFile(path)
        self._db = self._file.db
        try:
            with self._transaction():
                self._db.execute(
                    "INSERT INTO meta VALUES ('term', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
                )
                (self.term,) = self._db.execute("SELECT value FROM meta WHERE name = 'term'").fetchone()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close; the lock is let go."""
        with self._lock:
            self._file.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise Unavailable(
                    f"the journal could not be written: {error}; nothing was done", reason="JOURNAL_FAILED"
                ) from error
            finally:
                # Some errors, a full disk among them, have ended the transaction already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        """A transaction that reaches the disk with the next one: of what admission would find out again."""
        with self._lock:
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._transaction():
                    yield
            finally:
                self._db.execute("PRAGMA synchronous=FULL")

    def _all(self, query: str, values: Sequence[object] = ()) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock:
            return self._db.execute(query, values).fetchall()

    # --- hosts

    def hosts(self) -> list[HostRow]:
        """All hosts that ever registered."""
        rows = self._all("SELECT host_id, incarnation, fenced, registration FROM hosts")
        return [HostRow(host_id, incarnation, bool(fenced), blob) for host_id, incarnation, fenced, blob in rows]

    def register_host(self, host_id: str, incarnation: int, registration: bytes) -> list[str]:
        """Keep a registration; older incarnations are dead by it. Returns the sessions lost with them."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO hosts VALUES (?, ?, 0, '', ?) ON CONFLICT (host_id) DO UPDATE SET "
                "fenced = CASE WHEN excluded.incarnation > incarnation THEN 0 ELSE fenced END, "
                "incarnation = excluded.incarnation, registration = excluded.registration",
                (host_id, incarnation, registration),
            )
            return self._lose(host_id, incarnation - 1)

    def fence_host(self, host_id: str, incarnation: int, reason: str) -> list[str]:
        """An operator's word that the incarnation is dead. Returns the sessions lost with it."""
        with self._transaction():
            self._db.execute(
                "UPDATE hosts SET fenced = 1, fence_reason = ? WHERE host_id = ? AND incarnation = ?",
                (reason, host_id, incarnation),
            )
            return self._lose(host_id, incarnation)

    def _lose(self, host_id: str, incarnation: int) -> list[str]:
        # Sessions in a move are the move's: its story decides.
        (loss,) = self._db.execute(_NEXT_LOSS).fetchone()
        rows = self._db.execute(
            "UPDATE sessions SET lost = ? WHERE host_id = ? AND incarnation <= ? AND move_id = '' AND lost = 0 "
            "RETURNING session_id",
            (loss, host_id, incarnation),
        ).fetchall()
        self._prune_lost()
        return [session_id for (session_id,) in rows]

    def _prune_lost(self) -> None:
        self._db.execute(
            "DELETE FROM sessions WHERE rowid IN "
            "(SELECT rowid FROM sessions WHERE lost > 0 ORDER BY lost DESC LIMIT -1 OFFSET ?)",
            (self._keep,),
        )

    def forget_hosts(self, host_ids: Sequence[str]) -> list[str]:
        """Forget those hosts that have no session, lost or not, and are in no open move. Returns them."""
        in_moves = {host.host_id for move in self.open_moves() for host in (move.source, move.destination)}
        with self._transaction():
            owning = {host_id for (host_id,) in self._db.execute("SELECT DISTINCT host_id FROM sessions")}
            forgotten = [host_id for host_id in host_ids if host_id not in owning | in_moves]
            self._db.executemany("DELETE FROM hosts WHERE host_id = ?", [(host_id,) for host_id in forgotten])
        return forgotten

    # --- sessions

    def session(self, session_id: str) -> SessionRow | None:
        """Who owns a session; None if it is not known."""
        rows = self._all("SELECT * FROM sessions WHERE session_id = ?", (session_id,))
        return session_from_row(rows[0]) if rows else None

    def sessions_of(self, host_id: str) -> list[SessionRow]:
        """Sessions that live on a host."""
        return [
            session_from_row(row)
            for row in self._all("SELECT * FROM sessions WHERE host_id = ? AND lost = 0", (host_id,))
        ]

    def adopt(self, rows: Sequence[SessionRow]) -> list[str]:
        """Keep sessions as their hosts report them. Returns those that are kept as they were.

        Nothing is adopted from a dead incarnation, over a move, over an epoch that is newer, over a loss of the same
        epoch, or over another host that owns the session.
        """
        refused = []
        with self._transaction():
            for row in rows:
                known = self.session(row.session_id)
                stale = known is not None and (
                    bool(known.move_id)
                    or known.epoch > row.epoch
                    or (known.lost and known.epoch == row.epoch)
                    or (not known.lost and known.host_id != row.host_id)
                )
                if stale or self._dead(row.host_id, row.incarnation):
                    refused.append(row.session_id)
                    continue
                self._db.execute(
                    "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, 0, '', ?)",
                    (row.session_id, row.host_id, row.incarnation, row.epoch, row.info),
                )
        return refused

    def _dead(self, host_id: str, incarnation: int) -> bool:
        rows = self._all(
            "SELECT 1 FROM hosts WHERE host_id = ? AND (incarnation > ? OR (incarnation = ? AND fenced))",
            (host_id, incarnation, incarnation),
        )
        return bool(rows)

    def forget(self, rows: Sequence[SessionRow]) -> None:
        """Sessions that their own host no longer has: they were closed."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM sessions WHERE session_id = ? AND host_id = ? AND incarnation = ? AND epoch = ? "
                "AND move_id = '' AND lost = 0",
                [(row.session_id, row.host_id, row.incarnation, row.epoch) for row in rows],
            )

    # --- placements

    def placement(self, request_id: str) -> PlacementRow | None:
        """The placement of that request; None if there is none."""
        rows = self._all(
            "SELECT request_id, request_digest, host_id, incarnation FROM placements WHERE request_id = ?",
            (request_id,),
        )
        return PlacementRow(*rows[0]) if rows else None

    def place(self, row: PlacementRow) -> None:
        """Keep which host a placement is asked of."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO placements (request_id, request_digest, host_id, incarnation) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (request_id) DO UPDATE SET host_id = excluded.host_id, incarnation = excluded.incarnation",
                (row.request_id, row.request_digest, row.host_id, row.incarnation),
            )
            self._db.execute(
                "DELETE FROM placements WHERE sequence <= (SELECT max(sequence) FROM placements) - ?", (self._keep,)
            )

    # --- moves

    def add_move(self, record: MoveRecord, lease: Lease | None) -> MoveRecord:
        """Keep a new move, refused or open; an open one takes its session. Returns it with its sequence.

        Raises:
            Owned: another move has the session. SessionLost: it is lost by now.
        """
        with self._transaction():
            if record.phase is Phase.OPEN:
                taken = self._db.execute(
                    "UPDATE sessions SET move_id = ? WHERE session_id = ? AND host_id = ? AND incarnation = ? "
                    "AND epoch = ? AND move_id = '' AND lost = 0",
                    (
                        record.move_id,
                        record.session_id,
                        record.source.host_id,
                        record.source.incarnation,
                        record.epoch,
                    ),
                ).rowcount
                if taken != 1:
                    self._refuse(record.session_id)
            cursor = self._db.execute(
                f"INSERT INTO moves ({', '.join(MOVE_COLUMNS)}) VALUES ({', '.join('?' * len(MOVE_COLUMNS))})",
                move_to_row(record),
            )
            if lease is not None:
                self._db.execute(
                    "INSERT INTO leases VALUES (?, ?, ?, ?, ?)",
                    (lease.move_id, lease.host_id, lease.slot_bytes, lease.begins_s, lease.ends_s),
                )
            self._write_lines(record.move_id, 0, record.transitions)
            sequence = cursor.lastrowid or 0
            self._prune(sequence)
        return replace(record, sequence=sequence)

    def _refuse(self, session_id: str) -> None:
        row = self.session(session_id)
        if row is not None and row.lost:
            raise SessionLost(f"session {session_id} was lost with its host", resource=("session", session_id))
        raise Owned(
            f"session {session_id} is in move {row.move_id if row else ''} or has just changed; ask again",
            resource=("move", row.move_id if row else ""),
            retry_after_s=1.0,
        )

    def save_move(self, record: MoveRecord, new_lines: int, path: PathRow | None = None) -> None:
        """Keep a transition: the move, the last `new_lines` of its log, and what it means for session and lease."""
        with self._unsynced() if record.phase.closed else self._transaction():
            self._db.execute(
                f"UPDATE moves SET {', '.join(f'{name} = ?' for name in MOVE_COLUMNS)} WHERE move_id = ?",
                (*move_to_row(record), record.move_id),
            )
            first = len(record.transitions) - new_lines
            self._write_lines(record.move_id, first, record.transitions[first:])
            self._follow(record)
            if path is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO profile VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        path.source_mover,
                        path.destination_mover,
                        path.transport,
                        path.bandwidth_Bps,
                        path.setup_s,
                        path.moves,
                    ),
                )

    def _follow(self, record: MoveRecord) -> None:
        """Ownership and lease as they follow from where the move stands."""
        if record.phase is Phase.DONE:
            self._db.execute(
                "UPDATE sessions SET host_id = ?, incarnation = ?, epoch = ? WHERE session_id = ? AND move_id = ?",
                (
                    record.destination.host_id,
                    record.destination.incarnation,
                    record.epoch + 1,
                    record.session_id,
                    record.move_id,
                ),
            )
        if record.phase.closed and record.state.session_closed:
            self._db.execute(
                "DELETE FROM sessions WHERE session_id = ? AND move_id = ?", (record.session_id, record.move_id)
            )
        elif record.phase.closed:
            # The host may have been proven dead while the move still had the session.
            self._db.execute(
                "UPDATE sessions SET move_id = '', lost = CASE WHEN ? OR EXISTS (SELECT 1 FROM hosts "
                "WHERE hosts.host_id = sessions.host_id AND (hosts.incarnation > sessions.incarnation "
                "OR (hosts.incarnation = sessions.incarnation AND fenced))) "
                f"THEN ({_NEXT_LOSS}) ELSE lost END WHERE session_id = ? AND move_id = ?",
                (record.phase is Phase.LOST, record.session_id, record.move_id),
            )
        if record.phase is Phase.LOST:
            self._prune_lost()
        if record.phase is Phase.DONE or record.phase.closed:
            self._db.execute("DELETE FROM leases WHERE move_id = ?", (record.move_id,))

    def _write_lines(self, move_id: str, first: int, lines: Sequence[Transition]) -> None:
        self._db.executemany(
            "INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    move_id,
                    first + index,
                    line.at_s,
                    int(line.before),
                    line.event,
                    int(line.after),
                    "\n".join(line.effects),
                )
                for index, line in enumerate(lines)
            ],
        )

    def _prune(self, sequence: int) -> None:
        rows = self._db.execute(
            "DELETE FROM moves WHERE sequence <= ? AND closed = 1 RETURNING move_id", (sequence - self._keep,)
        ).fetchall()
        self._db.executemany("DELETE FROM transitions WHERE move_id = ?", rows)

    def move(self, move_id: str) -> MoveRecord | None:
        """One move by its id."""
        return self._one("move_id = ?", move_id)

    def move_of_request(self, request_id: str) -> MoveRecord | None:
        """One move by the id of its request."""
        return self._one("request_id = ?", request_id)

    def _one(self, where: str, value: str) -> MoveRecord | None:
        found = self._moves(f"WHERE {where}", (value,), told=True)
        return found[0] if found else None

    def open_moves(self) -> list[MoveRecord]:
        """Moves that are not closed, oldest first."""
        return self._moves("WHERE closed = 0 ORDER BY sequence", (), told=True)

    def moves(self, before: int, session_id: str, limit: int) -> list[MoveRecord]:
        """At most `limit` moves of a sequence below `before`, newest first, without their transitions."""
        where, values = "WHERE sequence < ?", [before]
        if session_id:
            return self._moves(
                f"{where} AND session_id = ? ORDER BY sequence DESC LIMIT ?", (*values, session_id, limit), told=False
            )
        return self._moves(f"{where} ORDER BY sequence DESC LIMIT ?", (*values, limit), told=False)

    def _moves(self, query: str, values: Sequence[object], *, told: bool) -> list[MoveRecord]:
        rows = self._all(f"SELECT sequence, {', '.join(MOVE_COLUMNS)} FROM moves {query}", values)
        return [move_from_row(row, self._lines(row[1]) if told else ()) for row in rows]

    def _lines(self, move_id: str) -> tuple[Transition, ...]:
        rows = self._all(
            "SELECT at_s, before, event, after, effects FROM transitions WHERE move_id = ? ORDER BY line", (move_id,)
        )
        return tuple(
            Transition(at_s, Phase(before), event, Phase(after), tuple(effects.split("\n")) if effects else ())
            for at_s, before, event, after, effects in rows
        )

    # --- leases and profile

    def leases(self) -> list[Lease]:
        """All leases."""
        rows = self._all(
            "SELECT move_id, host_id, slot_bytes, begins_s, ends_s, phase FROM leases JOIN moves USING (move_id)"
        )
        return [
            Lease(move_id, host_id, slot_bytes, begins_s, ends_s, phase in RECEIVING)
            for move_id, host_id, slot_bytes, begins_s, ends_s, phase in rows
        ]

    def paths(self) -> list[PathRow]:
        """What was measured of all paths."""
        return [PathRow(*row) for row in self._all("SELECT * FROM profile")]

"""The journal's moves and leases: how far each move is, and what that means for its session and its receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from admission.estimators import EstimateRow
from admission.journal_base import Base
from admission.journal_database import Cell, Connection
from admission.journal_rows import (
    MOVE_COLUMNS,
    SESSION_COLUMNS,
    Caps,
    Lease,
    changing_cells,
    estimate_cells,
    fixed_cells,
    move_from_row,
    receipts_cell,
    session_from_row,
)
from admission.machine import RECEIVING, EventKind, Phase, Transition
from admission.record import MoveRecord
from worldline.errors import Exhausted, Owned, SessionLost

# Losses are numbered in `lost`, so that the oldest can be let go.
NEXT_LOSS = "SELECT coalesce(max(lost), 0) + 1 FROM sessions WHERE lost > 0"

_TAKE = (
    "UPDATE sessions SET move_id = :move_id WHERE session_id = :session_id AND host_id = :host_id "
    "AND incarnation = :incarnation AND epoch = :epoch AND move_id = '' AND lost = 0"
)
_ADD = (
    f"INSERT INTO moves ({', '.join(MOVE_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in MOVE_COLUMNS)}) "
    "RETURNING sequence"
)
_CHANGED = "phase = :phase, closed = :closed, source_dead = :source_dead, destination_dead = :destination_dead, "
_SAVE = f"UPDATE moves SET {_CHANGED}grant_token = :grant_token, progress = :progress WHERE move_id = :move_id"
_SAVE_RECEIPTS = "UPDATE moves SET receipts = :receipts WHERE move_id = :move_id"
_LINE = (
    "INSERT INTO transitions (move_id, line, at_s, before, event, after, effects) "
    "VALUES (:move_id, :line, :at_s, :before, :event, :after, :effects)"
)
_LEASE = (
    "INSERT INTO leases (move_id, host_id, mover_id, slot_bytes, begins_s, ends_s) "
    "VALUES (:move_id, :host_id, :mover_id, :slot_bytes, :begins_s, :ends_s)"
)
_PHASES = ", ".join(str(int(phase)) for phase in RECEIVING)
_RECEIVED = f"SELECT count(*) FROM leases JOIN moves USING (move_id) WHERE moves.phase IN ({_PHASES})"
_HAND_OVER = (
    "UPDATE sessions SET host_id = :host_id, incarnation = :incarnation, epoch = :epoch "
    "WHERE session_id = :session_id AND move_id = :move_id"
)
# The host may have been proven dead while the move still had the session.
_LET_GO = (
    "UPDATE sessions SET move_id = '', lost = CASE WHEN :lost = 1 OR EXISTS (SELECT 1 FROM hosts "
    "WHERE hosts.host_id = sessions.host_id AND (hosts.incarnation > sessions.incarnation "
    "OR (hosts.incarnation = sessions.incarnation AND hosts.fenced = 1))) "
    f"THEN ({NEXT_LOSS}) ELSE lost END WHERE session_id = :session_id AND move_id = :move_id"
)
_KEEP_ESTIMATE = (
    "INSERT INTO estimates (source_mover, destination_mover, idiom, quantity, mean, deviation, weight, suspect_mean, "
    "suspects, sampled_at_s) VALUES (:source_mover, :destination_mover, :idiom, :quantity, :mean, :deviation, "
    ":weight, :suspect_mean, :suspects, :sampled_at_s) "
    "ON CONFLICT (source_mover, destination_mover, idiom, quantity) DO UPDATE SET mean = excluded.mean, "
    "deviation = excluded.deviation, weight = excluded.weight, suspect_mean = excluded.suspect_mean, "
    "suspects = excluded.suspects, sampled_at_s = excluded.sampled_at_s"
)


class MoveTables(Base):
    """Moves, their transitions and leases, and what they measured."""

    def add_move(self, record: MoveRecord, lease: Lease | None, caps: Caps | None = None) -> MoveRecord:
        """Keep a new move, refused or open; an open one takes its session. Returns it with its sequence.

        It is not waited for until it is on the disk: an open move owns nothing. One that a power cut takes away is
        given up by its mover and its hosts, as one is whose caller leaves.

        Raises:
            Owned: another move has the session. SessionLost: it is lost by now. Exhausted: the lease would be over one
            of `caps`.
        """
        with self._transaction(synced=False) as db:
            if record.phase is Phase.OPEN:
                self._take_session(db, record)
            if lease is not None:
                self._add_lease(db, lease, caps or Caps())
            ((sequence,),) = db.execute(_ADD, {**fixed_cells(record), **changing_cells(record)})
            self._write_lines(db, record, 0)
        return replace(record, sequence=sequence)

    def _take_session(self, db: Connection, record: MoveRecord) -> None:
        taken = db.change(
            _TAKE,
            {
                "move_id": record.move_id,
                "session_id": record.session_id,
                "host_id": record.source.host_id,
                "incarnation": record.source.incarnation,
                "epoch": record.epoch,
            },
        )
        if taken == 1:
            return
        session_id = record.session_id
        rows = db.execute(
            f"SELECT {', '.join(SESSION_COLUMNS)} FROM sessions WHERE session_id = :session_id",
            {"session_id": session_id},
        )
        row = session_from_row(rows[0]) if rows else None
        if row is not None and row.lost:
            raise SessionLost(f"session {session_id} was lost with its host", resource=("session", session_id))
        raise Owned(
            f"session {session_id} is in move {row.move_id if row else ''} or has just changed; ask again",
            resource=("move", row.move_id if row else ""),
            retry_after_s=1.0,
        )

    def _add_lease(self, db: Connection, lease: Lease, caps: Caps) -> None:
        """Counted and added in one transaction: no two leases can take the last place."""
        for cap, column, name in (
            (caps.receiver, "host_id", lease.host_id),
            (caps.mover, "mover_id", lease.mover_id),
        ):
            if not cap:
                continue
            ((taken,),) = db.execute(f"{_RECEIVED} AND leases.{column} = :name", {"name": name})
            if taken >= cap:
                raise Exhausted(
                    f"{taken} moves come into {name} by now, at most {cap} may; ask again",
                    reason="RECEIVER_BUSY",
                    numbers={"in_flight": taken, "cap": cap},
                    retry_after_s=1.0,
                    resource=("receiver", name),
                )
        db.execute(
            _LEASE,
            {
                "move_id": lease.move_id,
                "host_id": lease.host_id,
                "mover_id": lease.mover_id,
                "slot_bytes": lease.slot_bytes,
                "begins_s": lease.begins_s,
                "ends_s": lease.ends_s,
            },
        )

    def save_move(self, record: MoveRecord, new_lines: int, estimates: Sequence[EstimateRow] = ()) -> None:
        """Keep a transition: the move, the last `new_lines` of its log, and what it means for session and lease.

        `estimates`: what its path takes, with this move. A transition that closes the move is not waited for until it
        is on the disk.
        """
        first = len(record.transitions) - new_lines
        cells = {**changing_cells(record), "move_id": record.move_id}
        verified = any(line.event == EventKind.VERIFIED.value for line in record.transitions[first:])
        with self._transaction(synced=not record.phase.closed) as db:
            db.execute(_SAVE, cells)
            if verified:
                db.execute(_SAVE_RECEIPTS, {"receipts": receipts_cell(record), "move_id": record.move_id})
            self._write_lines(db, record, first)
            self._follow(db, record)
            db.many(_KEEP_ESTIMATE, map(estimate_cells, estimates))

    def _follow(self, db: Connection, record: MoveRecord) -> None:
        """Ownership and lease as they follow from where the move stands."""
        where: dict[str, Cell] = {"session_id": record.session_id, "move_id": record.move_id}
        if record.phase is Phase.DONE:
            taker = record.destination
            owner: dict[str, Cell] = {"host_id": taker.host_id, "incarnation": taker.incarnation}
            db.execute(_HAND_OVER, {**where, **owner, "epoch": record.epoch + 1})
        if record.phase.closed and record.state.session_closed:
            db.execute("DELETE FROM sessions WHERE session_id = :session_id AND move_id = :move_id", where)
        elif record.phase.closed:
            db.execute(_LET_GO, {**where, "lost": int(record.phase is Phase.LOST)})
        if record.phase is Phase.DONE or record.phase.closed:
            db.execute("DELETE FROM leases WHERE move_id = :move_id", {"move_id": record.move_id})

    @staticmethod
    def _write_lines(db: Connection, record: MoveRecord, first: int) -> None:
        for number, line in enumerate(record.transitions[first:], first):
            db.execute(
                _LINE,
                {
                    "move_id": record.move_id,
                    "line": number,
                    "at_s": line.at_s,
                    "before": int(line.before),
                    "event": line.event,
                    "after": int(line.after),
                    "effects": "\n".join(line.effects),
                },
            )

    # --- what is asked

    def move(self, move_id: str) -> MoveRecord | None:
        """One move by its id."""
        return self._one("move_id", move_id)

    def move_of_request(self, request_id: str) -> MoveRecord | None:
        """One move by the id of its request."""
        return self._one("request_id", request_id)

    def _one(self, column: str, value: str) -> MoveRecord | None:
        found = self._moves(f"WHERE {column} = :value", {"value": value}, told=True)
        return found[0] if found else None

    def open_moves(self) -> list[MoveRecord]:
        """Moves that are not closed, oldest first."""
        return self._moves("WHERE closed = 0 ORDER BY sequence", {}, told=True)

    def moves(self, before: int, session_id: str, limit: int) -> list[MoveRecord]:
        """At most `limit` moves of a sequence below `before`, newest first, without their transitions."""
        of_session = "AND session_id = :session_id " if session_id else ""
        values: dict[str, Cell] = {"before": before, "limit": limit}
        if session_id:
            values["session_id"] = session_id
        query = f"WHERE sequence < :before {of_session}ORDER BY sequence DESC LIMIT :limit"
        return self._moves(query, values, told=False)

    def _moves(self, query: str, values: dict[str, Cell], *, told: bool) -> list[MoveRecord]:
        rows = self._rows(f"SELECT sequence, {', '.join(MOVE_COLUMNS)} FROM moves {query}", values)
        return [move_from_row(row, self._lines(row[1]) if told else ()) for row in rows]

    def _lines(self, move_id: str) -> tuple[Transition, ...]:
        rows = self._rows(
            "SELECT at_s, before, event, after, effects FROM transitions WHERE move_id = :move_id ORDER BY line",
            {"move_id": move_id},
        )
        return tuple(
            Transition(at_s, Phase(before), event, Phase(after), tuple(effects.split("\n")) if effects else ())
            for at_s, before, event, after, effects in rows
        )

    def leases(self) -> list[Lease]:
        """All leases."""
        rows = self._rows(
            "SELECT move_id, leases.host_id, slot_bytes, begins_s, ends_s, phase, mover_id "
            "FROM leases JOIN moves USING (move_id)"
        )
        return [
            Lease(move_id, host_id, slot_bytes, begins_s, ends_s, phase in RECEIVING, mover_id)
            for move_id, host_id, slot_bytes, begins_s, ends_s, phase, mover_id in rows
        ]

    def estimates(self) -> list[EstimateRow]:
        """What was measured of all paths."""
        columns = "source_mover, destination_mover, idiom, quantity, mean, deviation, weight, suspect_mean, suspects"
        return [EstimateRow(*row) for row in self._rows(f"SELECT {columns}, sampled_at_s FROM estimates")]

    def save_estimates(self, rows: Sequence[EstimateRow]) -> None:
        """Keep what was measured otherwise than by moves; not waited for until it is on the disk."""
        with self._transaction(synced=False) as db:
            db.many(_KEEP_ESTIMATE, map(estimate_cells, rows))

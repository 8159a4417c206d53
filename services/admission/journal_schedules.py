"""The journal's schedules: drains and plans, their steps, and the hosts that were told to drain."""

from __future__ import annotations

from collections.abc import Sequence

from admission.journal_base import Base
from admission.journal_database import Cell, Connection, Row
from admission.schedule import ScheduleRow, ScheduleState, StepRow, StepState

_SCHEDULE_COLUMNS = (
    "schedule_id, request_id, request_digest, host_id, state, patience_s, created_at_s, closed_at_s, predicted_s"
)
_SCHEDULES = f"SELECT {_SCHEDULE_COLUMNS} FROM schedules"
_ADD = (
    f"INSERT INTO schedules ({_SCHEDULE_COLUMNS}) VALUES (:schedule_id, :request_id, :request_digest, :host_id, "
    ":state, :patience_s, :created_at_s, :closed_at_s, :predicted_s)"
)
_SAVE = (
    "UPDATE schedules SET state = :state, patience_s = :patience_s, closed_at_s = :closed_at_s, "
    "predicted_s = :predicted_s WHERE schedule_id = :schedule_id"
)
_STEP_COLUMNS = (
    "schedule_id, line, session_id, source_host_id, destination_host_id, pinned, round, attempt, state, move_id, "
    "predicted_s, reason, message"
)
_SAVE_STEP = (
    f"INSERT INTO steps ({_STEP_COLUMNS}) VALUES (:schedule_id, :line, :session_id, :source_host_id, "
    ":destination_host_id, :pinned, :round, :attempt, :state, :move_id, :predicted_s, :reason, :message) "
    "ON CONFLICT (schedule_id, line) DO UPDATE SET session_id = excluded.session_id, "
    "source_host_id = excluded.source_host_id, destination_host_id = excluded.destination_host_id, "
    "pinned = excluded.pinned, round = excluded.round, attempt = excluded.attempt, state = excluded.state, "
    "move_id = excluded.move_id, predicted_s = excluded.predicted_s, reason = excluded.reason, "
    "message = excluded.message"
)
_SET_DRAIN = (
    "INSERT INTO drains (host_id, since_s, schedule_id) VALUES (:host_id, :since_s, :schedule_id) "
    "ON CONFLICT (host_id) DO UPDATE SET since_s = excluded.since_s, schedule_id = excluded.schedule_id"
)


class ScheduleTables(Base):
    """Schedules, steps and drains."""

    def add_schedule(self, schedule: ScheduleRow, steps: Sequence[StepRow]) -> None:
        """Keep a new schedule and its steps, both or neither."""
        with self._transaction() as db:
            db.execute(
                _ADD,
                {
                    **_schedule_cells(schedule),
                    "request_id": schedule.request_id,
                    "request_digest": schedule.request_digest,
                    "host_id": schedule.host_id,
                    "created_at_s": schedule.created_at_s,
                },
            )
            _save_steps(db, steps)

    def save_schedule(self, schedule: ScheduleRow) -> None:
        """Keep what changed of a schedule."""
        with self._transaction() as db:
            db.execute(_SAVE, _schedule_cells(schedule))

    def save_steps(self, steps: Sequence[StepRow]) -> None:
        """Keep steps, new or changed."""
        with self._transaction() as db:
            _save_steps(db, steps)

    def schedule(self, schedule_id: str) -> ScheduleRow | None:
        """One schedule."""
        return _first(self._rows(f"{_SCHEDULES} WHERE schedule_id = :schedule_id", {"schedule_id": schedule_id}))

    def schedule_of_request(self, request_id: str) -> ScheduleRow | None:
        """The schedule of that request."""
        return _first(self._rows(f"{_SCHEDULES} WHERE request_id = :request_id", {"request_id": request_id}))

    def open_schedules(self) -> list[ScheduleRow]:
        """Those that are RUNNING, oldest first."""
        running = int(ScheduleState.RUNNING)
        return [_schedule_from(row) for row in self._rows(f"{_SCHEDULES} WHERE state = {running} ORDER BY sequence")]

    def schedules(self, limit: int) -> list[ScheduleRow]:
        """At most `limit`, newest first."""
        rows = self._rows(f"{_SCHEDULES} ORDER BY sequence DESC LIMIT :limit", {"limit": limit})
        return [_schedule_from(row) for row in rows]

    def steps(self, schedule_id: str) -> list[StepRow]:
        """The steps of a schedule by line."""
        rows = self._rows(
            f"SELECT {_STEP_COLUMNS} FROM steps WHERE schedule_id = :schedule_id ORDER BY line",
            {"schedule_id": schedule_id},
        )
        return [_step_from(row) for row in rows]

    def drains(self) -> dict[str, str]:
        """The hosts that are to be drained, each with the schedule that does it."""
        return dict(self._rows("SELECT host_id, schedule_id FROM drains"))

    def set_drain(self, host_id: str, since_s: float, schedule_id: str) -> None:
        """The host is to be drained."""
        with self._transaction() as db:
            db.execute(_SET_DRAIN, {"host_id": host_id, "since_s": since_s, "schedule_id": schedule_id})

    def clear_drain(self, host_id: str) -> None:
        """The host may take sessions again."""
        with self._transaction() as db:
            db.execute("DELETE FROM drains WHERE host_id = :host_id", {"host_id": host_id})


def _schedule_cells(schedule: ScheduleRow) -> dict[str, Cell]:
    """What changes of a schedule, and its id."""
    return {
        "schedule_id": schedule.schedule_id,
        "state": int(schedule.state),
        "patience_s": schedule.patience_s,
        "closed_at_s": schedule.closed_at_s,
        "predicted_s": schedule.predicted_s,
    }


def _first(rows: list[Row]) -> ScheduleRow | None:
    return _schedule_from(rows[0]) if rows else None


def _schedule_from(row: Row) -> ScheduleRow:
    schedule_id, request_id, request_digest, host_id, state, *times_s = row
    return ScheduleRow(schedule_id, request_id, request_digest, host_id, ScheduleState(state), *times_s)


def _save_steps(db: Connection, steps: Sequence[StepRow]) -> None:
    db.many(
        _SAVE_STEP,
        [
            {
                "schedule_id": step.schedule_id,
                "line": step.line,
                "session_id": step.session_id,
                "source_host_id": step.source_host_id,
                "destination_host_id": step.destination_host_id,
                "pinned": int(step.pinned),
                "round": step.round,
                "attempt": step.attempt,
                "state": int(step.state),
                "move_id": step.move_id,
                "predicted_s": step.predicted_s,
                # PostgreSQL keeps no NUL in a text.
                "reason": step.reason.replace("\0", "\N{REPLACEMENT CHARACTER}"),
                "message": step.message.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            }
            for step in steps
        ],
    )


def _step_from(row: Row) -> StepRow:
    cells = dict(zip(_STEP_COLUMNS.split(", "), row, strict=True))
    return StepRow(**{**cells, "pinned": bool(cells["pinned"]), "state": StepState(cells["state"])})

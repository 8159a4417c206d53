"""A schedule: the moves of a drain or of a plan, in rounds; as values, and as they are kept."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass

from worldline.v1 import admission_service_pb2 as pb


class ScheduleState(enum.IntEnum):
    """Where a schedule stands; values are those of the wire."""

    RUNNING = 1
    DONE = 2
    CANCELLED = 3


class StepState(enum.IntEnum):
    """Where one session of a schedule stands; values are those of the wire.

    GONE: it left without this schedule, because its player closed it, its host died or another move took it.
    """

    WAITING = 1
    MOVING = 2
    MOVED = 3
    FAILED = 4
    GONE = 5

    @property
    def closed(self) -> bool:
        """Whether nothing more will be tried."""
        return self in (StepState.MOVED, StepState.FAILED, StepState.GONE)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One schedule. `host_id` is the host that is drained, empty for a plan; times are Unix seconds.

    `patience_s`: how long a step that must wait is asked again before it counts as impossible. `predicted_s`: from
    `created_at_s` to the end, as it was predicted.
    """

    schedule_id: str
    request_id: str
    request_digest: bytes
    host_id: str
    state: ScheduleState
    patience_s: float
    created_at_s: float
    closed_at_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """One session's move in a schedule, the `line`th of it.

    `destination_host_id` is where it was planned to; `pinned`: nowhere else will do. `attempt` numbers its requests: a
    new one is kept before it is used, so that a restart asks with the id that was used and finds the move it began.
    """

    schedule_id: str
    line: int
    session_id: str
    source_host_id: str
    destination_host_id: str
    pinned: bool
    round: int
    attempt: int
    state: StepState
    move_id: str
    predicted_s: float
    reason: str
    message: str

    @property
    def request_id(self) -> str:
        """The id of its present request: the same after a restart."""
        return str(uuid.uuid5(uuid.UUID(self.schedule_id), f"{self.line}/{self.attempt}"))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its steps."""

    row: ScheduleRow
    steps: tuple[StepRow, ...]


def schedule_to(schedule: Schedule, *, dry_run: bool = False) -> pb.Schedule:
    """To the wire; a dry run has no id and no state."""
    row = schedule.row
    message = pb.Schedule(
        host_id=row.host_id,
        rounds=len({step.round for step in schedule.steps if step.state is not StepState.FAILED or step.move_id}),
        predicted_s=row.predicted_s,
        steps=[_step_to(step) for step in sorted(schedule.steps, key=lambda step: (step.round, step.line))],
    )
    if not dry_run:
        message.schedule_id = row.schedule_id
        message.state = int(row.state)  # type: ignore[assignment]
        message.created_at_s = row.created_at_s
        message.closed_at_s = row.closed_at_s
    return message


def _step_to(step: StepRow) -> pb.ScheduleStep:
    return pb.ScheduleStep(
        session_id=step.session_id,
        source_host_id=step.source_host_id,
        destination_host_id=step.destination_host_id,
        round=step.round,
        state=int(step.state),  # type: ignore[arg-type]
        move_id=step.move_id,
        predicted_s=step.predicted_s,
        reason=step.reason,
        message=step.message,
        attempt=step.attempt,
    )

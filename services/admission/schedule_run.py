"""One running schedule: its thread begins moves round by round, each asked for like anybody's.

A round opens when the wires of the one before are over: that is told by the moves themselves, never by a timer. So a
move is decided when its bytes can leave (the paper names the gap between the two as the likely reason of its misses at
twice the load, §6.3). A move that must wait leaves its place in the round to the next ones and is asked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from admission.coordinator import Coordinator
from admission.decision import Ask
from admission.journal import Journal
from admission.machine import Phase
from admission.opening import Opener, Waits, wire_over
from admission.placement import Arrivals
from admission.planning import PATIENCE_S, Planner, Wish
from admission.record import MoveRecord
from admission.rules import Mode
from admission.schedule import Schedule, ScheduleState, StepRow, StepState
from admission.watch import Feed
from worldline import telemetry
from worldline.canonical import digest
from worldline.errors import Exhausted, Owned, Unavailable, WorldlineError

# Moves of one session that may be given up before it counts as impossible.
MAX_ATTEMPTS = 3
# Seconds between looks where nobody tells when something changes: a host that is away comes back unannounced.
_LOOK_S = 0.5
# Seconds that a cancel may take to be kept.
_CANCEL_S = 5.0
_CANCELLED = "SCHEDULE_CANCELLED"
# Errors after which asking again can help.
_PASSING = (Owned, Exhausted, Unavailable)


@dataclass(frozen=True, slots=True)
class RunMeans:
    """What every running schedule works with."""

    journal: Journal
    opener: Opener
    coordinator: Coordinator
    planner: Planner
    arrivals: Arrivals
    feed: Feed


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at what waits: whether it is the last one, and the hosts that have told a step to wait."""

    last: bool
    busy: set[str]


class ScheduleRun:
    """One schedule that is RUNNING. `schedule` is its newest state; only its own thread changes steps."""

    def __init__(self, means: RunMeans, schedule: Schedule) -> None:
        self.schedule = schedule
        self._means = means
        self._stopped = False
        self._cancelled = any(step.reason == _CANCELLED for step in schedule.steps)
        self._looked_for_begun = False
        # When something was last begun or ended, monotonic seconds.
        self._progress_s = time.monotonic()
        self._log = telemetry.log("schedule").bind(schedule_id=schedule.row.schedule_id, host_id=schedule.row.host_id)

    # --- from other threads

    def cancel(self) -> None:
        """Begin nothing more; returns when that is kept. Raises Unavailable: it is not yet."""
        self._cancelled = True
        self._means.feed.changed()
        self._means.feed.wait(lambda: not self._in(StepState.WAITING), _CANCEL_S)
        if self._in(StepState.WAITING):
            raise Unavailable(
                f"the cancel of schedule {self.schedule.row.schedule_id} could not be kept within {_CANCEL_S:g} s; ask "
                "again",
                retry_after_s=1.0,
            )

    def stop(self) -> None:
        """Leave the schedule as it is kept; the next start goes on with it."""
        self._stopped = True
        self._means.feed.changed()

    # --- its own thread

    def run(self) -> None:
        """Until the schedule is closed or `stop`."""
        while not self._stopped and self.schedule.row.state is ScheduleState.RUNNING:
            # Before the look: what happens during it must not be slept through.
            before = self._points()
            try:
                wait_s = self._once()
            except WorldlineError as error:
                # The journal could not be written: what is not kept is not done, and is tried again.
                self._log.error("no step", error=error.message, reason=error.reason)
                wait_s = _LOOK_S
            except Exception as error:
                # A bug of ours: an open schedule must never be without its thread.
                self._log.exception("unexpected", error=f"{type(error).__name__}: {error}")
                wait_s = _LOOK_S
            self._wait(before, wait_s)

    def _wait(self, before: frozenset[tuple[str, Phase, bool]], seconds: float) -> None:
        """Until the fleet's moves are at other points than `before`, at most `seconds`."""
        if seconds > 0:
            self._means.feed.wait(lambda: self._stopped or self._cancelled or self._points() != before, seconds)

    def _points(self) -> frozenset[tuple[str, Phase, bool]]:
        return frozenset(
            (record.move_id, record.phase, wire_over(record)) for record in self._means.coordinator.records()
        )

    def _once(self) -> float:
        """One look at all steps. Returns the seconds that may pass before the next one if nothing happens."""
        self._settle()
        if self._cancelled:
            self._give_up_waiting()
        waiting = self._in(StepState.WAITING)
        if not waiting and not self._in(StepState.MOVING):
            if self._more_may_come():
                return _LOOK_S
            return 0.0 if self._find_more() else self._close()
        if not all(wire_over(self._record(step)) for step in self._in(StepState.MOVING)):
            return _LOOK_S
        look = _Look(self._patience_over(), set())
        for number in sorted({step.round for step in waiting}):
            if self._open_round(number, [step for step in waiting if step.round == number], look):
                self._progress_s = time.monotonic()
                return 0.0
        return _LOOK_S

    def _patience_over(self) -> bool:
        """Whether nothing was begun or ended for the schedule's patience, with none of its moves under way."""
        quiet_s = time.monotonic() - self._progress_s
        return quiet_s > self.schedule.row.patience_s and not self._in(StepState.MOVING)

    def _in(self, state: StepState) -> list[StepRow]:
        return [step for step in self.schedule.steps if step.state is state]

    def _record(self, step: StepRow) -> MoveRecord:
        return self._means.coordinator.record(step.move_id)

    def _settle(self) -> None:
        """Take over how moves ended, and find those that were begun before a restart."""
        if not self._looked_for_begun:
            begun = [
                (step, self._means.journal.move_of_request(step.request_id)) for step in self._in(StepState.WAITING)
            ]
            self._keep(*(self._moving(step, record) for step, record in begun if record is not None))
            self._looked_for_begun = True
        changed = []
        for step in self._in(StepState.MOVING):
            record = self._record(step)
            if record.phase.closed:
                changed.append(self._ended(step, record))
        self._keep(*changed)

    @staticmethod
    def _moving(step: StepRow, record: MoveRecord) -> StepRow:
        return replace(
            step,
            state=StepState.MOVING,
            move_id=record.move_id,
            destination_host_id=record.destination.host_id,
            reason="",
            message="",
        )

    def _ended(self, step: StepRow, record: MoveRecord) -> StepRow:
        self._progress_s = time.monotonic()
        if record.phase is Phase.MOVED:
            return replace(step, state=StepState.MOVED)
        told = replace(step, reason=record.state.reason, message=record.state.message)
        if record.state.session_closed:
            return replace(told, state=StepState.GONE)
        if record.phase is Phase.LOST or record.state.reason == "CANCELLED" or step.attempt + 1 >= MAX_ATTEMPTS:
            return replace(told, state=StepState.FAILED)
        last = max(other.round for other in self.schedule.steps)
        return replace(told, state=StepState.WAITING, attempt=step.attempt + 1, round=last + 1)

    def _open_round(self, number: int, steps: list[StepRow], look: _Look) -> bool:
        """Begin what can begin of a round. Returns whether anything did, or ended."""
        attributes: dict[str, telemetry.Attribute] = {
            "schedule.id": self.schedule.row.schedule_id,
            "schedule.round": number,
        }
        with telemetry.span("schedule.round", attributes):
            found = [self._begin(step, look) for step in steps]
        self._keep(*(after for before, after in zip(steps, found, strict=True) if after != before))
        return any(step.state is not StepState.WAITING for step in found)

    def _begin(self, step: StepRow, look: _Look) -> StepRow:
        """The step after it was asked for, unless its host has told another one in this look to wait."""
        gone = self._gone(step)
        if gone is not None:
            return gone
        after = self._asked(step, look)
        # A session that has left since that look is refused for a reason that says nothing of this schedule.
        return (self._gone(step) or after) if after.state is StepState.FAILED else after

    def _asked(self, step: StepRow, look: _Look) -> StepRow:
        if step.destination_host_id in look.busy and not look.last:
            return step
        try:
            answer = self._ask(step, step.destination_host_id)
            if isinstance(answer, Waits) and answer.final:
                if step.pinned or not step.destination_host_id:
                    return self._failed(step, answer)
                # What was planned does not pass any more: another host may.
                answer = self._ask(step, "")
        except _PASSING as error:
            return self._waits(step, look, error.reason, error.message)
        except WorldlineError as error:
            return replace(step, state=StepState.FAILED, reason=error.reason, message=error.message)
        if isinstance(answer, MoveRecord):
            self._log.info("begins", session_id=step.session_id, move_id=answer.move_id, round=step.round)
            return self._moving(step, answer)
        if answer.final:
            return self._failed(step, answer)
        if step.destination_host_id:
            look.busy.add(step.destination_host_id)
        return self._waits(step, look, answer.reason, answer.message)

    def _ask(self, step: StepRow, host_id: str) -> MoveRecord | Waits:
        asked = digest("schedule step", [step.session_id, host_id])
        ask = Ask(step.session_id, host_id, Mode.FROZEN, PATIENCE_S, "")
        return self._means.opener.scheduled(step.request_id, asked, ask)

    def _gone(self, step: StepRow) -> StepRow | None:
        """The step of a session that has left by itself; None if it is still there."""
        row = self._means.journal.session(step.session_id)
        if row is None:
            return replace(step, state=StepState.GONE, reason="SESSION_CLOSED", message="its player closed it")
        if row.lost:
            lost = f"was lost with incarnation {row.incarnation} of host {row.host_id}"
            return replace(step, state=StepState.FAILED, reason="SESSION_LOST", message=lost)
        if row.host_id != step.source_host_id and not row.move_id:
            message = f"is on host {row.host_id} by now"
            return replace(step, state=StepState.GONE, reason="MOVED_BEFORE", message=message)
        return None

    @staticmethod
    def _failed(step: StepRow, answer: Waits) -> StepRow:
        return replace(step, state=StepState.FAILED, reason=answer.reason, message=answer.message)

    def _waits(self, step: StepRow, look: _Look, reason: str, message: str) -> StepRow:
        """The step that must wait; FAILED if it has waited for long enough."""
        if look.last:
            patience_s = self.schedule.row.patience_s
            waited = f"nothing could begin for {patience_s:g} s; {message}"
            return replace(step, state=StepState.FAILED, reason=reason, message=waited)
        # Numbers in the message change at each look: only a new reason is worth keeping.
        return step if step.reason == reason else replace(step, reason=reason, message=message)

    def _give_up_waiting(self) -> None:
        self._keep(
            *(
                replace(step, state=StepState.FAILED, reason=_CANCELLED, message="the schedule was cancelled")
                for step in self._in(StepState.WAITING)
            )
        )

    def _more_may_come(self) -> bool:
        """Whether a session is on its way to a drained host: in a move or a placement decided before the drain."""
        host_id = self.schedule.row.host_id
        if not host_id or self._cancelled:
            return False
        if self._means.arrivals.being_created(host_id):
            return True
        return any(record.destination.host_id == host_id for record in self._means.coordinator.records())

    def _find_more(self) -> bool:
        """Sessions that came to a drained host while it was drained become further steps. Returns whether any did."""
        row, steps = self.schedule.row, self.schedule.steps
        if not row.host_id or self._cancelled:
            return False
        known = {step.session_id for step in steps}
        found = [
            Wish(session.session_id)
            for session in self._means.journal.sessions_of(row.host_id)
            if session.session_id not in known
        ]
        if not found:
            return False
        last = max((step.round for step in steps), default=-1)
        self._keep(
            *self._means.planner.outline(row.schedule_id, found, first_line=len(steps), first_round=last + 1).steps
        )
        return True

    def _close(self) -> float:
        state = ScheduleState.CANCELLED if self._cancelled else ScheduleState.DONE
        row = replace(self.schedule.row, state=state, closed_at_s=time.time())
        self._means.journal.save_schedule(row)
        self._show(Schedule(row, self.schedule.steps))
        ended = {name.name.lower(): len(self._in(name)) for name in StepState}
        self._log.info("closed", state=state.name, **ended)
        return 0.0

    def _keep(self, *changed: StepRow) -> None:
        """Keep these steps, then let them be seen."""
        if not changed:
            return
        self._means.journal.save_steps(changed)
        steps = {step.line: step for step in self.schedule.steps} | {step.line: step for step in changed}
        self._show(Schedule(self.schedule.row, tuple(steps[line] for line in sorted(steps))))

    def _show(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._means.feed.changed()


def start_thread(run: ScheduleRun, ended: Callable[[ScheduleRun], None]) -> threading.Thread:
    """The thread of a run; `ended` is told when it is over."""

    def work() -> None:
        try:
            run.run()
        finally:
            ended(run)

    thread = threading.Thread(target=work, name=f"schedule-{run.schedule.row.schedule_id[:8]}", daemon=True)
    thread.start()
    return thread

"""Drains and plans: taken in, kept, and run, one thread each."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from admission.fleet import Fleet
from admission.placement import require_same
from admission.planning import Wish
from admission.schedule import Schedule, ScheduleRow, ScheduleState, StepState
from admission.schedule_run import RunMeans, ScheduleRun, start_thread
from worldline import telemetry
from worldline.errors import Exhausted, NotFound, WrongState

# Schedules that run at the same time; each holds a thread.
MAX_RUNNING = 16


class Schedules:
    """All schedules of one admission process."""

    def __init__(self, means: RunMeans, fleet: Fleet) -> None:
        self._means = means
        self._fleet = fleet
        self._lock = threading.Lock()
        self._running: dict[str, tuple[ScheduleRun, threading.Thread]] = {}

    def recover(self) -> None:
        """After a start: hosts that were drained take no sessions, and every open schedule goes on."""
        for host_id in self._means.journal.drains():
            self._fleet.drain(host_id)
        rows = self._means.journal.open_schedules()
        with self._lock:
            for row in rows:
                self._start(Schedule(row, tuple(self._means.journal.steps(row.schedule_id))))
        if rows:
            telemetry.log("recovery").info("schedules go on", count=len(rows))

    def try_out(self, host_id: str, wishes: Sequence[Wish]) -> Schedule:
        """What a drain of `host_id`, or a plan of `wishes`, would do. Raises NotFound: no such host."""
        return self._outlined(self._row("", b"", host_id, 0.0), wishes)

    def drain(self, request_id: str, digested: bytes, host_id: str, patience_s: float) -> Schedule:
        """Move everything off a host; the drain of it that runs already, if one does.

        Raises:
            BadRequest: the id was used for another request. NotFound: no such host. Exhausted: too many run.
        """
        with self._lock:
            known = self._known(request_id, digested)
            if known is not None:
                return known
            for run, _ in self._running.values():
                if run.schedule.row.host_id == host_id:
                    return run.schedule
            self._require_room()
            self._fleet.host(host_id)
            row = self._row(request_id, digested, host_id, patience_s)
            # First of all: no session may come while the drain is planned.
            self._means.journal.set_drain(host_id, row.created_at_s, row.schedule_id)
            self._fleet.drain(host_id)
            return self._add(self._outlined(row, ()))

    def plan(self, request_id: str, digested: bytes, wishes: Sequence[Wish], patience_s: float) -> Schedule:
        """Make several moves in rounds.

        Raises:
            BadRequest: the id was used for another request. Exhausted: too many run.
        """
        with self._lock:
            known = self._known(request_id, digested)
            if known is not None:
                return known
            self._require_room()
            return self._add(self._outlined(self._row(request_id, digested, "", patience_s), wishes))

    def undrain(self, host_id: str) -> str:
        """Let a host take sessions again. Returns the drain that was cancelled for it, if one ran.

        Raises:
            NotFound: no such host. Unavailable: it takes sessions, but its drain could not be cancelled yet.
        """
        self._fleet.host(host_id)
        with self._lock:
            self._means.journal.clear_drain(host_id)
            self._fleet.undrain(host_id)
            draining = [run for run, _ in self._running.values() if run.schedule.row.host_id == host_id]
        for run in draining:
            run.cancel()
        return draining[0].schedule.row.schedule_id if draining else ""

    def cancel(self, schedule_id: str) -> Schedule:
        """Begin no more of its moves. Raises NotFound, WrongState; Unavailable: that could not be kept yet."""
        with self._lock:
            running = self._running.get(schedule_id)
        if running is not None:
            running[0].cancel()
            return running[0].schedule
        schedule = self.schedule(schedule_id)
        if schedule.row.state is not ScheduleState.CANCELLED:
            raise WrongState(
                f"schedule {schedule_id} is {schedule.row.state.name}: it cannot be cancelled any more",
                reason="TOO_LATE_TO_CANCEL",
                resource=("schedule", schedule_id),
            )
        return schedule

    def schedule(self, schedule_id: str) -> Schedule:
        """One schedule as it is now. Raises NotFound."""
        with self._lock:
            running = self._running.get(schedule_id)
        if running is not None:
            return running[0].schedule
        row = self._means.journal.schedule(schedule_id)
        if row is None:
            raise NotFound(
                f"there is no schedule {schedule_id}",
                reason="UNKNOWN_SCHEDULE",
                resource=("schedule", schedule_id),
            )
        return Schedule(row, tuple(self._means.journal.steps(schedule_id)))

    def stop(self, grace_s: float = 2.0) -> None:
        """Stop all threads; open schedules stay open."""
        with self._lock:
            running = list(self._running.values())
        for run, _ in running:
            run.stop()
        for _, thread in running:
            thread.join(grace_s)

    # --- the lock is held

    def _known(self, request_id: str, digested: bytes) -> Schedule | None:
        """The schedule of that request, if it was asked before. Raises BadRequest if it was another request."""
        row = self._means.journal.schedule_of_request(request_id)
        if row is None:
            return None
        require_same(row.request_digest, digested, request_id)
        running = self._running.get(row.schedule_id)
        return running[0].schedule if running else Schedule(row, tuple(self._means.journal.steps(row.schedule_id)))

    def _require_room(self) -> None:
        if len(self._running) >= MAX_RUNNING:
            raise Exhausted(
                f"{len(self._running)} schedules run, at most {MAX_RUNNING} may; cancel one or wait for its end",
                reason="TOO_MANY_SCHEDULES",
                numbers={"running": len(self._running), "limit": MAX_RUNNING},
                retry_after_s=5.0,
            )

    @staticmethod
    def _row(request_id: str, digested: bytes, host_id: str, patience_s: float) -> ScheduleRow:
        now_s, running = time.time(), ScheduleState.RUNNING
        return ScheduleRow(str(uuid.uuid4()), request_id, digested, host_id, running, patience_s, now_s, 0.0, 0.0)

    def _outlined(self, row: ScheduleRow, wishes: Sequence[Wish]) -> Schedule:
        if row.host_id:
            self._fleet.host(row.host_id)
            wishes = [Wish(session.session_id) for session in self._means.journal.sessions_of(row.host_id)]
        outline = self._means.planner.outline(row.schedule_id, wishes)
        return Schedule(replace(row, predicted_s=outline.predicted_s), outline.steps)

    def _add(self, schedule: Schedule) -> Schedule:
        self._means.journal.add_schedule(schedule.row, schedule.steps)
        telemetry.log("schedule").info(
            "begins",
            schedule_id=schedule.row.schedule_id,
            host_id=schedule.row.host_id,
            steps=len(schedule.steps),
            impossible=sum(step.state is StepState.FAILED for step in schedule.steps),
            predicted_s=schedule.row.predicted_s,
        )
        self._start(schedule)
        return schedule

    def _start(self, schedule: Schedule) -> None:
        run = ScheduleRun(self._means, schedule)
        self._running[schedule.row.schedule_id] = run, start_thread(run, self._ended)

    def _ended(self, run: ScheduleRun) -> None:
        with self._lock:
            self._running.pop(run.schedule.row.schedule_id, None)

"""One open move: its thread asks, turns answers into events, and journals each transition before its effects."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from admission import metrics
from admission.alarm import Alarm
from admission.coding import CodedMove
from admission.effects import Answer, Effects, NoAnswer, Route
from admission.estimators import EstimateRow
from admission.holds import Holds
from admission.journal import Journal
from admission.line import Interrupted, Line
from admission.machine import Effect, Event, EventKind, Phase, Transition, effects_of, step
from admission.profile import Profile
from admission.record import MoveRecord
from admission.settings import AdmissionSettings
from admission.stopwatch import Stopwatch
from worldline import telemetry, wire
from worldline.errors import WorldlineError, WrongState
from worldline.v1 import mover_service_pb2 as mover_pb

_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.05, 1.0
_FROZEN_STAGES = ("wire", "verify", "verified")
_ONLY_WHILE_OPEN = (EventKind.CANCELLED, EventKind.DEADLINE_PASSED, EventKind.MOVER_FAILED)

# Effect -> (hold and span before it is asked); event -> hold before it is journaled.
_SPANS = {
    Effect.RELEASE: "release",
    Effect.COMMIT: "commit",
    Effect.ACTIVATE: "activate",
    Effect.FREE: "free",
    Effect.RESUME: "resume",
    Effect.REINSTATE: "reinstate",
    Effect.DROP: "drop",
}
_HOLD_BEFORE_ASK = {
    Effect.RELEASE: "release",
    Effect.COMMIT: "take",
    Effect.ACTIVATE: "free",
    Effect.FREE: "free",
}
_HOLD_BEFORE_JOURNAL = {EventKind.VERIFIED: "commit", EventKind.GRANTED: "granted", EventKind.COMMITTED: "done"}


@dataclass(frozen=True, slots=True)
class Means:
    """What every open move works with."""

    journal: Journal
    effects: Effects
    alarm: Alarm
    profile: Profile
    settings: AdmissionSettings
    changed: Callable[[], None]


class ActiveMove:
    """One open move. `record` is its newest state; only its own thread makes transitions."""

    def __init__(self, means: Means, record: MoveRecord, route: Route | None, news: tuple[Event, ...] = ()) -> None:
        """`route` None: the move goes on after a restart. `news`: events it starts with."""
        self.record = record
        self._means = means
        self._route = route
        self._mailbox = deque(news)
        self._changed = threading.Condition()
        self._line = Line(meanwhile=self._meanwhile)
        self._holds = Holds(route.faults if route else ())
        self._stopped = False
        self._unwritten = 0
        self._back_off_s = _FIRST_BACK_OFF_S
        self._coded: CodedMove | None = None
        self._stopwatch = Stopwatch(record.stages)
        self._untold: list[tuple[MoveRecord, Transition]] = []
        self._cancel_stall: Callable[[], None] = _nothing
        self._cancel_deadline: Callable[[], None] = _nothing
        self._cancel_quiet: Callable[[], None] = _nothing
        self._log = telemetry.log("move").bind(move_id=record.move_id, session_id=record.session_id)

    # --- from other threads

    def post(self, event: Event) -> None:
        """Something happened to the move; the ask in flight is broken off for it."""
        with self._changed:
            self._mailbox.append(event)
            self._line.break_off()
            self._changed.notify_all()

    def died(self, host_id: str, incarnation: int) -> bool:
        """Incarnations of a host up to this one are proven dead. Returns whether the move is concerned."""
        concerned = False
        with self._changed:
            for host, kind, noted in (
                (self.record.source, EventKind.SOURCE_DIED, self.record.state.source_dead),
                (self.record.destination, EventKind.DESTINATION_DIED, self.record.state.destination_dead),
            ):
                if host.host_id != host_id or host.incarnation > incarnation or self.record.phase.closed:
                    continue
                concerned = True
                if not noted and all(event.kind is not kind for event in self._mailbox):
                    self.post(death(kind, host_id, host.incarnation))
        return concerned

    def cancel(self) -> None:
        """Raises WrongState if the source has been asked to give, or the move is over."""
        with self._changed:
            if self.record.state.reason == "CANCELLED" or any(
                event.kind is EventKind.CANCELLED for event in self._mailbox
            ):
                return
            if self.record.phase is not Phase.OPEN:
                raise cannot_cancel(self.record)
            self.post(Event(EventKind.CANCELLED, "CANCELLED", "the move was cancelled on request"))

    def stop(self) -> None:
        """Leave the move as it is journaled; the next start goes on with it."""
        with self._changed:
            self._stopped = True
            self._line.break_off()
            self._changed.notify_all()

    # --- the move's own thread

    def run(self) -> None:
        """Until the move is closed or `stop`."""
        record = self.record
        attributes: dict[str, telemetry.Attribute] = {
            "move.id": record.move_id,
            "session.id": record.session_id,
            "move.epoch": record.epoch,
        }
        carrier = {"traceparent": record.traceparent} if record.traceparent else {}
        with telemetry.extracted(carrier), telemetry.span("move", attributes) as span:
            while not self._stopped and not self.record.phase.closed:
                try:
                    self._once()
                except Interrupted:
                    continue
                except WorldlineError as error:
                    # The journal could not be written, and nothing follows from what was not written.
                    self._log.error("no transition", error=error.message, reason=error.reason)
                    self._back_off()
                except Exception as error:
                    # A bug of ours, or of a peer: an open move must never be without its thread.
                    self._log.exception("unexpected", error=f"{type(error).__name__}: {error}")
                    self._back_off()
            self._tell()
            state = self.record.state
            attributes = {"move.state": state.phase.name, "move.reason": state.reason}
            if self.record.wire_at_s:
                attributes["move.decision_to_wire_s"] = self.record.wire_at_s - self.record.decided_at_s
            telemetry.set_attributes(span, attributes)
        for cancel in (self._cancel_stall, self._cancel_deadline, self._cancel_quiet):
            cancel()

    def _once(self) -> None:
        with self._changed:
            while self._mailbox and not self.record.phase.closed:
                event = self._mailbox[0]
                if event.kind not in _ONLY_WHILE_OPEN or self.record.phase is Phase.OPEN:
                    self._advance(Answer(event))
                self._mailbox.popleft()
            if self.record.phase.closed or self._stopped:
                return
            self._line.arm()
        for effect in effects_of(self.record.state):
            try:
                answer = self._ask(effect)
            except NoAnswer as missing:
                self._log.warning("no answer", effect=effect.value, why=missing.error.message)
                continue
            self._answered(answer)
            return
        self._back_off(or_news=True)

    def _ask(self, effect: Effect) -> Answer:
        self._hold(_HOLD_BEFORE_ASK.get(effect))
        # Nothing is asked any more by a process that was stopped for so long that another may lead.
        self._means.journal.tenure.require()
        self._stopwatch.wait()
        try:
            return self._carry() if effect is Effect.MOVE else self._ask_host(effect)
        finally:
            self._stopwatch.work()

    def _ask_host(self, effect: Effect) -> Answer:
        if self._stopwatch.ask():
            stall_s = self._means.settings.stall_s + self._means.effects.expected_s(effect, self.record)
            self._cancel_stall = self._means.alarm.after(stall_s, self._stall)
        with telemetry.span(_SPANS[effect]):
            return self._means.effects.perform(effect, self.record, self._line)

    def _carry(self) -> Answer:
        plan, route, settings = self.record.plan, self._route, self._means.settings
        if plan is None or route is None:
            return Answer(Event(EventKind.MOVER_FAILED, "ADMISSION_RESTARTED", "the mover's stream is gone"))
        faults_s = sum(fault.seconds for fault in route.faults)
        timeout_s = settings.reserve_timeout_s + plan.max_freeze_s + plan.deadline_s + faults_s
        self._quiet_after(settings.reserve_timeout_s + faults_s)
        try:
            route = route.with_faults(self._holds.mover_faults)
            return self._means.effects.move(self.record, route, self._line, timeout_s, self._progress)
        finally:
            self._cancel_quiet()

    def _progress(self, message: mover_pb.MoveResponse) -> None:
        plan, settings = self.record.plan, self._means.settings
        frozen = message.stage in _FROZEN_STAGES
        if plan is None:
            return
        if frozen and self._stopwatch.freeze():
            self._cancel_deadline = self._means.alarm.after(plan.deadline_s, self._deadline)
        quiet_s = 2 * plan.no_progress_s if frozen else settings.reserve_timeout_s
        if message.stage == "freeze":
            quiet_s = plan.max_freeze_s + settings.call_timeout_s
        self._quiet_after(quiet_s + self._holds.mover_seconds)
        told = wire.stages_from(message.stages)
        on_wire = frozen and not self.record.wire_at_s
        self._show(
            stage=message.stage,
            wire_at_s=time.time() if on_wire else self.record.wire_at_s,
            landed_bytes=message.landed_bytes,
            retried_chunks=message.retried_chunks,
            stages=replace(
                self.record.stages,
                reserve_s=told.reserve_s,
                freeze_s=told.freeze_s,
                boundary_s=told.boundary_s,
                wire_s=told.wire_s,
                verify_s=told.verify_s,
            ),
        )

    def _quiet_after(self, seconds: float) -> None:
        self._cancel_quiet()
        self._cancel_quiet = self._means.alarm.after(seconds, lambda: self._quiet(seconds))

    def _quiet(self, seconds: float) -> None:
        message = f"the source's mover told nothing for {seconds:.1f} s"
        self.post(Event(EventKind.MOVER_FAILED, "NO_PROGRESS", message))

    def _deadline(self) -> None:
        deadline_s = self.record.plan.deadline_s if self.record.plan else 0.0
        message = f"both receipts were not there {deadline_s:g} s after the freeze"
        self.post(Event(EventKind.DEADLINE_PASSED, "DEADLINE_EXCEEDED", message))

    def _stall(self) -> None:
        self._show(stalled=True)
        self._log.warning("stalled", phase=self.record.phase.name)

    def _answered(self, answer: Answer) -> None:
        self._hold(_HOLD_BEFORE_JOURNAL.get(answer.event.kind))
        self._coded = answer.coded or self._coded
        with self._changed:
            # What else happened comes first, except that a grant must never be forgotten: after it the source cannot
            # go on by itself.
            if self._mailbox and answer.event.kind is not EventKind.GRANTED:
                return
            self._advance(answer)

    def _advance(self, answer: Answer) -> None:
        """Journal the transition, then let it be seen. The lock is held, so that a cancel is either before or after."""
        before = self.record
        state, effects = step(before.state, answer.event, before.transitions)
        line = Transition(
            time.time(), before.phase, answer.event.kind.value, state.phase, tuple(effect.value for effect in effects)
        )
        record = replace(
            before,
            state=state,
            grant=answer.grant or before.grant,
            source_receipt=answer.source_receipt or before.source_receipt,
            destination_receipt=answer.destination_receipt or before.destination_receipt,
            stages=self._stopwatch.after(answer.event.kind, before.stages),
            transitions=(*before.transitions, line),
            stage=state.phase.name.lower(),
            stalled=False,
        )
        self._unwritten += 1
        dead = (state.source_dead, state.destination_dead)
        if state.phase is not before.phase or dead != (before.state.source_dead, before.state.destination_dead):
            self._write(record)
        if state.phase is not Phase.OPEN:
            self._cancel_deadline()
        self._cancel_stall()
        self._stopwatch.answered()
        self._back_off_s = _FIRST_BACK_OFF_S
        self.record = record
        self._untold.append((record, line))

    def _meanwhile(self) -> None:
        """What nobody waits for; done while an ask is under way."""
        self._tell()
        if self.record.phase is Phase.OPEN:
            self._means.journal.settle()

    def _tell(self) -> None:
        """Tell watchers, log and metrics of the transitions; done while the next ask is under way."""
        told, self._untold = self._untold, []
        if told:
            self._means.changed()
        for record, line in told:
            if line.after is not line.before:
                self._log.info(
                    "transition",
                    what=line.event,
                    before=line.before.name,
                    after=line.after.name,
                    reason=record.state.reason,
                )
            if line.after.closed:
                metrics.closed(record, line.at_s)

    def _write(self, record: MoveRecord) -> None:
        estimates = self._measured(record) if record.phase is Phase.MOVED else ()
        try:
            self._means.journal.save_move(record, self._unwritten, estimates)
        except WorldlineError:
            self._unwritten -= 1
            raise
        self._unwritten = 0
        self._means.profile.keep(estimates)

    def _measured(self, record: MoveRecord) -> tuple[EstimateRow, ...]:
        """The path with this move; nothing where the move says nothing of it: it met faults, or was not seen whole."""
        route, plan = self._route, record.plan
        if route is None or route.faults or plan is None or not record.stages.downtime_s:
            return ()
        return self._means.profile.after(
            route.source_mover,
            route.destination_mover,
            plan,
            record.state_bytes - plan.made_bytes,
            record.stages,
            self._coded,
        )

    def _hold(self, name: str | None) -> None:
        seconds = self._holds.take(name) if name else 0.0
        if not seconds:
            return
        self._tell()
        self._show(stage=f"hold:{name}")
        with self._changed:
            self._changed.wait_for(lambda: bool(self._mailbox) or self._stopped, seconds)
            self._stopwatch.work()
            if self._stopped:
                raise Interrupted

    def _back_off(self, *, or_news: bool = False) -> None:
        self._tell()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (or_news and bool(self._mailbox)), self._back_off_s)
            self._stopwatch.work()
        self._back_off_s = min(2 * self._back_off_s, _LONGEST_BACK_OFF_S)

    def _show(self, **progress: object) -> None:
        """Change what is not journaled."""
        with self._changed:
            self.record = replace(self.record, **progress)  # type: ignore[arg-type]
        self._means.changed()


def death(kind: EventKind, host_id: str, incarnation: int) -> Event:
    """The event of a host that is proven dead."""
    side = "source" if kind is EventKind.SOURCE_DIED else "destination"
    reason = f"{side.upper()}_DIED"
    return Event(kind, reason, f"incarnation {incarnation} of {side} {host_id} is proven dead")


def cannot_cancel(record: MoveRecord) -> WrongState:
    """The error for a cancel that comes too late."""
    return WrongState(
        f"move {record.move_id} is in {record.phase.name}: only a move in OPEN can be cancelled",
        reason="TOO_LATE_TO_CANCEL",
        resource=("move", record.move_id),
    )


def _nothing() -> None:
    """No alarm is set."""

"""From a decision to an open move: what RequestMove does, and what a schedule asks for in the very same way."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass

from admission import metrics
from admission.coordinator import Coordinator
from admission.decision import Ask, Decider, Decision
from admission.fleet import Host
from admission.journal import Journal
from admission.journal_rows import Lease
from admission.machine import Effect, Phase, State, Transition
from admission.outlook import may_pass
from admission.placement import require_same
from admission.record import MoveRecord
from admission.turns import Turns
from worldline import telemetry
from worldline.errors import Internal
from worldline.move import Fault, HostRef
from worldline.verdict import Kind


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a schedule's move was not opened; `final`: waiting will not help."""

    reason: str
    message: str
    final: bool = False


class Opener:
    """Decides and opens, one at a time: a verdict and the lease that follows from it are one thing."""

    def __init__(self, journal: Journal, decider: Decider, coordinator: Coordinator, turns: Turns) -> None:
        self._journal = journal
        self._decider = decider
        self._coordinator = coordinator
        self._turns = turns
        self._deciding = threading.Lock()

    def request(self, request_id: str, digested: bytes, ask: Ask, faults: tuple[Fault, ...]) -> MoveRecord:
        """The move of that request: opened, refused, or as it was answered before.

        Raises:
            BadRequest: the id was used for another request. Whatever `Decider.decide` and `Coordinator.open` raise.
        """
        with self._deciding:
            known = self._journal.move_of_request(request_id)
            if known is not None:
                require_same(known.request_digest, digested, request_id)
                return self._coordinator.newest(known)
            asked_s, move_id = time.monotonic(), str(uuid.uuid4())
            decision = self._decide(ask, move_id)
            record = self._record(move_id, request_id, digested, ask, decision)
            metrics.decided(decision.verdict)
            if decision.verdict.kind is Kind.DEFER:
                self._turns.deferred(decision.destination.host_id, ask.session_id, decision.verdict.retry_after_s)
            else:
                self._turns.settled(ask.session_id)
            try:
                if decision.verdict.kind is not Kind.ADMIT:
                    return self._journal.add_move(record, None)
                return self._open(record, decision, faults, asked_s)
            finally:
                self._tell(ask, move_id, decision)

    def scheduled(self, request_id: str, digested: bytes, ask: Ask) -> MoveRecord | Waits:
        """The move of a schedule's request, or why it was not opened. Nothing is kept of what was not opened.

        It comes after every other caller: after those that were told to wait for this host, and beside no other move
        on either node, be it of this or another schedule.
        """
        with self._deciding:
            known = self._journal.move_of_request(request_id)
            if known is not None:
                return self._coordinator.newest(known)
            asked_s, move_id = time.monotonic(), str(uuid.uuid4())
            # It is asked again and again: only what is opened is told to the log.
            decision = self._decider.decide(ask)
            if decision.verdict.kind is not Kind.ADMIT:
                failed = decision.verdict.failed
                told = "; ".join(f"{clause.name}: {clause.arithmetic}" for clause in failed)
                return Waits(failed[0].reason, told, not may_pass(self._decider, decision))
            others = self._others(decision)
            if others:
                return others
            metrics.decided(decision.verdict)
            record = self._record(move_id, request_id, digested, ask, decision)
            record = self._open(record, decision, (), asked_s)
            self._tell(ask, move_id, decision)
            return record

    def _others(self, decision: Decision) -> Waits | None:
        """Who comes before a schedule's move; None if nobody does."""
        host_id = decision.destination.host_id
        taken_s = self._turns.taken_s(host_id)
        if taken_s:
            return Waits("YIELDS", f"host {host_id} is left to a caller that was told to wait for it")
        movers = {host.facts.mover_id for host in (decision.source, decision.destination)}
        for record in self._coordinator.records():
            if not wire_over(record) and not movers.isdisjoint(self._movers(record)):
                return Waits("YIELDS", f"move {record.move_id} of session {record.session_id} is on the wire there")
        return None

    def _movers(self, record: MoveRecord) -> set[str]:
        fleet = self._decider.fleet
        return {fleet.host(host.host_id).facts.mover_id for host in (record.source, record.destination)}

    def decide(self, ask: Ask) -> Decision:
        """The decision, told to log and trace; nothing is opened. Raises what `Decider.decide` raises."""
        decision = self._decide(ask, "")
        self._tell(ask, "", decision)
        return decision

    def _decide(self, ask: Ask, move_id: str) -> Decision:
        with telemetry.span("admission.decide", {"session.id": ask.session_id, "move.id": move_id}) as span:
            decision = self._decider.decide(ask)
            verdict = decision.verdict
            telemetry.set_attributes(
                span,
                {
                    "admission.verdict": verdict.kind.name,
                    "admission.reason": ",".join(clause.reason for clause in verdict.failed),
                    "admission.predicted_s": verdict.predicted_s,
                    "admission.slack_s": verdict.slack_s,
                    "transport.selected": decision.plan.transport,
                    "move.staged": decision.staged_by,
                },
            )
        return decision

    @staticmethod
    def _tell(ask: Ask, move_id: str, decision: Decision) -> None:
        verdict = decision.verdict
        telemetry.log("decision").info(
            "decided",
            move_id=move_id,
            session_id=ask.session_id,
            destination=decision.destination.host_id,
            verdict=verdict.kind.name,
            reason=",".join(clause.reason for clause in verdict.failed),
            predicted_s=verdict.predicted_s,
            slack_s=verdict.slack_s,
            made_bytes=decision.plan.made_bytes,
            staged=decision.staged_by,
        )

    def _open(self, record: MoveRecord, decision: Decision, faults: tuple[Fault, ...], asked_s: float) -> MoveRecord:
        if decision.route is None:
            raise Internal(f"move {record.move_id} was admitted without a mover")
        route = decision.route.with_faults(faults)
        ends_s = record.decided_at_s + decision.verdict.predicted_s
        host_id = decision.destination.host_id
        lease = Lease(record.move_id, host_id, record.state_bytes, record.decided_at_s, ends_s)
        return self._coordinator.open(record, lease, route, asked_s)

    @staticmethod
    def _record(move_id: str, request_id: str, digested: bytes, ask: Ask, decision: Decision) -> MoveRecord:
        now_s = time.time()
        admitted = decision.verdict.kind is Kind.ADMIT
        failed = decision.verdict.failed
        state = (
            State()
            if admitted
            else State(
                Phase.REFUSED,
                reason=failed[0].reason,
                message="; ".join(f"{clause.name}: {clause.arithmetic}" for clause in failed),
            )
        )
        effects = (Effect.MOVE.value,) if admitted else ()
        asked = Transition(now_s, state.phase, decision.verdict.kind.name.lower(), state.phase, effects)
        return MoveRecord(
            move_id=move_id,
            request_id=request_id,
            request_digest=digested,
            session_id=ask.session_id,
            source=_reference(decision.source),
            destination=_reference(decision.destination),
            epoch=decision.row.epoch,
            mode=ask.mode,
            state_bytes=decision.facts.state_bytes,
            verdict=decision.verdict,
            state=state,
            requested_at_s=now_s,
            decided_at_s=now_s,
            plan=decision.plan if admitted else None,
            trace_id=telemetry.trace_id(),
            traceparent=telemetry.inject().get("traceparent", ""),
            transitions=(asked,),
            stage=state.phase.name.lower(),
        )


def wire_over(record: MoveRecord) -> bool:
    """Whether a move's bytes need its path no more: all have landed, or the move has left OPEN."""
    return record.phase is not Phase.OPEN or record.stage in ("verify", "verified")


def _reference(host: Host) -> HostRef:
    return HostRef(host.host_id, host.facts.incarnation, host.facts.cluster_address)

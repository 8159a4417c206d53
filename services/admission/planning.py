"""Planning a schedule: where each session goes, and in which round. Nothing is reserved and nothing moves here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from admission.decision import Ask, Decider, Decision, known_session
from admission.fleet import Host
from admission.outlook import may_pass
from admission.placement import is_ready
from admission.rules import Mode
from admission.rules.rounds import Transfer, finish_s, rounds_of
from admission.schedule import StepRow, StepState
from worldline.errors import WorldlineError

# A receiver that is busy now is no hindrance to a schedule: it comes back to it. How long, is the schedule's to say.
PATIENCE_S = 3_600.0
# Destinations that are judged for each session, those with most room first.
_JUDGED = 8


@dataclass(frozen=True, slots=True)
class Wish:
    """A session that is to move; an empty destination is the planner's to pick."""

    session_id: str
    destination_host_id: str = ""


@dataclass(frozen=True, slots=True)
class Outline:
    """Steps with their rounds, and the seconds that all rounds are predicted to take."""

    steps: tuple[StepRow, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans over the fleet as it is now."""

    decider: Decider

    def outline(
        self, schedule_id: str, wishes: Sequence[Wish], *, first_line: int = 0, first_round: int = 0
    ) -> Outline:
        """A step for each wish. One that no rule lets go anywhere is FAILED, with the reason."""
        planned = _Planned(Counter(), Counter())
        steps = [
            self._step(schedule_id, first_line + index, wish, planned)
            for index, wish in enumerate(sorted(wishes, key=self._large_first))
        ]
        rounds = rounds_of([self._transfer(step) for step in steps if step.state is StepState.WAITING])
        number = {item.key: index for index, round_ in enumerate(rounds, first_round) for item in round_.transfers}
        return Outline(
            tuple(replace(step, round=number.get(str(step.line), first_round)) for step in steps), finish_s(rounds)
        )

    def _large_first(self, wish: Wish) -> tuple[int, str]:
        row = self.decider.journal.session(wish.session_id)
        return (-self.decider.fleet.session(row).state_bytes if row else 0, wish.session_id)

    def _step(self, schedule_id: str, line: int, wish: Wish, planned: _Planned) -> StepRow:
        step = StepRow(
            schedule_id,
            line,
            wish.session_id,
            "",
            wish.destination_host_id,
            bool(wish.destination_host_id),
            0,
            0,
            StepState.WAITING,
            "",
            0.0,
            "",
            "",
        )
        try:
            row = known_session(self.decider.journal, wish.session_id)
            step = replace(step, source_host_id=row.host_id)
            if row.move_id:
                return replace(step, reason="OWNED", message=f"is in move {row.move_id} now")
            return self._aimed(step, planned)
        except WorldlineError as error:
            return replace(step, state=StepState.FAILED, reason=error.reason, message=error.message)

    def _aimed(self, step: StepRow, planned: _Planned) -> StepRow:
        """The step with the destination that is done soonest; FAILED if there is none."""
        source = self.decider.fleet.host(step.source_host_id)
        wanted = [step.destination_host_id] if step.pinned else self._judged(source)
        decisions = [self._judge(step.session_id, host_id) for host_id in wanted or [""]]
        possible = [
            (planned.busy_s[decision.destination.facts.mover_id] + self.seconds(decision), index, decision)
            for index, decision in enumerate(decisions)
            if may_pass(self.decider, decision) and planned.fits(decision)
        ]
        if not possible:
            least = min(decisions, key=lambda decision: len(decision.verdict.failed))
            failed = least.verdict.failed
            message = "; ".join(f"{clause.name}: {clause.arithmetic}" for clause in failed)
            taken = f"{least.destination.host_id} has no room beside the sessions that are planned to go there"
            return replace(
                step,
                state=StepState.FAILED,
                reason=failed[0].reason if failed else "NO_SLOT_MEMORY",
                message=f"to {least.destination.host_id}: {message}" if message else taken,
            )
        _, _, best = min(possible, key=lambda item: item[:2])
        seconds = self.seconds(best)
        planned.take(best, seconds)
        return replace(step, destination_host_id=best.destination.host_id, predicted_s=seconds)

    def _judged(self, source: Host) -> list[str]:
        """Hosts that could take sessions of this one, most room first."""
        fleet, silent_s = self.decider.fleet, self.decider.settings.silent_s
        now_s = fleet.now_s()
        twins = [
            host
            for host in fleet.hosts()
            if host.host_id != source.host_id
            and is_ready(host, now_s, silent_s)
            and host.facts.fingerprint == source.facts.fingerprint
        ]
        twins.sort(key=lambda host: (-host.status.free_bytes, host.host_id))
        return [host.host_id for host in twins[:_JUDGED]]

    def _judge(self, session_id: str, host_id: str) -> Decision:
        return self.decider.decide(Ask(session_id, host_id, Mode.FROZEN, PATIENCE_S, ""))

    def seconds(self, decision: Decision) -> float:
        """What a move takes on average, reserving included."""
        plan = decision.plan
        profile, movers = self.decider.profile, (decision.source.facts.mover_id, decision.destination.facts.mover_id)
        path = profile.path(*movers, plan.transport, plan.placement, plan.codec)
        if not path.samples:  # a codec that was not tried there: its raw way takes no less
            path = profile.path(*movers, plan.transport, plan.placement)
        return path.fair_reserve_s + path.fair_setup_s + decision.facts.sent_bytes / path.fair_bandwidth_Bps

    def _transfer(self, step: StepRow) -> Transfer:
        fleet = self.decider.fleet
        source = fleet.host(step.source_host_id).facts.mover_id
        # A session that is in a move now goes nobody knows where: it has its node for itself.
        to = fleet.host(step.destination_host_id).facts.mover_id if step.destination_host_id else source
        return Transfer(str(step.line), source, to, step.predicted_s)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the steps planned so far take: seconds of movers, bytes of hosts."""

    busy_s: Counter[str]
    taken_bytes: Counter[str]

    def fits(self, decision: Decision) -> bool:
        host = decision.destination
        return self.taken_bytes[host.host_id] + decision.facts.state_bytes <= host.status.free_bytes

    def take(self, decision: Decision, seconds: float) -> None:
        self.busy_s[decision.destination.facts.mover_id] += seconds  # type: ignore[assignment]
        self.taken_bytes[decision.destination.host_id] += decision.facts.state_bytes

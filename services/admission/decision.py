"""From a request to a verdict: gathers what the rules look at, asks them, and chooses plan and destination."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from admission.effects import Route
from admission.facts import SessionFacts
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import Lease, SessionRow
from admission.profile import Profile
from admission.rules import InFlight, Mode, Peer, Question, evaluate
from admission.settings import AdmissionSettings
from worldline.errors import BadRequest, NotFound, Owned, SessionLost
from worldline.plan import Placement, Plan
from worldline.verdict import Kind, Verdict

# A move in flight that is past its prediction is expected to take at least this much longer.
_SOONEST_S = 0.1
# Where no other host is awake, this many of the silent ones are looked at, to say what is wrong with them.
_SILENT_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants: an empty destination or transport is admission's to pick."""

    session_id: str
    destination_host_id: str
    mode: Mode
    patience_s: float
    transport: str


@dataclass(frozen=True)
class Decision:
    """One destination as it was decided upon. `route` is None where a mover is missing, which no ADMIT is."""

    row: SessionRow
    facts: SessionFacts
    source: Host
    destination: Host
    verdict: Verdict
    plan: Plan
    route: Route | None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, the mover that its bytes come in through, and what it means to the next move."""

    lease: Lease
    mover_id: str
    move: InFlight


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides on moves. Nothing is reserved here."""

    journal: Journal
    fleet: Fleet
    profile: Profile
    settings: AdmissionSettings
    stalled: Callable[[], frozenset[str]]

    def decide(self, ask: Ask) -> Decision:
        """The decision for the wanted destination, or the best one for any.

        Raises:
            NotFound: no such session or host, or no other host. SessionLost: it is gone. Owned: it is in a move.
            BadRequest: MOVE_TO_ITSELF.
        """
        row = self._session(ask.session_id)
        source = self.fleet.host(row.host_id)
        held = self._held()
        if ask.destination_host_id:
            destination = self.fleet.host(ask.destination_host_id)
            if destination.host_id == source.host_id:
                raise BadRequest(
                    f"session {ask.session_id} is on host {source.host_id} already",
                    reason="MOVE_TO_ITSELF",
                    violations={"destination_host_id": "another host than the session's own is needed"},
                )
            return self._consider(ask, row, source, destination, held)
        found = [self._consider(ask, row, source, host, held) for host in self._destinations(source)]
        if not found:
            raise NotFound("there is no other engine host to move to", reason="NO_DESTINATION")
        return min(found, key=_preference)

    def _destinations(self, source: Host) -> list[Host]:
        """The other hosts that are awake; if none is, those that were heard from last."""
        now_s = self.fleet.now_s()
        others = [host for host in self.fleet.hosts() if host.host_id != source.host_id]
        awake = [host for host in others if not host.fenced and host.silent_s(now_s) <= self.settings.silent_s]
        return awake or sorted(others, key=lambda host: host.silent_s(now_s))[:_SILENT_LOOKED_AT]

    def _session(self, session_id: str) -> SessionRow:
        row = known_session(self.journal, session_id)
        if row.move_id:
            raise Owned(
                f"session {session_id} is in move {row.move_id}; follow that one",
                resource=("move", row.move_id),
                retry_after_s=1.0,
            )
        return row

    def _consider(self, ask: Ask, row: SessionRow, source: Host, destination: Host, held: list[Held]) -> Decision:
        facts, settings = self.fleet.session(row), self.settings
        contract = facts.descriptor.contract
        now_s = self.fleet.now_s()
        movers = [self.fleet.mover(host.facts.mover_id) for host in (source, destination)]
        transport, refusal = self._transport(ask.transport, source, destination)
        path = self.profile.path(source.facts.mover_id, destination.facts.mover_id, transport)
        peers = [
            Peer(f"source {source.host_id}", source.silent_s(now_s), _refusal(source, receives=False)),
            Peer(
                f"destination {destination.host_id}", destination.silent_s(now_s), _refusal(destination, receives=True)
            ),
        ]
        for host, mover in zip((source, destination), movers, strict=True):
            name = f"mover {host.facts.mover_id}"
            peers.append(Peer(name, now_s - mover.heard_at_s) if mover else Peer(name, 0.0, "has not registered"))
        from_mover, to_mover = movers
        plan = self._plan(facts, transport)
        question = Question(
            contract=contract,
            mode=ask.mode,
            state_bytes=facts.state_bytes,
            dirty_rate_Bps=facts.dirty_rate_Bps,
            bandwidth_Bps=path.bandwidth_Bps,
            setup_s=path.setup_s,
            bound_s=min(plan.deadline_s, plan.max_freeze_s),
            preset=facts.preset,
            source_fingerprint=source.facts.fingerprint,
            destination_fingerprint=destination.facts.fingerprint,
            destination_presets=destination.facts.presets,
            destination_free_bytes=_free_bytes(destination, held, now_s),
            destination_has_id=destination.holds_as_its_own(row.session_id),
            host_moves=tuple(
                item.move for item in held if item.lease.receives and item.lease.host_id == destination.host_id
            ),
            receiver_cap=settings.receiver_cap,
            mover_moves=tuple(
                item.move for item in held if item.lease.receives and item.mover_id == destination.facts.mover_id
            ),
            mover_cap=to_mover.facts.max_receives if to_mover else 0,
            peers=tuple(peers),
            transport=transport,
            transport_refusal=refusal,
            patience_s=ask.patience_s,
            silent_s=settings.silent_s,
            silent_grace_s=settings.silent_grace_s,
            heartbeat_s=settings.heartbeat_s,
        )
        route = None
        if from_mover and to_mover:
            route = Route(
                from_mover.facts.mover_id, from_mover.facts.address, to_mover.facts.mover_id, to_mover.facts.address
            )
        return Decision(row, facts, source, destination, evaluate(question), plan, route)

    def _transport(self, wanted: str, source: Host, destination: Host) -> tuple[str, str]:
        """The transport and why it cannot be, if it cannot."""
        together = source.facts.mover_id == destination.facts.mover_id
        movers = [self.fleet.mover(host.facts.mover_id) for host in (source, destination)]
        offered = [mover.facts.transports for mover in movers if mover]
        transport = wanted or ("local" if together and all("local" in names for names in offered) else "tcp")
        if transport == "local" and not together:
            apart = f"{source.facts.mover_id} and {destination.facts.mover_id}"
            return transport, f"transport local needs both hosts beside one mover, not {apart}"
        lacking = sorted(
            {mover.facts.mover_id for mover in movers if mover and transport not in mover.facts.transports}
        )
        return transport, f"transport {transport!r} is not offered by {' and '.join(lacking)}" if lacking else ""

    def _held(self) -> list[Held]:
        """What the moves in flight hold at their destinations."""
        unix_s, stalled, stall_s = time.time(), self.stalled(), self.settings.stall_s
        found = []
        for lease in self.journal.leases():
            waits = lease.move_id in stalled
            # What was silent for some time is looked at again after as long.
            left_s = max(unix_s - lease.ends_s, stall_s) if waits else max(lease.ends_s - unix_s, _SOONEST_S)
            mover_id = self.fleet.host(lease.host_id).facts.mover_id
            found.append(Held(lease, mover_id, InFlight(lease.move_id, left_s, waits)))
        return found

    def _plan(self, facts: SessionFacts, transport: str) -> Plan:
        settings, contract = self.settings, facts.descriptor.contract
        large = facts.state_bytes >= settings.large_region_bytes
        return Plan(
            transport=transport,
            chunk_bytes=settings.large_chunk_bytes if large else settings.chunk_bytes,
            streams=settings.streams,
            placement=Placement.PIPELINED,
            deadline_s=contract.horizon_s if contract.has_deadline else settings.move_deadline_s,
            max_freeze_s=contract.horizon_s + settings.grace_s if contract.has_deadline else settings.max_freeze_s,
            no_progress_s=settings.no_progress_s,
        )


def _free_bytes(destination: Host, held: list[Held], now_s: float) -> int:
    """Bytes free at the destination for one more session."""
    unix_s, silent_s = time.time(), destination.silent_s(now_s)
    # A lease younger than the host's last word is not in its free bytes yet.
    unseen = sum(
        item.lease.slot_bytes
        for item in held
        if item.lease.host_id == destination.host_id and unix_s - item.lease.begins_s < silent_s
    )
    return max(destination.status.free_bytes - unseen, 0)


def known_session(journal: Journal, session_id: str) -> SessionRow:
    """Who owns a session. Raises NotFound, SessionLost."""
    row = journal.session(session_id)
    if row is None:
        raise NotFound(
            f"there is no session {session_id} in this fleet",
            reason="UNKNOWN_SESSION",
            resource=("session", session_id),
        )
    if row.lost:
        raise lost_session(row)
    return row


def lost_session(row: SessionRow) -> SessionLost:
    """The error for a session that was lost."""
    return SessionLost(
        f"session {row.session_id} was lost with incarnation {row.incarnation} of host {row.host_id}",
        resource=("session", row.session_id),
    )


def _refusal(host: Host, *, receives: bool) -> str:
    if host.fenced:
        return f"was fenced at incarnation {host.facts.incarnation}"
    if receives and host.status.draining:
        return "is draining"
    return ""


def _preference(decision: Decision) -> tuple[int, float, float, str]:
    """Admitted ones first, by slack and then by free bytes; then the shortest wait; then the fewest failures."""
    verdict, free_bytes = decision.verdict, decision.destination.status.free_bytes
    if verdict.kind is Kind.ADMIT:
        order = (0, -verdict.slack_s, -float(free_bytes))
    elif verdict.kind is Kind.DEFER:
        order = (1, verdict.retry_after_s, -float(free_bytes))
    else:
        order = (2, float(len(verdict.failed)), -float(free_bytes))
    return (*order, decision.destination.host_id)

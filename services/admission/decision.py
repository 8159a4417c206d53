"""From a request to a verdict: gathers what the rules look at, asks them, and chooses plan and destination."""

from __future__ import annotations

import time
from dataclasses import dataclass

from admission.effects import Route
from admission.facts import SessionFacts
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import SessionRow
from admission.profile import Profile
from admission.rules import Mode, Peer, Question, evaluate
from admission.settings import AdmissionSettings
from worldline.errors import BadRequest, NotFound, Owned, SessionLost
from worldline.plan import Placement, Plan
from worldline.verdict import Kind, Verdict

# A move in flight that is past its prediction is expected to take at least this much longer.
_SOONEST_S = 0.1


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
class Decider:
    """Decides on moves. Nothing is reserved here."""

    journal: Journal
    fleet: Fleet
    profile: Profile
    settings: AdmissionSettings

    def decide(self, ask: Ask) -> Decision:
        """The decision for the wanted destination, or the best one for any.

        Raises:
            NotFound: no such session or host, or no other host. SessionLost: it is gone. Owned: it is in a move.
            BadRequest: MOVE_TO_ITSELF.
        """
        row = self._session(ask.session_id)
        source = self.fleet.host(row.host_id)
        if ask.destination_host_id:
            destination = self.fleet.host(ask.destination_host_id)
            if destination.host_id == source.host_id:
                raise BadRequest(
                    f"session {ask.session_id} is on host {source.host_id} already",
                    reason="MOVE_TO_ITSELF",
                    violations={"destination_host_id": "another host than the session's own is needed"},
                )
            return self._consider(ask, row, source, destination)
        found = [
            self._consider(ask, row, source, host) for host in self.fleet.hosts() if host.host_id != source.host_id
        ]
        if not found:
            raise NotFound("there is no other engine host to move to", reason="NO_DESTINATION")
        return min(found, key=_preference)

    def _session(self, session_id: str) -> SessionRow:
        row = known_session(self.journal, session_id)
        if row.move_id:
            raise Owned(
                f"session {session_id} is in move {row.move_id}; follow that one",
                resource=("move", row.move_id),
                retry_after_s=1.0,
            )
        return row

    def _consider(self, ask: Ask, row: SessionRow, source: Host, destination: Host) -> Decision:
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
        busy_s, free_bytes = self._receiver(destination, now_s)
        question = Question(
            contract=contract,
            mode=ask.mode,
            state_bytes=facts.state_bytes,
            dirty_rate_Bps=facts.dirty_rate_Bps,
            bandwidth_Bps=path.bandwidth_Bps,
            setup_s=path.setup_s,
            preset=facts.preset,
            source_fingerprint=source.facts.fingerprint,
            destination_fingerprint=destination.facts.fingerprint,
            destination_presets=destination.facts.presets,
            destination_free_bytes=free_bytes,
            busy_s=busy_s,
            receiver_cap=settings.receiver_cap,
            peers=tuple(peers),
            transport=transport,
            transport_refusal=refusal,
            patience_s=ask.patience_s,
            silent_s=settings.silent_s,
            silent_grace_s=settings.silent_grace_s,
            heartbeat_s=settings.heartbeat_s,
        )
        from_mover, to_mover = movers
        route = None
        if from_mover and to_mover:
            route = Route(
                from_mover.facts.mover_id, from_mover.facts.address, to_mover.facts.mover_id, to_mover.facts.address
            )
        return Decision(row, facts, source, destination, evaluate(question), self._plan(facts, transport), route)

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

    def _receiver(self, destination: Host, now_s: float) -> tuple[tuple[float, ...], int]:
        """Predicted seconds each move into the destination still takes, and the bytes free there for one more."""
        unix_s = time.time()
        leases = self.journal.leases(destination.host_id)
        # A lease younger than the host's last word is not in its free bytes yet.
        unseen = sum(lease.slot_bytes for lease in leases if unix_s - lease.begins_s < destination.silent_s(now_s))
        busy_s = tuple(max(lease.ends_s - unix_s, _SOONEST_S) for lease in leases)
        return busy_s, max(destination.status.free_bytes - unseen, 0)

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
        raise SessionLost(
            f"session {session_id} was lost with incarnation {row.incarnation} of host {row.host_id}",
            resource=("session", session_id),
        )
    return row


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

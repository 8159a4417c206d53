"""From a request to a verdict: gathers what the rules look at, asks them, and chooses plan and destination."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from admission.carriage import is_staged, staged_because
from admission.effects import Route
from admission.facts import SessionFacts
from admission.fleet import Fleet, Host, Mover
from admission.journal import Journal
from admission.journal_rows import SessionRow
from admission.offers import RAW, Pins, chunk_bytes_for, paths_between, pins_for, streams_for
from admission.profile import Profile
from admission.record import MoveRecord
from admission.rules import Checksum, Choice, Mode, Offers, Peer, Question, choose
from admission.settings import AdmissionSettings
from admission.shortlist import GLANCES, Promise, Sight, ranked
from admission.traffic import Traffic, traffic_now
from admission.warmth import warmth_at
from worldline.errors import BadRequest, NotFound, Owned, SessionLost
from worldline.plan import DEVICE_CODECS, Placement, Plan
from worldline.verdict import Kind, Verdict

# So many destinations are all judged. Of more, those that a glance finds best are, until one is admitted: a glance
# weighs what a judgement weighs. Where none is admitted, enough are judged to say that none is.
_JUDGED, _JUDGED_AT_MOST = 4, 64
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
    placement: Placement | None = None
    codec: str = ""


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

    @property
    def staged_by(self) -> str:
        """The name of why the plan is staged: ASKED where only its transport or codec wants it; "" if it is not."""
        because = staged_because(self.source.facts, self.destination.facts)
        return (because.partition(":")[0] or "ASKED") if self.plan.staged else ""


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides on moves. Nothing is reserved here."""

    journal: Journal
    fleet: Fleet
    profile: Profile
    settings: AdmissionSettings
    open_moves: Callable[[], list[MoveRecord]]

    def decide(self, ask: Ask) -> Decision:
        """The decision for the wanted destination, or the best one for any.

        Raises:
            NotFound: no such session or host, or no other host. SessionLost: it is gone. Owned: it is in a move.
            BadRequest: MOVE_TO_ITSELF.
        """
        row = self._session(ask.session_id)
        source = self.fleet.host(row.host_id)
        traffic = traffic_now(self.journal, self.fleet, self.open_moves(), self.settings.stall_s)
        if ask.destination_host_id:
            destination = self.fleet.host(ask.destination_host_id)
            if destination.host_id == source.host_id:
                raise BadRequest(
                    f"session {ask.session_id} is on host {source.host_id} already",
                    reason="MOVE_TO_ITSELF",
                    violations={"destination_host_id": "another host than the session's own is needed"},
                )
            return self._consider(ask, row, source, destination, traffic)
        found: list[Decision] = []
        candidates = self._ranked(row, source, traffic)
        for promise, host in candidates:
            if len(candidates) > _JUDGED and any(decision.verdict.kind is Kind.ADMIT for decision in found):
                break  # they are in the order of preference
            if len(found) >= _JUDGED and promise is not Promise.FREE:
                break
            found.append(self._consider(ask, row, source, host, traffic))
        if not found:
            raise NotFound("there is no other engine host to move to", reason="NO_DESTINATION")
        return min(found, key=_preference)

    def _ranked(self, row: SessionRow, source: Host, traffic: Traffic) -> list[tuple[Promise, Host]]:
        """Destinations to judge, the most promising first; if no other host is awake, those heard from last."""
        awake = self._awake(source)
        few = list(islice(awake, _JUDGED + 1))
        if not few:
            now_s = self.fleet.now_s()
            silent = [host for host in self.fleet.any_order() if host.host_id != source.host_id]
            few = sorted(silent, key=lambda host: (host.silent_s(now_s), host.host_id))[:_SILENT_LOOKED_AT]
        if len(few) <= _JUDGED or few[0].silent_s(self.fleet.now_s()) > self.settings.silent_s:
            return [(Promise.FREE, host) for host in few]
        facts, cap = self.fleet.session(row), self.settings.receiver_cap
        sight = Sight(self.fleet, self.profile, cap)
        return ranked(chain(few, awake), source, facts, traffic, sight, _JUDGED_AT_MOST)

    def _awake(self, source: Host) -> Iterator[Host]:
        """The other hosts that are awake, from a random one on: a large fleet is not looked at whole."""
        hosts, now_s, silent_s = self.fleet.any_order(), self.fleet.now_s(), self.settings.silent_s
        start = random.randrange(len(hosts)) if len(hosts) > GLANCES else 0
        for host in chain(islice(hosts, start, None), islice(hosts, start)):
            if host.host_id != source.host_id and not host.fenced and host.silent_s(now_s) <= silent_s:
                yield host

    def _session(self, session_id: str) -> SessionRow:
        row = known_session(self.journal, session_id)
        if row.move_id:
            raise Owned(
                f"session {session_id} is in move {row.move_id}; follow that one",
                resource=("move", row.move_id),
                retry_after_s=1.0,
            )
        return row

    def _consider(self, ask: Ask, row: SessionRow, source: Host, destination: Host, traffic: Traffic) -> Decision:
        facts = self.fleet.session(row)
        movers = [self.fleet.mover(host.facts.mover_id) for host in (source, destination)]
        choice = choose(self._question(ask, facts, source, destination, movers, traffic))
        from_mover, to_mover = movers
        route = None
        if from_mover and to_mover:
            route = Route(
                from_mover.facts.mover_id, from_mover.facts.address, to_mover.facts.mover_id, to_mover.facts.address
            )
        because = staged_because(source.facts, destination.facts)
        return Decision(row, facts, source, destination, choice.verdict, self._plan(facts, choice, because), route)

    def _question(
        self,
        ask: Ask,
        facts: SessionFacts,
        source: Host,
        destination: Host,
        movers: list[Mover | None],
        traffic: Traffic,
    ) -> Question:
        """The move in the words of the rules. What nobody reports stays untold."""
        settings, now_s = self.settings, self.fleet.now_s()
        source_mover, destination_mover = source.facts.mover_id, destination.facts.mover_id
        known = tuple(mover.facts for mover in movers if mover)
        pins = pins_for(source.facts, destination.facts, Pins(ask.transport, ask.placement, ask.codec))
        paths = paths_between(self.profile, source_mover, destination_mover, known, pins, facts.compressibility)
        into_mover = traffic.into_mover.get(destination_mover, [])
        deadline_s, max_freeze_s = self._bounds_s(facts)
        large = facts.state_bytes >= settings.large_region_bytes
        to_mover = movers[1]
        slot_warm, first_touch_s = warmth_at(source, destination, facts.preset)
        return Question(
            contract=facts.descriptor.contract,
            mode=ask.mode,
            state_bytes=facts.state_bytes,
            dirty_rate_Bps=facts.dirty_rate_Bps,
            bandwidth_Bps=paths[0].bandwidth_Bps,
            setup_s=paths[0].setup_s,
            bound_s=min(deadline_s, max_freeze_s),
            preset=facts.preset,
            source_fingerprint=source.facts.fingerprint,
            destination_fingerprint=destination.facts.fingerprint,
            destination_presets=destination.facts.presets,
            destination_free_bytes=traffic.free_bytes(destination, now_s),
            destination_has_id=destination.holds_as_its_own(facts.descriptor.session_id),
            host_moves=tuple(item.move for item in traffic.into_host.get(destination.host_id, [])),
            receiver_cap=settings.receiver_cap,
            mover_moves=tuple(item.move for item in into_mover),
            mover_cap=to_mover.facts.max_receives if to_mover else 0,
            peers=self._peers(source, destination, movers, now_s),
            transport=paths[0].transport,
            transport_refusal=paths[0].refusal,
            retransmit_floor_s=paths[0].retransmit_floor_s,
            verified=paths[0].verified,
            placement=paths[0].placements[0],
            codec=paths[0].codecs[0],
            staged_because=pins.staged_because,
            patience_s=ask.patience_s,
            silent_s=settings.silent_s,
            silent_grace_s=settings.silent_grace_s,
            heartbeat_s=settings.heartbeat_s,
            chunk_bytes=chunk_bytes_for(paths[0], pins, settings.large_chunk_bytes) if large else settings.chunk_bytes,
            streams=settings.streams or streams_for(known, large=large),
            offers=Offers(paths=paths, tail=True),
            source_crc=_checksum(movers[0]),
            destination_crc=_checksum(to_mover),
            cold_bytes=facts.cold_bytes,
            slot_warm=slot_warm,
            first_touch_s=first_touch_s,
            made_bytes=facts.state_bytes - facts.sent_bytes,
            port_moves=tuple(item.on_port(paths[0].bandwidth_Bps) for item in into_mover),
            sender_moves=traffic.leaving(source_mover, destination_mover),
            opposite_moves=traffic.opposite(source_mover, destination_mover),
            duplex_bytes=settings.large_region_bytes,
        )

    @staticmethod
    def _peers(source: Host, destination: Host, movers: list[Mover | None], now_s: float) -> tuple[Peer, ...]:
        peers = [
            Peer(f"source {source.host_id}", source.silent_s(now_s), _refusal(source, receives=False)),
            Peer(
                f"destination {destination.host_id}", destination.silent_s(now_s), _refusal(destination, receives=True)
            ),
        ]
        for host, mover in zip((source, destination), movers, strict=True):
            name = f"mover {host.facts.mover_id}"
            peers.append(Peer(name, now_s - mover.heard_at_s) if mover else Peer(name, 0.0, "has not registered"))
        return tuple(peers)

    def _bounds_s(self, facts: SessionFacts) -> tuple[float, float]:
        """From freeze to commit, and the longest freeze."""
        settings, contract = self.settings, facts.descriptor.contract
        if contract.has_deadline:
            return contract.horizon_s, contract.horizon_s + settings.grace_s
        return settings.move_deadline_s, settings.max_freeze_s

    def _plan(self, facts: SessionFacts, choice: Choice, because: str) -> Plan:
        deadline_s, max_freeze_s = self._bounds_s(facts)
        codec = choice.codec.name if choice.codec else RAW
        return Plan(
            transport=choice.transport,
            chunk_bytes=choice.chunk_bytes,
            streams=choice.streams,
            placement=choice.placement,
            deadline_s=deadline_s,
            max_freeze_s=max_freeze_s,
            no_progress_s=self.settings.no_progress_s,
            codec=codec,
            tail_bytes=choice.tail_bytes,
            staged=is_staged(choice.transport, choice.placement, codec, because),
            made=() if codec in DEVICE_CODECS else facts.made,
        )


def _checksum(mover: Mover | None) -> Checksum | None:
    """What a mover said of its verification lane; None if it did not."""
    if mover is None or not (mover.facts.verify_Bps and mover.facts.verify_threads):
        return None
    return Checksum(mover.facts.verify_Bps, mover.facts.verify_threads)


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

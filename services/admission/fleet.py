"""The fleet as it is now: hosts and movers that registered, what they last said, and which incarnations are dead."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from admission.estimators import dirty_after
from admission.facts import HostFacts, HostState, MoverFacts, SessionFacts, host_from, session_from, status_from
from admission.journal import Journal
from admission.journal_rows import SessionRow
from worldline import telemetry
from worldline.errors import Exhausted, NotFound, Owned, StaleFence
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb

MAX_HOSTS = 10_000
# A status may have been written before its host created or took a session: only a repeated absence means "closed".
_ABSENCES = 3
# A status may have been written before its host gave a session away: only a repeated claim means that it holds the id.
_CLAIMS = 2


@dataclass(frozen=True)
class Host:
    """One engine host. `heard_at_s` is monotonic, -inf until it registers with this process.

    `claims` counts, by session, the statuses in a row that had a session of another host's.
    """

    facts: HostFacts
    registration: pb.EngineHostRegistration
    status: pb.EngineHostStatus
    fenced: bool
    heard_at_s: float
    claims: dict[str, int] = field(default_factory=dict)

    @property
    def host_id(self) -> str:
        """Engine host."""
        return self.facts.host_id

    def silent_s(self, now_s: float) -> float:
        """Seconds since it was heard from."""
        return now_s - self.heard_at_s

    def holds_as_its_own(self, session_id: str) -> bool:
        """Whether it has a session of its own under an id that is another host's."""
        return self.claims.get(session_id, 0) >= _CLAIMS


@dataclass(frozen=True, slots=True)
class Mover:
    """One mover."""

    facts: MoverFacts
    heard_at_s: float


class Fleet:
    """Registrations and heartbeats, and the sessions they report."""

    def __init__(
        self, journal: Journal, forget_s: float, silent_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Seconds of silence: after `forget_s` a host without sessions is forgotten, after `silent_s` another state
        directory may have its id.
        """
        self._journal = journal
        self._forget_s = forget_s
        self._silent_s = silent_s
        self._clock = clock
        self._began_s = clock()
        self._lock = threading.RLock()
        self._movers: dict[str, Mover] = {}
        self._facts: dict[str, SessionFacts] = {}
        self._absences: dict[str, int] = {}
        self._drained: set[str] = set()
        self._hosts: dict[str, Host] = {}
        for row in journal.hosts():
            message = pb.EngineHostRegistration.FromString(row.registration)
            status = pb.EngineHostStatus()
            self._hosts[row.host_id] = Host(host_from(message), message, status, row.fenced, -math.inf)

    # --- hosts

    def register_host(self, request: pb.RegisterEngineHostRequest) -> tuple[HostFacts, list[str]]:
        """A host joins. Returns what it registered and the sessions that died with its older incarnation.

        Raises:
            BadRequest: a field is wrong. StaleFence: the incarnation is older than one seen, or was fenced.
            Owned: HOST_ID_TAKEN, another process is this incarnation; HOST_ID_SERVED, a host that was heard of lately
            has this id, from another state directory. Exhausted: the fleet is full.
        """
        facts = host_from(request.registration)
        sessions = status_from(request.status)
        with self._lock:
            known = self._hosts.get(facts.host_id)
            if known is None:
                self._make_room()
            else:
                self._require_current(known, facts.incarnation)
                self._require_same_process(known, facts.incarnation, facts.instance_id, facts.cluster_address)
                self._require_same_state(known, facts)
            lost = self._journal.register_host(
                facts.host_id, facts.incarnation, request.registration.SerializeToString()
            )
            status = self._told_to_drain(facts.host_id, request.status)
            self._hosts[facts.host_id] = Host(facts, request.registration, status, False, self._clock())
            self._take(facts, request.status, sessions)
        return facts, lost

    def _make_room(self) -> None:
        """Before a new host joins: forget those that were long silent, and that nothing depends on.

        A fenced one is kept, so that it can be told so when it wakes.
        """
        now_s = self._clock()
        silent = [
            host for host in self._hosts.values() if not host.fenced and self._unheard_s(host, now_s) > self._forget_s
        ]
        forgotten = self._journal.forget_hosts([host.host_id for host in silent]) if silent else []
        for host_id in forgotten:
            del self._hosts[host_id]
        if forgotten:
            telemetry.log("fleet").info("hosts forgotten", count=len(forgotten), silent_s=self._forget_s)
        if len(self._hosts) >= MAX_HOSTS:
            raise Exhausted(
                f"the fleet has {len(self._hosts)} hosts, at most {MAX_HOSTS} are taken; one without sessions is "
                f"forgotten after {self._forget_s:g} s of silence",
                reason="FLEET_FULL",
                numbers={"hosts": len(self._hosts), "limit": MAX_HOSTS},
                retry_after_s=60.0,
            )

    def heartbeat_host(self, request: pb.HeartbeatEngineHostRequest) -> tuple[bool, bool]:
        """A host is alive. Returns whether it is unknown here, and whether it was fenced.

        Raises:
            BadRequest: a field is wrong. StaleFence: the incarnation is older than one seen.
            Owned: HOST_ID_TAKEN, another process is this incarnation.
        """
        sessions = status_from(request.status)
        with self._lock:
            known = self._hosts.get(request.host_id)
            if known is None or request.incarnation > known.facts.incarnation:
                return True, False
            if request.incarnation == known.facts.incarnation and known.fenced:
                return False, True
            self._require_current(known, request.incarnation)
            self._require_same_process(known, request.incarnation, request.instance_id, "")
            if known.heard_at_s == -math.inf:
                return True, False
            status = self._told_to_drain(request.host_id, request.status)
            self._hosts[request.host_id] = replace(known, status=status, heard_at_s=self._clock())
            self._take(known.facts, request.status, sessions)
        return False, False

    def drain(self, host_id: str) -> None:
        """The host takes no sessions any more, whatever it says of itself, until `undrain`."""
        with self._lock:
            self._drained.add(host_id)
            known = self._hosts.get(host_id)
            if known is not None:
                self._hosts[host_id] = replace(known, status=self._told_to_drain(host_id, known.status))

    def undrain(self, host_id: str) -> None:
        """The host takes sessions again, if its next heartbeat does not say otherwise. Raises NotFound."""
        with self._lock:
            known = self.host(host_id)
            self._drained.discard(host_id)
            status = pb.EngineHostStatus()
            status.CopyFrom(known.status)
            status.draining = False
            self._hosts[host_id] = replace(known, status=status)

    def _told_to_drain(self, host_id: str, status: pb.EngineHostStatus) -> pb.EngineHostStatus:
        """What a host says of itself, with an operator's word on top."""
        if host_id not in self._drained or status.draining:
            return status
        told = pb.EngineHostStatus()
        told.CopyFrom(status)
        told.draining = True
        return told

    @staticmethod
    def _require_current(known: Host, incarnation: int) -> None:
        if incarnation < known.facts.incarnation:
            raise StaleFence(
                f"incarnation {incarnation} of host {known.host_id} is dead: {known.facts.incarnation} has registered",
                reason="STALE_INCARNATION",
                numbers={"incarnation": incarnation, "highest": known.facts.incarnation},
            )
        if incarnation == known.facts.incarnation and known.fenced:
            raise StaleFence(
                f"incarnation {incarnation} of host {known.host_id} was fenced: start the host again",
                reason="HOST_FENCED",
                numbers={"incarnation": incarnation},
            )

    @staticmethod
    def _require_same_process(known: Host, incarnation: int, instance_id: str, address: str) -> None:
        # Its lock on its state directory keeps a host single; another directory, or machine, escapes that lock.
        if incarnation != known.facts.incarnation or instance_id == known.facts.instance_id:
            return
        told = f"this one, at {address}," if address else "the one that sent this heartbeat"
        raise Owned(
            f"host {known.host_id} at incarnation {incarnation} is the process at {known.facts.cluster_address}, and "
            f"{told} is another: give each host its own id, and one state directory for good",
            reason="HOST_ID_TAKEN",
            numbers={"incarnation": incarnation, "registered": known.facts.cluster_address, "refused": address},
            resource=("engine_host", known.host_id),
        )

    def _require_same_state(self, known: Host, facts: HostFacts) -> None:
        # A number from a directory that never knew of the other's says nothing about whether the other has ended.
        if facts.state_id == known.facts.state_id or known.fenced:
            return
        left_s = self._silent_s - self._unheard_s(known, self._clock())
        if left_s < 0:
            return
        raise Owned(
            f"host {known.host_id} is served at {known.facts.cluster_address} from another state directory than the "
            f"one at {facts.cluster_address}, so incarnation {facts.incarnation} is no restart of it: give each host "
            f"its own id; to replace that one, stop it and wait {self._silent_s:g} s, or fence its incarnation "
            f"{known.facts.incarnation}",
            reason="HOST_ID_SERVED",
            numbers={
                "incarnation": facts.incarnation,
                "refused": facts.cluster_address,
                "registered_incarnation": known.facts.incarnation,
                "registered": known.facts.cluster_address,
                "silent_s": self._silent_s,
            },
            resource=("engine_host", known.host_id),
            retry_after_s=left_s,
        )

    def _unheard_s(self, host: Host, now_s: float) -> float:
        """Seconds in which this process listened and the host said nothing."""
        return now_s - max(host.heard_at_s, self._began_s)

    def fence_host(self, host_id: str, incarnation: int, reason: str) -> list[str]:
        """An operator's word that an incarnation is dead. Returns the sessions lost with it.

        Raises:
            NotFound: no such host, or an incarnation that has not been.
        """
        with self._lock:
            known = self.host(host_id)
            if incarnation > known.facts.incarnation or incarnation < 1:
                raise NotFound(
                    f"host {host_id} is at incarnation {known.facts.incarnation}; there has been no {incarnation}",
                    reason="UNKNOWN_INCARNATION",
                    resource=("engine_host", host_id),
                )
            if incarnation < known.facts.incarnation:
                return []
            lost = self._journal.fence_host(host_id, incarnation, reason)
            self._hosts[host_id] = replace(known, fenced=True)
        return lost

    def host(self, host_id: str) -> Host:
        """One host. Raises NotFound."""
        with self._lock:
            known = self._hosts.get(host_id)
        if known is None:
            raise NotFound(
                f"there is no engine host {host_id[:64]!r} in this fleet",
                reason="UNKNOWN_HOST",
                resource=("engine_host", host_id[:64]),
            )
        return known

    def hosts(self) -> list[Host]:
        """All hosts by id."""
        with self._lock:
            return sorted(self._hosts.values(), key=lambda host: host.host_id)

    def any_order(self) -> list[Host]:
        """All hosts, in no order: for those who ask often."""
        with self._lock:
            return list(self._hosts.values())

    def dead(self, host_id: str, incarnation: int) -> bool:
        """Whether that incarnation is proven dead."""
        with self._lock:
            known = self._hosts.get(host_id)
        if known is None:
            return False
        return known.facts.incarnation > incarnation or (known.facts.incarnation == incarnation and known.fenced)

    def now_s(self) -> float:
        """The fleet's clock."""
        return self._clock()

    # --- sessions

    def session(self, row: SessionRow) -> SessionFacts:
        """What is known of a session: what its host said last, else what was journaled."""
        with self._lock:
            facts = self._facts.get(row.session_id)
        return facts or session_from(host_pb.SessionInfo.FromString(row.info))

    def placed(self, host_id: str, incarnation: int, info: host_pb.SessionInfo) -> SessionFacts:
        """What a host answered to a placement: kept if it owns the session, and nothing newer is known.

        Raises:
            BadRequest: a field is wrong.
        """
        facts = session_from(info)
        session_id = facts.descriptor.session_id
        row = SessionRow(session_id, host_id, incarnation, facts.epoch, False, "", info.SerializeToString())
        with self._lock:
            if facts.state.owns and not self._journal.adopt([row]):
                self._facts[session_id] = facts
                self._absences.pop(session_id, None)
        return facts

    def _take(self, host: HostFacts, status: pb.EngineHostStatus, sessions: dict[str, SessionFacts]) -> None:
        """Adopt what is new, refresh what is known, forget what the host has not had for some statuses."""
        owned = {row.session_id: row for row in self._journal.sessions_of(host.host_id)}
        new = []
        for info in status.sessions:
            session_id = info.descriptor.session_id
            facts = sessions[session_id]
            if not facts.state.owns:
                continue
            row = owned.get(session_id)
            if row is None or (row.incarnation, row.epoch) != (host.incarnation, facts.epoch):
                new.append(
                    SessionRow(
                        session_id, host.host_id, host.incarnation, facts.epoch, False, "", info.SerializeToString()
                    )
                )
            else:
                self._facts[session_id] = self._smoothed(self._facts.get(session_id), facts)
        refused = set(self._journal.adopt(new)) if new else set()
        for row in new:
            if row.session_id not in refused:
                self._facts[row.session_id] = sessions[row.session_id]
        self._count_claims(host, refused)
        self._forget_absent(host, owned, sessions)

    @staticmethod
    def _smoothed(before: SessionFacts | None, facts: SessionFacts) -> SessionFacts:
        """The facts with D as it was over the last blocks. A heartbeat that tells no new block teaches nothing."""
        measured_Bps = facts.measured_Bps
        if before is None or measured_Bps is None:
            return replace(facts, smoothed_Bps=measured_Bps)
        if facts.next_block == before.next_block:
            return replace(facts, smoothed_Bps=before.dirty_rate_Bps)
        return replace(facts, smoothed_Bps=dirty_after(before.dirty_rate_Bps, measured_Bps))

    def _count_claims(self, host: HostFacts, refused: set[str]) -> None:
        """Remember the sessions that a host has under the id of another host's, which it cannot stage."""
        known = self._hosts[host.host_id]
        claims = {}
        for session_id in refused:
            row = self._journal.session(session_id)
            if row is not None and not row.move_id and not row.lost and row.host_id != host.host_id:
                claims[session_id] = known.claims.get(session_id, 0) + 1
        if claims or known.claims:
            self._hosts[host.host_id] = replace(known, claims=claims)

    def _forget_absent(self, host: HostFacts, owned: dict[str, SessionRow], sessions: dict[str, SessionFacts]) -> None:
        closed = []
        for session_id, row in owned.items():
            facts = sessions.get(session_id)
            if (facts is not None and facts.state is not HostState.GONE) or row.move_id:
                self._absences.pop(session_id, None)
                continue
            self._absences[session_id] = self._absences.get(session_id, 0) + 1
            if self._absences[session_id] >= _ABSENCES:
                closed.append(row)
        if closed:
            self._journal.forget(closed)
            for row in closed:
                self._absences.pop(row.session_id, None)
                self._facts.pop(row.session_id, None)
            telemetry.log("fleet").info("sessions closed", host_id=host.host_id, count=len(closed))

    # --- movers

    def register_mover(self, facts: MoverFacts) -> None:
        """A mover joins; it replaces what was registered under its id."""
        with self._lock:
            self._movers[facts.mover_id] = Mover(facts, self._clock())

    def heartbeat_mover(self, mover_id: str, verify_Bps: float = 0.0) -> bool:
        """A mover is alive; `verify_Bps` is what its lane checked lately, 0 if it did not tell.

        Returns whether it is unknown here.
        """
        with self._lock:
            known = self._movers.get(mover_id)
            if known is None:
                return True
            facts = replace(known.facts, verify_Bps=verify_Bps) if verify_Bps else known.facts
            self._movers[mover_id] = Mover(facts, self._clock())
        return False

    def mover(self, mover_id: str) -> Mover | None:
        """One mover; None if it has not registered."""
        with self._lock:
            return self._movers.get(mover_id)

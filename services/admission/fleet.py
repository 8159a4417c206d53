"""The fleet as it is now: hosts and movers that registered, what they last said, and which incarnations are dead."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from admission.facts import HostFacts, HostState, MoverFacts, SessionFacts, host_from, session_from, status_from
from admission.journal import Journal
from admission.journal_rows import SessionRow
from worldline import telemetry
from worldline.errors import NotFound, StaleFence
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb

MAX_HOSTS = 10_000
# A status may have been written before its host created or took a session: only a repeated absence means "closed".
_ABSENCES = 3


@dataclass(frozen=True)
class Host:
    """One engine host. `heard_at_s` is monotonic, -inf until it registers with this process."""

    facts: HostFacts
    registration: pb.EngineHostRegistration
    status: pb.EngineHostStatus
    fenced: bool
    heard_at_s: float

    @property
    def host_id(self) -> str:
        """Engine host."""
        return self.facts.host_id

    def silent_s(self, now_s: float) -> float:
        """Seconds since it was heard from."""
        return now_s - self.heard_at_s


@dataclass(frozen=True, slots=True)
class Mover:
    """One mover."""

    facts: MoverFacts
    heard_at_s: float


class Fleet:
    """Registrations and heartbeats, and the sessions they report."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.RLock()
        self._movers: dict[str, Mover] = {}
        self._facts: dict[str, SessionFacts] = {}
        self._absences: dict[str, int] = {}
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
        """
        facts = host_from(request.registration)
        sessions = status_from(request.status)
        with self._lock:
            known = self._hosts.get(facts.host_id)
            if known is None and len(self._hosts) >= MAX_HOSTS:
                raise StaleFence(f"the fleet has {MAX_HOSTS} hosts; no more are taken", reason="FLEET_FULL")
            if known is not None:
                self._require_current(known, facts.incarnation)
            lost = self._journal.register_host(
                facts.host_id, facts.incarnation, request.registration.SerializeToString()
            )
            self._hosts[facts.host_id] = Host(facts, request.registration, request.status, False, self._clock())
            self._take(facts, request.status, sessions)
        return facts, lost

    def heartbeat_host(self, request: pb.HeartbeatEngineHostRequest) -> tuple[bool, bool]:
        """A host is alive. Returns whether it is unknown here, and whether it was fenced.

        Raises:
            BadRequest: a field is wrong. StaleFence: the incarnation is older than one seen.
        """
        sessions = status_from(request.status)
        with self._lock:
            known = self._hosts.get(request.host_id)
            if known is None or request.incarnation > known.facts.incarnation:
                return True, False
            if request.incarnation == known.facts.incarnation and known.fenced:
                return False, True
            self._require_current(known, request.incarnation)
            if known.heard_at_s == -math.inf:
                return True, False
            self._hosts[request.host_id] = replace(known, status=request.status, heard_at_s=self._clock())
            self._take(known.facts, request.status, sessions)
        return False, False

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
        """A session was created on a host: keep it. Raises BadRequest."""
        facts = session_from(info)
        session_id = facts.descriptor.session_id
        with self._lock:
            self._journal.adopt(
                [SessionRow(session_id, host_id, incarnation, facts.epoch, False, "", info.SerializeToString())]
            )
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
                self._facts[session_id] = facts
        if new:
            refused = set(self._journal.adopt(new))
            for row in new:
                if row.session_id not in refused:
                    self._facts[row.session_id] = sessions[row.session_id]
        self._forget_absent(host, owned, sessions)

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

    def heartbeat_mover(self, mover_id: str) -> bool:
        """A mover is alive. Returns whether it is unknown here."""
        with self._lock:
            known = self._movers.get(mover_id)
            if known is None:
                return True
            self._movers[mover_id] = replace(known, heard_at_s=self._clock())
        return False

    def mover(self, mover_id: str) -> Mover | None:
        """One mover; None if it has not registered."""
        with self._lock:
            return self._movers.get(mover_id)

"""Placing new sessions: which host is asked is journaled first, so that a repeated request asks the same one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from admission.decision import lost_session
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import Lease, PlacementRow
from admission.offers import Pins, paths_between
from admission.profile import Profile
from admission.settings import AdmissionSettings
from admission.spread import Candidate, ordered
from worldline import rpc
from worldline.canonical import digest
from worldline.errors import BadRequest, Exhausted, NotFound, Unavailable
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc

# Paths that are looked at for each host: those to the hosts with most room, where its sessions would go.
_PATHS = 4


class Arrivals:
    """Sessions that are being created, and those that their host's last word cannot have in it yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._creating: Counter[str] = Counter()
        self._created: dict[str, list[tuple[float, int]]] = {}  # host -> (when, bytes)

    @contextmanager
    def creating(self, host_id: str) -> Iterator[None]:
        """While a session is being created there."""
        with self._lock:
            self._creating[host_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._creating[host_id] -= 1

    def created(self, host_id: str, now_s: float, state_bytes: int) -> None:
        """A session of that size was created there."""
        with self._lock:
            self._created.setdefault(host_id, []).append((now_s, state_bytes))

    def being_created(self, host_id: str) -> int:
        """Sessions that are being created there now."""
        with self._lock:
            return self._creating[host_id]

    def unseen_bytes(self, host_id: str, heard_at_s: float) -> int:
        """Bytes of the sessions that were created there since the host was heard."""
        with self._lock:
            unseen = [item for item in self._created.get(host_id, ()) if item[0] >= heard_at_s]
            self._created[host_id] = unseen
            return sum(state_bytes for _, state_bytes in unseen)


@dataclass(frozen=True, slots=True)
class Placer:
    """Creates sessions where there is room for them, and a way out."""

    journal: Journal
    fleet: Fleet
    profile: Profile
    settings: AdmissionSettings
    channels: rpc.Channels
    arrivals: Arrivals = field(default_factory=Arrivals)

    def place(self, request: pb.PlaceSessionRequest, budget_s: float) -> pb.PlaceSessionResponse:
        """Create the session, or answer as before to the same request.

        Raises:
            BadRequest: the request id was used for another request. NotFound: nobody serves the preset.
            NotFound: SESSION_CLOSED, the session of that request is gone. SessionLost: it was lost with its host.
            Exhausted: no host has room. Unavailable: no host, or the chosen one, can be reached.
        """
        digested = request_digest(request)
        known = self.journal.placement(request.request_id)
        if known is not None:
            require_same(known.request_digest, digested, request.request_id)
            if not self.fleet.dead(known.host_id, known.incarnation):
                return self._create(self.fleet.host(known.host_id), request, budget_s)
        *others, last = self._candidates(request)
        for host in others:
            with suppress(Exhausted):  # the next one may have room
                return self._create_on(host, request, digested, budget_s)
        return self._create_on(last, request, digested, budget_s)

    def _create_on(
        self, host: Host, request: pb.PlaceSessionRequest, digested: bytes, budget_s: float
    ) -> pb.PlaceSessionResponse:
        # A drain marks its host first and waits for what is being created then: looking again inside leaves no gap.
        with self.arrivals.creating(host.host_id):
            if self.fleet.host(host.host_id).status.draining:
                raise Exhausted(
                    f"host {host.host_id} began to drain while it was chosen; ask again",
                    reason="DRAINING",
                    retry_after_s=self.settings.heartbeat_s,
                )
            self.journal.place(PlacementRow(request.request_id, digested, host.host_id, host.facts.incarnation))
            return self._create(host, request, budget_s)

    def _candidates(self, request: pb.PlaceSessionRequest) -> list[Host]:
        """Hosts that may take the session, the best first; at least one."""
        wanted = f"{request.engine}/{request.preset}"
        hosts = [self.fleet.host(request.host_id)] if request.host_id else self.fleet.hosts()
        if not hosts:
            raise Unavailable(
                "no engine host has joined yet; ask again when one has",
                reason="NO_READY_HOST",
                retry_after_s=self.settings.heartbeat_s,
            )
        serving = [host for host in hosts if wanted in host.facts.presets]
        if not serving:
            offered = sorted({name for host in hosts for name in host.facts.presets})
            raise NotFound(
                f"no engine host serves {wanted[:128]!r}; {', '.join(offered)[:512] or 'nothing'} is served",
                reason="UNKNOWN_PRESET",
                resource=("preset", wanted[:128]),
            )
        now_s = self.fleet.now_s()
        ready = [host for host in serving if is_ready(host, now_s, self.settings.silent_s)]
        if not ready:
            raise Unavailable(
                f"none of the {len(serving)} hosts that serve {wanted} is ready: they are silent, fenced or draining",
                reason="NO_READY_HOST",
                retry_after_s=self.settings.heartbeat_s,
            )
        if len(ready) == 1:
            return ready
        by_id, leases = {host.host_id: host for host in ready}, self.journal.leases()
        candidates = [self._candidate(host, self._egress_Bps(host, ready), leases) for host in ready]
        return [by_id[item.host_id] for item in ordered(candidates)]

    def _candidate(self, host: Host, egress_Bps: float, leases: list[Lease]) -> Candidate:
        unix_s, silent_s = time.time(), host.silent_s(self.fleet.now_s())
        here = [lease for lease in leases if lease.host_id == host.host_id]
        # A lease younger than the host's last word is not in its free bytes yet.
        taken_bytes = sum(lease.slot_bytes for lease in here if unix_s - lease.begins_s < silent_s)
        taken_bytes += self.arrivals.unseen_bytes(host.host_id, host.heard_at_s)
        receiving = sum(lease.receives for lease in here) + self.arrivals.being_created(host.host_id)
        free_bytes = max(host.status.free_bytes - taken_bytes, 0)
        return Candidate(host.host_id, free_bytes, host.status.warm_bytes, egress_Bps, receiving)

    def _egress_Bps(self, host: Host, ready: list[Host]) -> float:
        """The best path out of a host to one that could go on with its sessions; 0 if there is none."""
        twins = [other for other in ready if other is not host and other.facts.fingerprint == host.facts.fingerprint]
        twins.sort(key=lambda other: (-other.status.free_bytes, other.host_id))
        found = 0.0
        for twin in twins[:_PATHS]:
            known = [self.fleet.mover(mover_id) for mover_id in (host.facts.mover_id, twin.facts.mover_id)]
            movers = tuple(mover.facts for mover in known if mover)
            paths = paths_between(self.profile, host.facts.mover_id, twin.facts.mover_id, movers, Pins())
            found = max([found, *(path.bandwidth_Bps for path in paths if not path.refusal)])
        return found

    def _create(self, host: Host, request: pb.PlaceSessionRequest, budget_s: float) -> pb.PlaceSessionResponse:
        asked = host_pb.CreateSessionRequest(
            request_id=request.request_id,
            engine=request.engine,
            preset=request.preset,
            seed=request.seed,
            contract=request.contract if request.HasField("contract") else None,
        )
        stub = host_grpc.EngineHostServiceStub(self.channels.to(host.facts.cluster_address))
        with rpc.calling(f"host {host.host_id}"):
            made = stub.CreateSession(asked, timeout=min(budget_s, self.settings.create_timeout_s))
        facts = self.fleet.placed(host.host_id, host.facts.incarnation, made.session)
        self.arrivals.created(host.host_id, self.fleet.now_s(), facts.state_bytes)
        session_id = facts.descriptor.session_id
        row = self.journal.session(session_id)
        if row is not None and row.lost:
            raise lost_session(row)
        # A repeated request may find that its session has moved on since, or was closed.
        elsewhere = row is not None and (row.host_id != host.host_id or bool(row.move_id))
        if not facts.state.owns and not elsewhere:
            raise NotFound(
                f"session {session_id} of this request was closed; place another with a new request id",
                reason="SESSION_CLOSED",
                resource=("session", session_id),
            )
        if row is not None:
            host = self.fleet.host(row.host_id)
        return pb.PlaceSessionResponse(
            session=made.session,
            host_id=host.host_id,
            public_address=host.facts.public_address,
            resume_token=made.resume_token,
        )


def is_ready(host: Host, now_s: float, silent_s: float) -> bool:
    """Whether a host may take sessions now."""
    return not host.fenced and not host.status.draining and host.silent_s(now_s) <= silent_s


def request_digest(
    request: pb.PlaceSessionRequest | pb.RequestMoveRequest | pb.DrainRequest | pb.PlanRequest,
) -> bytes:
    """What makes two requests of one id the same."""
    return digest(type(request).__name__, request.SerializeToString(deterministic=True))


def require_same(known: bytes, given: bytes, request_id: str) -> None:
    """Raises BadRequest if a request id comes back with other arguments."""
    if known != given:
        raise BadRequest(
            f"request id {request_id} was used before with other arguments: use a new one",
            reason="REQUEST_ID_REUSED",
            violations={"request_id": "was used with other arguments"},
        )

"""Placing new sessions: which host is asked is journaled first, so that a repeated request asks the same one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from admission.decision import lost_session
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import PlacementRow
from admission.settings import AdmissionSettings
from worldline import rpc
from worldline.canonical import digest
from worldline.errors import BadRequest, Exhausted, NotFound, Unavailable
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc


@dataclass(frozen=True, slots=True)
class Placer:
    """Creates sessions on the host with the most room."""

    journal: Journal
    fleet: Fleet
    settings: AdmissionSettings
    channels: rpc.Channels

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
        self.journal.place(PlacementRow(request.request_id, digested, host.host_id, host.facts.incarnation))
        return self._create(host, request, budget_s)

    def _candidates(self, request: pb.PlaceSessionRequest) -> list[Host]:
        """Hosts that may take the session, most free bytes first; at least one."""
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
        return sorted(ready, key=lambda host: (-host.status.free_bytes, host.host_id))

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


def request_digest(request: pb.PlaceSessionRequest | pb.RequestMoveRequest) -> bytes:
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

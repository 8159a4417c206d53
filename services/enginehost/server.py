"""The gRPC service: messages in, values to the verbs, messages out. Nothing is decided here."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

import grpc

from enginehost.destination import Destination
from enginehost.device import Pulled
from enginehost.driving import Driving
from enginehost.flowing import pulled_as_it_lands, said_of_filling
from enginehost.host import Host
from enginehost.info import session_info
from enginehost.inspection import Inspect, Inspections
from enginehost.lifecycle import Lifecycle, Wanted
from enginehost.ownership import State
from enginehost.play import play
from enginehost.prewarm import make_warm
from enginehost.shadow import PullFrom
from enginehost.source import Source
from enginehost.suspension import resume, suspend
from worldline import wire
from worldline.errors import BadRequest, NotFound
from worldline.filling import Filling
from worldline.instruments.wire import found_to
from worldline.move import Fence, require_id, require_uuid
from worldline.rpc import remaining_s
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import move_pb2, state_pb2
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceServicer

VERB_TIMEOUT_S = 60.0
ADMIT_TIMEOUT_S = 10.0
CREATE_TIMEOUT_S = 120.0
INSPECT_TIMEOUT_S = 3600.0
RESERVE_TIMEOUT_S = 30.0
# Left for the answer's own way back when a verb waits as long as its caller does.
ANSWER_S = 0.05
MAX_PAGE = 1_000
DEFAULT_PAGE = 100


class EngineHostServicer(EngineHostServiceServicer):
    """EngineHostService on one host. `cluster_address` is set once it is known, before the first move."""

    cluster_address = ""

    def __init__(self, host: Host, lifecycle: Lifecycle, driving: Driving) -> None:
        self._host = host
        self._lifecycle = lifecycle
        self._driving = driving
        self._source = Source(host)
        self._destination = Destination(host)
        self._inspections = Inspections(host)

    # --- sessions

    def CreateSession(
        self, request: pb.CreateSessionRequest, context: grpc.ServicerContext
    ) -> pb.CreateSessionResponse:
        if request.session_id and self._host.settings.admission:
            what = "admission places sessions here, so the host makes their ids: leave it empty"
            raise BadRequest(f"session_id: {what}", reason="SESSION_ID_CHOSEN", violations={"session_id": what})
        wanted = Wanted(
            engine=request.engine,
            preset=request.preset,
            seed=request.seed,
            contract=wire.contract_from(request.contract) if request.HasField("contract") else None,
            session_id=require_id(request.session_id, "session_id") if request.session_id else "",
        )
        request_id = require_uuid(request.request_id, "request_id")
        session, token = self._lifecycle.create(request_id, wanted, remaining_s(context, CREATE_TIMEOUT_S))
        return pb.CreateSessionResponse(session=session_info(session), resume_token=token)

    def Play(
        self, request_iterator: Iterator[pb.PlayRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PlayResponse]:
        return play(self._host, request_iterator, context)

    def DescribeSession(
        self, request: pb.DescribeSessionRequest, context: grpc.ServicerContext
    ) -> pb.DescribeSessionResponse:
        session = self._host.sessions.get(require_id(request.session_id, "session_id"))
        info = session_info(session)
        if session.ownership.state is State.NOTHING:
            raise NotFound(
                f"session {request.session_id} is not on this host",
                reason="UNKNOWN_SESSION",
                resource=("session", request.session_id),
            )
        fingerprint = self._host.fingerprints.of(info.descriptor.engine, info.descriptor.preset)
        return pb.DescribeSessionResponse(session=info, fingerprint=wire.fingerprint_to(fingerprint))

    def ListSessions(self, request: pb.ListSessionsRequest, context: grpc.ServicerContext) -> pb.ListSessionsResponse:
        if request.page_size > MAX_PAGE:
            raise BadRequest(
                f"page_size {request.page_size} is over {MAX_PAGE}", violations={"page_size": f"at most {MAX_PAGE}"}
            )
        after = _after(request.page_token)
        size = request.page_size or DEFAULT_PAGE
        found = [session for session in self._host.sessions.held() if session.session_id > after]
        token = base64.urlsafe_b64encode(found[size - 1].session_id.encode()).decode() if len(found) > size else ""
        return pb.ListSessionsResponse(
            sessions=[session_info(session) for session in found[:size]], next_page_token=token
        )

    def CloseSession(self, request: pb.CloseSessionRequest, context: grpc.ServicerContext) -> pb.CloseSessionResponse:
        session_id = require_id(request.session_id, "session_id")
        self._lifecycle.close(session_id, request.resume_token, _waiting(context))
        return pb.CloseSessionResponse()

    def SuspendSession(
        self, request: pb.SuspendSessionRequest, context: grpc.ServicerContext
    ) -> pb.SuspendSessionResponse:
        session_id = require_id(request.session_id, "session_id")
        session, held = suspend(self._host, session_id, _waiting(context))
        return pb.SuspendSessionResponse(
            session=session_info(session), freed_bytes=held.freed_bytes, copy_s=held.copy_s
        )

    def ResumeSession(
        self, request: pb.ResumeSessionRequest, context: grpc.ServicerContext
    ) -> pb.ResumeSessionResponse:
        session_id = require_id(request.session_id, "session_id")
        session, resumed = resume(self._host, session_id, _waiting(context))
        return pb.ResumeSessionResponse(session=session_info(session), copy_s=resumed.copy_s, load_s=resumed.load_s)

    def Prewarm(self, request: pb.PrewarmRequest, context: grpc.ServicerContext) -> pb.PrewarmResponse:
        self._host.require_open()
        took = make_warm(self._host, request.engine, request.preset, request.slots)
        warm = self._host.warm_slots
        return pb.PrewarmResponse(
            load_s=took.load_s,
            slot_s=took.slot_s,
            first_block_s=took.first_block_s,
            slots=warm.count(f"{request.engine}/{request.preset}"),
            warm_bytes=warm.size_bytes,
        )

    def InspectSession(
        self, request: pb.InspectSessionRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.InspectSessionResponse]:
        wanted = Inspect(
            require_id(request.session_id, "session_id"), request.blocks, request.piece_bytes, request.one_in or 1
        )
        for found in self._inspections.run(wanted, remaining_s(context, INSPECT_TIMEOUT_S), context.add_callback):
            yield found_to(found)

    # --- the six verbs

    def RegisterState(
        self, request: pb.RegisterStateRequest, context: grpc.ServicerContext
    ) -> pb.RegisterStateResponse:
        session_id = require_id(request.session_id, "session_id")
        fence = None
        if request.HasField("fence"):
            fence = wire.fence_from(request.fence)
            if fence.session_id != session_id:
                what = f"{fence.session_id} is not session_id {session_id}"
                raise BadRequest(f"fence.session_id {what}", violations={"fence.session_id": what})
        plan = wire.plan_from(request.plan) if request.HasField("plan") else None
        registered = self._source.register(session_id, fence, plan, _waiting(context))
        return pb.RegisterStateResponse(
            layout=wire.layout_to(registered.layout),
            descriptor=wire.descriptor_to(registered.descriptor),
            fingerprint=wire.fingerprint_to(registered.fingerprint),
            region_ticket=registered.ticket,
            manifest=None if registered.manifest is None else wire.manifest_to(registered.manifest),
            device_id=registered.device_id,
        )

    def Admit(self, request: pb.AdmitRequest, context: grpc.ServicerContext) -> pb.AdmitResponse:
        session_id = require_id(request.session_id, "session_id")
        destination = request.destination_host_id
        if destination:
            require_id(destination, "destination_host_id")
        if request.mode not in move_pb2.MoveMode.values():
            raise BadRequest(f"mode {request.mode} is unknown", violations={"mode": "FROZEN or LIVE"})
        verdict = self._driving.admit(session_id, destination, request.mode, remaining_s(context, ADMIT_TIMEOUT_S))
        return pb.AdmitResponse(verdict=wire.verdict_to(verdict))

    def Migrate(self, request: pb.MigrateRequest, context: grpc.ServicerContext) -> pb.MigrateResponse:
        plan = wire.plan_from(request.plan)
        manifest, source, destination = self._driving.migrate(
            _fence(request),
            plan,
            wire.host_from(request.destination, "destination"),
            wire.address_from(request.destination_mover_address, "destination_mover_address"),
            self.cluster_address,
            remaining_s(context, RESERVE_TIMEOUT_S + plan.max_freeze_s + plan.deadline_s),
        )
        return pb.MigrateResponse(
            manifest=wire.manifest_to(manifest),
            source_receipt=wire.receipt_to(source),
            destination_receipt=wire.receipt_to(destination),
        )

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> pb.VerifyResponse:
        verified = self._destination.verify(
            _fence(request), wire.receipt_from(request.source_receipt), _waiting(context)
        )
        return pb.VerifyResponse(
            verified=not verified.bad_chunks, bad_chunks=verified.bad_chunks, state_crc=verified.state_crc
        )

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.CommitResponse:
        landing, epoch = self._destination.commit(
            _fence(request), request.grant, wire.receipt_from(request.source_receipt), _waiting(context)
        )
        return pb.CommitResponse(
            manifest=wire.manifest_to(landing.manifest),
            epoch=epoch,
            verify_s=landing.verify_s,
            swap_s=landing.swap_s,
        )

    def Rollback(self, request: pb.RollbackRequest, context: grpc.ServicerContext) -> pb.RollbackResponse:
        fence = _fence(request)
        if request.action == pb.ROLLBACK_ACTION_DROP:
            state = self._destination.drop(fence, _waiting(context))
        elif request.action in (pb.ROLLBACK_ACTION_RESUME, pb.ROLLBACK_ACTION_REINSTATE):
            state = self._source.resume(fence, reinstate=request.action == pb.ROLLBACK_ACTION_REINSTATE)
        else:
            raise BadRequest(
                f"action {request.action} is none of RESUME, REINSTATE, DROP",
                violations={"action": "RESUME, REINSTATE or DROP"},
            )
        closed = state is State.NOTHING and self._host.sessions.closed(fence.session_id)
        return pb.RollbackResponse(state=int(state), closed=closed)  # type: ignore[arg-type]

    # --- for movers and admission

    def Stage(self, request: pb.StageRequest, context: grpc.ServicerContext) -> pb.StageResponse:
        pull = None
        if request.HasField("source_region"):
            pull = PullFrom(wire.region_from(request.source_region, "source_region"), wire.plan_from(request.plan))
        elif request.plan.staged:
            pull = PullFrom(None, wire.plan_from(request.plan))
        staged = self._destination.stage(
            _fence(request),
            wire.layout_from(request.layout),
            wire.descriptor_from(request.descriptor),
            wire.fingerprint_from(request.fingerprint),
            _waiting(context),
            pull,
            wire.plan_from(request.plan) if request.HasField("plan") else None,
        )
        return pb.StageResponse(region_ticket=staged.ticket, prefault_s=staged.prefault_s)

    def Freeze(self, request: pb.FreezeRequest, context: grpc.ServicerContext) -> pb.FreezeResponse:
        timeout_s = min(_waiting(context), max(0.0, request.max_freeze_s))
        freeze = self._source.freeze(_fence(request), request.max_freeze_s, timeout_s)
        return pb.FreezeResponse(
            manifest=wire.manifest_to(freeze.manifest),
            boundary_s=freeze.boundary_s,
            flattened_bytes=freeze.flattened_bytes,
            flatten_s=freeze.flatten_s,
        )

    def Checksum(self, request: pb.ChecksumRequest, context: grpc.ServicerContext) -> pb.ChecksumResponse:
        found = self._source.checksum(_fence(request), wire.plan_from(request.plan), _waiting(context))
        return pb.ChecksumResponse(chunk_crcs=found.chunk_crcs, checksum_s=found.checksum_s)

    def Fill(self, request: pb.FillRequest, context: grpc.ServicerContext) -> Iterator[pb.FillResponse]:
        fence, plan = _fence(request), wire.plan_from(request.plan)
        if not plan.staged:
            raise BadRequest("only the plan of a staged move has a buffer", violations={"plan.staged": "is needed"})
        yield from said_of_filling(
            lambda filled: self._source.checksum(fence, plan, _waiting(context), filled), self._region_bytes(fence)
        )

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullResponse:
        pulled = self._destination.pull(
            _fence(request),
            wire.plan_from(request.plan),
            tuple(request.chunks),
            flip=frozenset(request.flip_chunks),
            wanted=context.is_active,
            timeout_s=_waiting(context),
            parts=wire.parts_from(request.parts),
        )
        return _pulled(pulled)

    def PullLanding(
        self, request_iterator: Iterator[pb.PullLandingRequest], context: grpc.ServicerContext
    ) -> pb.PullLandingResponse:
        def pull(request: pb.PullRequest, landing: Filling) -> Pulled:
            return self._destination.pull(
                _fence(request),
                wire.plan_from(request.plan),
                (),
                flip=frozenset(request.flip_chunks),
                wanted=context.is_active,
                timeout_s=_waiting(context),
                landing=landing,
            )

        pulled = pulled_as_it_lands(
            request_iterator, context, pull, lambda request: self._region_bytes(_fence(request))
        )
        return pb.PullLandingResponse(pulled=_pulled(pulled))

    def _region_bytes(self, fence: Fence) -> int:
        return self._host.sessions.get(fence.session_id).require_copy().slot.layout.region_bytes

    def Attest(self, request: pb.AttestRequest, context: grpc.ServicerContext) -> pb.AttestResponse:
        fence = _fence(request)
        manifest, plan = wire.manifest_from(request.manifest), wire.plan_from(request.plan)
        crcs = tuple(request.chunk_crcs)
        if request.side == state_pb2.RECEIPT_SIDE_SOURCE:
            receipt = self._source.attest(fence, manifest, plan, crcs)
        elif request.side == state_pb2.RECEIPT_SIDE_DESTINATION:
            receipt = self._destination.attest(fence, manifest, plan, crcs, _waiting(context))
        else:
            raise BadRequest(f"side {request.side} is neither SOURCE nor DESTINATION", violations={"side": "unknown"})
        return pb.AttestResponse(receipt=wire.receipt_to(receipt))

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseResponse:
        grant = self._source.release(_fence(request))
        return pb.ReleaseResponse(grant=grant or b"", resumed=grant is None)

    def Activate(self, request: pb.ActivateRequest, context: grpc.ServicerContext) -> pb.ActivateResponse:
        return pb.ActivateResponse(session=session_info(self._destination.activate(_fence(request))))

    def Free(self, request: pb.FreeRequest, context: grpc.ServicerContext) -> pb.FreeResponse:
        freed_bytes = self._source.free(
            _fence(request),
            require_id(request.destination_host_id, "destination_host_id"),
            wire.address_from(request.destination_public_address, "destination_public_address"),
            request.destination_epoch,
            _waiting(context),
        )
        return pb.FreeResponse(freed_bytes=freed_bytes)


_Fenced = (
    pb.MigrateRequest
    | pb.VerifyRequest
    | pb.CommitRequest
    | pb.RollbackRequest
    | pb.StageRequest
    | pb.FreezeRequest
    | pb.ChecksumRequest
    | pb.FillRequest
    | pb.PullRequest
    | pb.AttestRequest
    | pb.ReleaseRequest
    | pb.ActivateRequest
    | pb.FreeRequest
)


def _fence(request: _Fenced) -> Fence:
    return wire.fence_from(request.fence)


def _waiting(context: grpc.ServicerContext) -> float:
    """Seconds a verb may wait: what its caller has, less the way back."""
    return max(0.0, remaining_s(context, VERB_TIMEOUT_S) - ANSWER_S)


def _after(page_token: str) -> str:
    if not page_token:
        return ""
    try:
        return require_id(base64.b64decode(page_token.encode(), b"-_", validate=True).decode(), "page_token")
    except (binascii.Error, UnicodeError, BadRequest):
        raise BadRequest(
            "page_token is not one that this host gave", violations={"page_token": "not from an answer"}
        ) from None


def _pulled(pulled: Pulled) -> pb.PullResponse:
    return pb.PullResponse(chunk_crcs=pulled.crcs, copy_s=pulled.copy_s, verify_s=pulled.verify_s)

"""The admission service on gRPC: checks what comes in and hands it to the parts that decide and act."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from admission import requests
from admission.coordinator import Coordinator
from admission.decision import Ask, Decider, Decision, known_session
from admission.facts import mover_from
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import Lease
from admission.keys import Keys
from admission.machine import Effect, Phase, State, Transition
from admission.placement import Placer, is_ready, request_digest, require_same
from admission.record import MoveRecord, move_to
from admission.rules import Mode
from admission.settings import AdmissionSettings
from admission.watch import Feed
from worldline import rpc, telemetry, wire
from worldline.errors import BadRequest, Exhausted, Internal, Unsupported
from worldline.move import Fault, HostRef, require_id, require_uuid
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc
from worldline.verdict import Kind

MAX_REASON_CHARS = 512


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service hands requests to."""

    journal: Journal
    fleet: Fleet
    decider: Decider
    placer: Placer
    coordinator: Coordinator
    feed: Feed
    settings: AdmissionSettings


class AdmissionService(pb_grpc.AdmissionServiceServicer):
    """The RPCs of `worldline.v1.AdmissionService`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # A verdict and the lease that follows from it are one thing: no two decisions may overlap.
        self._deciding = threading.Lock()
        self._placing = Keys()
        # A host that is stopped holds the calls that ask it: heartbeats must not wait behind them.
        self._most_placing = parts.settings.rpc_threads // 4
        self._may_place = threading.BoundedSemaphore(self._most_placing)

    # --- sessions

    def PlaceSession(self, request: pb.PlaceSessionRequest, context: grpc.ServicerContext) -> pb.PlaceSessionResponse:
        requests.check_placement(request)
        budget_s = rpc.remaining_s(context, self._parts.settings.create_timeout_s)
        if not self._may_place.acquire(blocking=False):
            raise Exhausted(
                f"{self._most_placing} sessions are being placed, no more can be at once; ask again with the same id",
                reason="TOO_MANY_PLACEMENTS",
                numbers={"limit": self._most_placing},
                retry_after_s=1.0,
            )
        try:
            ends_s = time.monotonic() + budget_s
            with self._placing.hold(request.request_id, budget_s):
                return self._parts.placer.place(request, max(ends_s - time.monotonic(), 0.0))
        finally:
            self._may_place.release()

    def LocateSession(
        self, request: pb.LocateSessionRequest, context: grpc.ServicerContext
    ) -> pb.LocateSessionResponse:
        fleet = self._parts.fleet
        row = known_session(self._parts.journal, require_id(request.session_id, "session_id"))
        host = fleet.host(row.host_id)
        return pb.LocateSessionResponse(
            session_id=row.session_id,
            host_id=row.host_id,
            public_address=host.facts.public_address,
            epoch=row.epoch,
            move_id=row.move_id,
            reachable=not host.fenced and host.silent_s(fleet.now_s()) <= self._parts.settings.silent_s,
        )

    # --- moves

    def RequestMove(self, request: pb.RequestMoveRequest, context: grpc.ServicerContext) -> pb.RequestMoveResponse:
        request_id = require_uuid(request.request_id, "request_id")
        ask = requests.ask_from(request)
        faults = requests.faults_from(request, allowed=self._parts.settings.fault_injection)
        if ask.mode is Mode.LIVE:
            raise Unsupported(
                "live moves are evaluated, not executed, in this release: use EvaluateMove, or ask for a frozen move",
                reason="LIVE_NOT_EXECUTED",
            )
        digested = request_digest(request)
        with self._deciding:
            known = self._parts.journal.move_of_request(request_id)
            if known is None:
                record = self._decide_and_open(request_id, digested, ask, faults)
            else:
                require_same(known.request_digest, digested, request_id)
                record = self._parts.coordinator.newest(known)
        return pb.RequestMoveResponse(move=move_to(record))

    def _decide_and_open(self, request_id: str, digested: bytes, ask: Ask, faults: tuple[Fault, ...]) -> MoveRecord:
        asked_s, move_id = time.monotonic(), str(uuid.uuid4())
        carrier = telemetry.inject()
        decision = self._decide(ask, move_id)
        record = self._record(move_id, request_id, digested, ask, decision, carrier.get("traceparent", ""))
        if decision.verdict.kind is not Kind.ADMIT:
            return self._parts.journal.add_move(record, None)
        if decision.route is None:
            raise Internal(f"move {move_id} was admitted without a mover")
        route = decision.route.with_faults(faults)
        ends_s = record.requested_at_s + decision.verdict.predicted_s
        lease = Lease(move_id, decision.destination.host_id, record.state_bytes, record.requested_at_s, ends_s)
        return self._parts.coordinator.open(record, lease, route, asked_s)

    def _decide(self, ask: Ask, move_id: str) -> Decision:
        with telemetry.span("admission.decide", {"session.id": ask.session_id, "move.id": move_id}) as span:
            decision = self._parts.decider.decide(ask)
            verdict = decision.verdict
            reasons = ",".join(clause.reason for clause in verdict.failed)
            telemetry.set_attributes(
                span,
                {
                    "admission.verdict": verdict.kind.name,
                    "admission.reason": reasons,
                    "admission.predicted_s": verdict.predicted_s,
                    "admission.slack_s": verdict.slack_s,
                    "transport.selected": decision.plan.transport,
                },
            )
            telemetry.log("decision").info(
                "decided",
                move_id=move_id,
                session_id=ask.session_id,
                destination=decision.destination.host_id,
                verdict=verdict.kind.name,
                reason=reasons,
                predicted_s=verdict.predicted_s,
                slack_s=verdict.slack_s,
            )
        return decision

    def _record(
        self, move_id: str, request_id: str, digested: bytes, ask: Ask, decision: Decision, traceparent: str
    ) -> MoveRecord:
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
            plan=decision.plan if admitted else None,
            trace_id=telemetry.trace_id(),
            traceparent=traceparent,
            transitions=(asked,),
            stage=state.phase.name.lower(),
        )

    def EvaluateMove(self, request: pb.EvaluateMoveRequest, context: grpc.ServicerContext) -> pb.EvaluateMoveResponse:
        ask = requests.ask_from(request)
        decision = self._decide(ask, "")
        return pb.EvaluateMoveResponse(
            verdict=wire.verdict_to(decision.verdict), destination_host_id=decision.destination.host_id
        )

    def GetMove(self, request: pb.GetMoveRequest, context: grpc.ServicerContext) -> pb.GetMoveResponse:
        return pb.GetMoveResponse(
            move=move_to(self._parts.coordinator.record(require_uuid(request.move_id, "move_id")))
        )

    def ListMoves(self, request: pb.ListMovesRequest, context: grpc.ServicerContext) -> pb.ListMovesResponse:
        size = requests.page_size(request.page_size)
        place = requests.token_from(request.page_token, "moves")
        if place and not (place.isdecimal() and int(place) < 1 << 62):
            raise BadRequest("page_token is not one of ours", violations={"page_token": "is not one of ours"})
        session_id = require_id(request.session_id, "session_id") if request.session_id else ""
        found = self._parts.journal.moves(int(place) if place else 1 << 62, session_id, size + 1)
        page = found[:size]
        return pb.ListMovesResponse(
            moves=[move_to(self._parts.coordinator.newest(record), brief=True) for record in page],
            next_page_token=requests.token_to("moves", str(page[-1].sequence)) if len(found) > size else "",
        )

    def WatchMove(self, request: pb.WatchMoveRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchMoveResponse]:
        move_id = require_uuid(request.move_id, "move_id")
        context.add_callback(self._parts.feed.changed)
        for record in self._parts.feed.follow(lambda: self._parts.coordinator.record(move_id), context.is_active):
            yield pb.WatchMoveResponse(move=move_to(record))

    def CancelMove(self, request: pb.CancelMoveRequest, context: grpc.ServicerContext) -> pb.CancelMoveResponse:
        record = self._parts.coordinator.cancel(require_uuid(request.move_id, "move_id"))
        return pb.CancelMoveResponse(move=move_to(record))

    # --- the fleet

    def ListEngineHosts(
        self, request: pb.ListEngineHostsRequest, context: grpc.ServicerContext
    ) -> pb.ListEngineHostsResponse:
        size = requests.page_size(request.page_size)
        after = requests.token_from(request.page_token, "hosts")
        fleet, settings = self._parts.fleet, self._parts.settings
        hosts = [host for host in fleet.hosts() if host.host_id > after]
        page = hosts[:size]
        return pb.ListEngineHostsResponse(
            hosts=[self._host(host) for host in page],
            next_page_token=requests.token_to("hosts", page[-1].host_id) if len(hosts) > size else "",
            term=self._parts.journal.term,
            fault_injection=settings.fault_injection,
        )

    def _host(self, host: Host) -> pb.EngineHostInfo:
        now_s = self._parts.fleet.now_s()
        mover = self._parts.fleet.mover(host.facts.mover_id)
        silent_s = self._parts.settings.silent_s
        return pb.EngineHostInfo(
            registration=host.registration,
            status=host.status,
            silent_s=host.silent_s(now_s),
            ready=is_ready(host, now_s, silent_s) and mover is not None and now_s - mover.heard_at_s <= silent_s,
            fenced=host.fenced,
        )

    def FenceHost(self, request: pb.FenceHostRequest, context: grpc.ServicerContext) -> pb.FenceHostResponse:
        host_id = require_id(request.host_id, "host_id")
        if not 0 < len(request.reason) <= MAX_REASON_CHARS:
            what = f"who says so and why, in 1 to {MAX_REASON_CHARS} characters"
            raise BadRequest(f"reason is needed: {what}", violations={"reason": what})
        lost = self._parts.fleet.fence_host(host_id, request.incarnation, request.reason)
        telemetry.log("fleet").warning(
            "fenced", host_id=host_id, incarnation=request.incarnation, reason=request.reason, lost=len(lost)
        )
        moves = self._parts.coordinator.died(host_id, request.incarnation)
        return pb.FenceHostResponse(move_ids=moves, lost_session_ids=lost)

    def RegisterEngineHost(
        self, request: pb.RegisterEngineHostRequest, context: grpc.ServicerContext
    ) -> pb.RegisterEngineHostResponse:
        facts, lost = self._parts.fleet.register_host(request)
        telemetry.log("fleet").info(
            "registered", host_id=facts.host_id, incarnation=facts.incarnation, lost_sessions=len(lost)
        )
        self._parts.coordinator.died(facts.host_id, facts.incarnation - 1)
        return pb.RegisterEngineHostResponse(
            term=self._parts.journal.term, heartbeat_s=self._parts.settings.heartbeat_s
        )

    def HeartbeatEngineHost(
        self, request: pb.HeartbeatEngineHostRequest, context: grpc.ServicerContext
    ) -> pb.HeartbeatEngineHostResponse:
        require_id(request.host_id, "host_id")
        unknown, fenced = self._parts.fleet.heartbeat_host(request)
        return pb.HeartbeatEngineHostResponse(term=self._parts.journal.term, unknown=unknown, fenced=fenced)

    def RegisterMover(
        self, request: pb.RegisterMoverRequest, context: grpc.ServicerContext
    ) -> pb.RegisterMoverResponse:
        facts = mover_from(request.registration)
        self._parts.fleet.register_mover(facts)
        telemetry.log("fleet").info("registered", mover_id=facts.mover_id, address=facts.address)
        return pb.RegisterMoverResponse(term=self._parts.journal.term, heartbeat_s=self._parts.settings.heartbeat_s)

    def HeartbeatMover(
        self, request: pb.HeartbeatMoverRequest, context: grpc.ServicerContext
    ) -> pb.HeartbeatMoverResponse:
        unknown = self._parts.fleet.heartbeat_mover(require_id(request.mover_id, "mover_id"))
        return pb.HeartbeatMoverResponse(term=self._parts.journal.term, unknown=unknown)


def _reference(host: Host) -> HostRef:
    return HostRef(host.host_id, host.facts.incarnation, host.facts.cluster_address)

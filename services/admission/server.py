"""The admission service on gRPC: checks what comes in and hands it to the parts that decide and act."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from admission import requests
from admission.coordinator import Coordinator
from admission.decision import known_session
from admission.facts import mover_from, require_amount
from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.keys import Keys
from admission.opening import Opener
from admission.placement import Placer, is_ready, request_digest
from admission.record import move_to
from admission.rules import Mode
from admission.schedule import schedule_to
from admission.schedules import Schedules
from admission.settings import AdmissionSettings
from admission.watch import Feed, of_move, of_schedule
from worldline import rpc, telemetry, wire
from worldline.errors import BadRequest, Exhausted, Unsupported
from worldline.move import require_id, require_uuid
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc

MAX_REASON_CHARS = 512


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service hands requests to."""

    journal: Journal
    fleet: Fleet
    opener: Opener
    placer: Placer
    coordinator: Coordinator
    schedules: Schedules
    feed: Feed
    settings: AdmissionSettings


class AdmissionService(pb_grpc.AdmissionServiceServicer):
    """The RPCs of `worldline.v1.AdmissionService`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
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
        record = self._parts.opener.request(request_id, request_digest(request), ask, faults)
        return pb.RequestMoveResponse(move=move_to(record))

    def EvaluateMove(self, request: pb.EvaluateMoveRequest, context: grpc.ServicerContext) -> pb.EvaluateMoveResponse:
        decision = self._parts.opener.decide(requests.ask_from(request))
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
        subject = of_move(lambda: self._parts.coordinator.record(move_id))
        for record in self._parts.feed.follow(subject, context.is_active):
            yield pb.WatchMoveResponse(move=move_to(record))

    def CancelMove(self, request: pb.CancelMoveRequest, context: grpc.ServicerContext) -> pb.CancelMoveResponse:
        record = self._parts.coordinator.cancel(require_uuid(request.move_id, "move_id"))
        return pb.CancelMoveResponse(move=move_to(record))

    # --- schedules

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:
        host_id, patience_s = require_id(request.host_id, "host_id"), requests.schedule_patience_s(request.patience_s)
        schedules = self._parts.schedules
        if request.dry_run:
            return pb.DrainResponse(schedule=schedule_to(schedules.try_out(host_id, ()), dry_run=True))
        request_id = require_uuid(request.request_id, "request_id")
        schedule = schedules.drain(request_id, request_digest(request), host_id, patience_s)
        return pb.DrainResponse(schedule=schedule_to(schedule))

    def Undrain(self, request: pb.UndrainRequest, context: grpc.ServicerContext) -> pb.UndrainResponse:
        return pb.UndrainResponse(schedule_id=self._parts.schedules.undrain(require_id(request.host_id, "host_id")))

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanResponse:
        wishes, patience_s = requests.wishes_from(request), requests.schedule_patience_s(request.patience_s)
        schedules = self._parts.schedules
        if request.dry_run:
            return pb.PlanResponse(schedule=schedule_to(schedules.try_out("", wishes), dry_run=True))
        request_id = require_uuid(request.request_id, "request_id")
        schedule = schedules.plan(request_id, request_digest(request), wishes, patience_s)
        return pb.PlanResponse(schedule=schedule_to(schedule))

    def GetSchedule(self, request: pb.GetScheduleRequest, context: grpc.ServicerContext) -> pb.GetScheduleResponse:
        schedule = self._parts.schedules.schedule(require_uuid(request.schedule_id, "schedule_id"))
        return pb.GetScheduleResponse(schedule=schedule_to(schedule))

    def WatchSchedule(
        self, request: pb.WatchScheduleRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchScheduleResponse]:
        schedule_id = require_uuid(request.schedule_id, "schedule_id")
        context.add_callback(self._parts.feed.changed)
        subject = of_schedule(lambda: self._parts.schedules.schedule(schedule_id))
        for schedule in self._parts.feed.follow(subject, context.is_active):
            yield pb.WatchScheduleResponse(schedule=schedule_to(schedule))

    def CancelSchedule(
        self, request: pb.CancelScheduleRequest, context: grpc.ServicerContext
    ) -> pb.CancelScheduleResponse:
        schedule = self._parts.schedules.cancel(require_uuid(request.schedule_id, "schedule_id"))
        return pb.CancelScheduleResponse(schedule=schedule_to(schedule))

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
        require_amount(request.verify_bytes_per_s, "verify_bytes_per_s")
        unknown = self._parts.fleet.heartbeat_mover(
            require_id(request.mover_id, "mover_id"), request.verify_bytes_per_s
        )
        return pb.HeartbeatMoverResponse(term=self._parts.journal.term, unknown=unknown)

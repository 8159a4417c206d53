"""The mover's service, and the process around it: data plane, gRPC, probe, registration; in order up and down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import grpc

from mover import probing
from mover.carriers import hosts_carry, require_carrier
from mover.flights import Flights
from mover.move import MoveOrder, SourceMove
from mover.plane import DataPlane
from mover.probe import probe
from mover.pulled import PulledDestination, PulledSource
from mover.receive import DestinationMove, order_from
from mover.registration import Registration
from mover.running import CALL_S, Running
from mover.settings import MoverSettings
from mover.staged import StagedDestination, StagedSource
from mover.stop import Stop
from mover.streaming import Outbox, relay
from mover.verification import PLACEMENTS
from worldline import rpc, telemetry, wire
from worldline.errors import BadRequest, Cancelled, NotAllowed, Unsupported, WorldlineError
from worldline.plan import CODECS, Placement, Plan
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceServicer, add_MoverServiceServicer_to_server

SERVICE = "worldline.v1.MoverService"
_MOVE_BEAT_S = 1.0
_DRAIN_S = 5.0
_PROBE_AGAIN_S = (0.1, 0.5, 2.0)


def _source(plan: Plan) -> type[SourceMove]:
    """What carries a move away from this node."""
    return StagedSource if plan.staged else PulledSource if hosts_carry(plan) else SourceMove


def _destination(plan: Plan) -> type[DestinationMove]:
    """What carries a move to this node."""
    return StagedDestination if plan.staged else PulledDestination if hosts_carry(plan) else DestinationMove


class MoverService(MoverServiceServicer):
    """`worldline.v1.MoverService`."""

    def __init__(self, settings: MoverSettings, plane: DataPlane, channels: rpc.Channels, flights: Flights) -> None:
        self._settings = settings
        self._plane = plane
        self._channels = channels
        self._flights = flights

    def Move(self, request: pb.MoveRequest, context: grpc.ServicerContext) -> Iterator[pb.MoveResponse]:
        """See the proto."""
        order = MoveOrder(
            wire.fence_from(request.fence),
            wire.plan_from(request.plan),
            wire.host_from(request.source, "source"),
            wire.host_from(request.destination, "destination"),
            wire.address_from(request.destination_mover_address, "destination_mover_address"),
            wire.faults_from(request.faults),
        )
        self._require_plan(order.plan)
        if order.faults and not self._settings.fault_injection:
            raise NotAllowed(
                "this mover does not inject faults; start it with fault_injection to allow it",
                reason="FAULT_INJECTION_OFF",
            )
        stop = Stop()
        outbox: Outbox[pb.MoveResponse] = Outbox()
        with self._flights.out(order.fence.move_id, stop):
            running = self._running(stop)
            try:
                move = _source(order.plan)(running, order, outbox.progress)
                yield from relay(
                    context,
                    stop,
                    outbox,
                    lambda: outbox.put(move.run()),
                    name="move",
                    beat_s=_MOVE_BEAT_S,
                    beat=move.message,
                )
            finally:
                running.close()

    def Receive(
        self, request_iterator: Iterator[pb.ReceiveRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ReceiveResponse]:
        """See the proto."""
        order = order_from(self._opened(request_iterator, context))
        self._require_plan(order.plan)
        stop = Stop()
        outbox: Outbox[pb.ReceiveResponse] = Outbox()
        with self._flights.incoming(order.fence.move_id, stop):
            running = self._running(stop)
            try:
                move = _destination(order.plan)(running, order, outbox.put, outbox.progress)
                yield from relay(
                    context,
                    stop,
                    outbox,
                    lambda: move.run(request_iterator),
                    name="receive",
                    beat_s=move.beat_s,
                    beat=move.message,
                )
            finally:
                running.close()

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> pb.ProbeResponse:
        """See the proto."""
        self._require_plan(wire.plan_from(request.plan))
        with self._probed(request.probe_id, context, self._flights.out) as running:
            return probing.send(running, request)

    def ReceiveProbe(
        self, request: pb.ReceiveProbeRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReceiveProbeResponse]:
        """See the proto."""
        probe = probing.probe_from(request, request.token)
        self._require_plan(probe.plan)
        with self._probed(request.probe_id, context, self._flights.incoming) as running:
            yield from probing.receive(running, probe)

    @contextmanager
    def _probed(
        self, probe_id: str, context: grpc.ServicerContext, claim: Callable[[str, Stop], AbstractContextManager[None]]
    ) -> Iterator[Running]:
        """A probe in flight, like a move; it ends when its caller leaves."""
        stop = Stop()

        def left() -> None:
            stop.tell(Cancelled("the caller cancelled the probe or its deadline passed"))

        with claim(probe_id, stop):
            running = self._running(stop)
            try:
                if not context.add_callback(left):
                    left()
                yield running
            finally:
                running.close()

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        """See the proto."""
        return pb.GetStatusResponse(
            mover_id=self._settings.mover_id,
            transports=self._settings.transport_names,
            moves=self._flights.ids(),
            data_plane_pid=self._plane.pid,
            data_plane_starts=self._plane.starts,
            moved_bytes=self._plane.moved_bytes,
            mapped_regions=self._plane.mapped_regions,
            fault_injection=self._settings.fault_injection,
            retransmit_floor_s=self._plane.retransmit_floor_s,
        )

    def _running(self, stop: Stop) -> Running:
        return Running(self._plane, self._channels, self._settings.regions_dir, stop)

    def _require_plan(self, plan: Plan) -> None:
        require_carrier(plan)
        if plan.transport not in self._settings.transport_names:
            raise Unsupported(
                f"transport {plan.transport!r} is not on this mover; it has {self._settings.transports}",
                reason="TRANSPORT_UNSUPPORTED",
            )

    @staticmethod
    def _opened(requests: Iterator[pb.ReceiveRequest], context: grpc.ServicerContext) -> pb.ReceiveOpen:
        """The first message. A caller that says nothing is let go, so that it does not hold a thread."""
        timer = threading.Timer(CALL_S, context.cancel)
        timer.start()
        try:
            first = next(requests, None)
        finally:
            timer.cancel()
        if first is None or first.WhichOneof("message") != "open":
            raise BadRequest(
                "the control stream must begin with open", reason="OUT_OF_ORDER", violations={"message": "open is due"}
            )
        return first.open


class Mover:
    """One mover process's parts."""

    def __init__(self, settings: MoverSettings) -> None:
        self._settings = settings
        self._channels = rpc.Channels(settings)
        self._flights = Flights(settings.max_receives)
        self._plane = DataPlane(settings.plane, self._plane_changed)
        self._server = rpc.Server(settings, [SERVICE])
        self._service = MoverService(settings, self._plane, self._channels, self._flights)
        add_MoverServiceServicer_to_server(self._service, self._server.grpc)
        self._registration: Registration | None = None
        self._probing = threading.Event()
        self._ended = threading.Event()
        self._prober = threading.Thread(target=self._probe, name="probe", daemon=True)

    def start(self) -> str:
        """Everything up; returns the control address. Raises what the data plane refuses."""
        self._plane.start()
        address = self._server.start()
        self._server.set_serving(rpc.DATAPATH, False)
        self._prober.start()
        return self._settings.address or address

    def wait(self) -> None:
        """Until SIGTERM or SIGINT."""
        self._server.wait()

    def stop(self) -> None:
        """End every move, then everything else."""
        self._ended.set()
        self._probing.set()
        self._server.set_serving(rpc.DATAPATH, False)
        if self._registration is not None:
            self._registration.close()
        self._flights.drain(_DRAIN_S)
        self._server.stop()
        self._plane.close()
        if self._prober.is_alive():
            self._prober.join()
        self._channels.close()

    def _plane_changed(self, up: bool) -> None:
        if up:
            self._probing.set()
        else:
            self._server.set_serving(rpc.DATAPATH, False)

    def _probe(self) -> None:
        """Probe each new data plane; the first one that passes registers this mover."""
        failures = 0
        while not self._ended.is_set():
            self._probing.wait(None if failures == 0 else _PROBE_AGAIN_S[min(failures, len(_PROBE_AGAIN_S)) - 1])
            self._probing.clear()
            if self._ended.is_set():
                return
            try:
                for name in self._settings.transport_names:
                    probe(self._plane, name)
            except WorldlineError as error:
                failures += 1
                telemetry.log("mover").error("probe_failed", reason=error.reason, message=error.message)
                continue
            failures = 0
            self._server.set_serving(rpc.DATAPATH, True)
            telemetry.log("mover").info("datapath_serving")
            self._register()

    def _register(self) -> None:
        if not self._settings.admission or self._registration is not None:
            return
        registration = admission_pb.MoverRegistration(
            mover_id=self._settings.mover_id,
            address=self._settings.address or self._server.address,
            transports=self._settings.transport_names,
            max_receives=self._settings.max_receives,
            retransmit_floor_s=self._plane.retransmit_floor_s,
            verify_bytes_per_s=self._plane.verify_Bps,
            verify_threads=self._settings.lane_threads,
            placements=[int(placement) for placement in (*PLACEMENTS, Placement.DEVICE)],  # type: ignore[misc]
            codecs=CODECS,
            codec_threads=self._settings.codec_threads,
            streams=self._settings.streams,
        )
        self._registration = Registration(self._channels, self._settings.admission, registration, self._beat)
        self._registration.start()

    def _beat(self) -> admission_pb.HeartbeatMoverRequest:
        return admission_pb.HeartbeatMoverRequest(
            mover_id=self._settings.mover_id,
            moves=len(self._flights.ids()),
            verify_bytes_per_s=self._plane.verify_Bps,
        )

"""`Move` at the source's mover: reserve, freeze, wire, verify. It installs nothing and resumes nothing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span

from mover.carriers import wire_plan
from mover.hosts import Frozen, Host, Registered
from mover.messages import Outcome, Progress, WireFault
from mover.peer import Peer, Verified
from mover.plane import PlaneJob
from mover.regions import fetched
from mover.reporting import coding_fields, wire_attributes
from mover.running import CALL_S, DATA_PLANE, Running, require_manifest, reserve_s
from mover.stop import deadline_passed
from worldline import telemetry, wire
from worldline.codec.runs import runs_of
from worldline.errors import BadRequest, Mismatch, Unsupported, WorldlineError
from worldline.move import TOKEN_BYTES, Fault, FaultKind, Fence, HostRef, StageTimes
from worldline.plan import RAW, Placement, Plan
from worldline.receipt import Receipt, Side
from worldline.transport import Terms
from worldline.v1 import mover_service_pb2 as pb

# When a stream breaks, the destination's own error says why, and is about to come.
_VERDICT_S = 1.0
_OWN_DEATH_S = 0.1
_MAX_ENDPOINT_CHARS = 1024


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """What `Move` was asked for."""

    fence: Fence
    plan: Plan
    source: HostRef
    destination: HostRef
    destination_mover_address: str
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class _Said:
    """What progress messages say."""

    stage: str = "reserve"
    landed_bytes: int = 0
    total_bytes: int = 0
    retried_chunks: int = 0
    faults: int = 0
    times: StageTimes = dataclasses.field(default_factory=StageTimes)


class SourceMove:
    """One move that leaves this node."""

    def __init__(self, running: Running, order: MoveOrder, say: Callable[[pb.MoveResponse], None]) -> None:
        self._running = running
        self._order = order
        self._say = say
        self._said = _Said()
        self._stop = running.stop
        self._watch = running.watch
        self._host = Host(running.channels.to(order.source.address), order.source, running.stop)
        self._log = telemetry.log("mover").bind(move_id=order.fence.move_id, session_id=order.fence.session_id)

    def message(self) -> pb.MoveResponse:
        """How far the move is."""
        said = self._said
        return pb.MoveResponse(
            stage=said.stage,
            landed_bytes=said.landed_bytes,
            total_bytes=said.total_bytes,
            retried_chunks=said.retried_chunks,
            stages=wire.stages_to(said.times),
            injected_faults=said.faults,
        )

    def run(self) -> pb.MoveResponse:
        """All stages. Returns the last message, with both receipts."""
        fence, plan = self._order.fence, self._order.plan
        attributes: dict[str, telemetry.Attribute] = {
            "session.id": fence.session_id,
            "move.id": fence.move_id,
            "move.epoch": fence.epoch,
            "transport.selected": plan.transport,
            "codec.name": plan.codec,
            "verification.placement": plan.placement.name,
            "motion.made_bytes": plan.made_bytes,
            "move.staged": plan.staged,
        }
        with telemetry.span("mover.move", attributes):
            try:
                return self._run()
            except WorldlineError as error:
                self._log.warning("move_failed", stage=self._said.stage, reason=error.reason, message=error.message)
                raise

    def _run(self) -> pb.MoveResponse:
        with self._running.job() as job, self._peer() as peer:
            start = time.monotonic()
            with self._stage("reserve"):
                registered = self._reserve(job, peer)
            self._time(reserve_s=time.monotonic() - start)

            start = time.monotonic()
            with self._stage("freeze"):
                frozen = self._freeze(registered, start)
            froze = time.monotonic()
            self._time(freeze_s=froze - start, boundary_s=min(frozen.boundary_s, froze - start))

            with self._stage("wire") as span:
                outcome = self._carry(job, peer)
                telemetry.set_attributes(span, wire_attributes(self._order.plan, self._said.total_bytes, outcome))
            self._time(wire_s=time.monotonic() - froze)

            with self._stage("verify"):
                receipt, verified = self._verify(job, peer, frozen, outcome)
            total_s = time.monotonic() - froze
            self._time(wire_s=min(verified.wire_s, total_s), verify_s=max(0.0, total_s - verified.wire_s))
        self._said.stage = "verified"
        self._said.landed_bytes = self._said.total_bytes
        coding = outcome.coding
        self._log.info(
            "move_verified",
            bytes=self._said.total_bytes,
            **dataclasses.asdict(self._said.times),
            **coding_fields(outcome, "codec_"),
        )
        last = self.message()
        last.wire_bytes = coding.wire_bytes if coding else self._said.total_bytes - self._order.plan.made_bytes
        if coding is not None:
            last.late_bytes, last.encode_threads = coding.late_bytes, coding.threads
            last.encode_bytes_per_s = coding.rate_Bps
        last.decode_bytes_per_s, last.decode_threads = verified.decode_Bps, verified.decode_threads
        last.manifest.CopyFrom(wire.manifest_to(frozen.manifest))
        last.source_receipt.CopyFrom(wire.receipt_to(receipt))
        last.destination_receipt.CopyFrom(wire.receipt_to(verified.receipt))
        return last

    # --- stages

    def _registered(self, registered: Registered) -> Registered:
        """What the source host has registered, checked."""
        if registered.descriptor.session_id != self._order.fence.session_id:
            raise Mismatch(f"the host registered session {registered.descriptor.session_id}", reason="WRONG_SESSION")
        self._said.total_bytes = registered.layout.region_bytes
        return registered

    def _opening(self, registered: Registered) -> pb.ReceiveOpen:
        """What the destination's mover is asked to reserve."""
        order = self._order
        return pb.ReceiveOpen(
            fence=wire.fence_to(dataclasses.replace(order.fence, incarnation=order.destination.incarnation)),
            plan=wire.plan_to(order.plan),
            layout=wire.layout_to(registered.layout),
            descriptor=wire.descriptor_to(registered.descriptor),
            fingerprint_digest=registered.fingerprint.digest,
            fingerprint_fields=dict(registered.fingerprint.fields),
            destination=wire.host_to(order.destination),
        )

    def _register(self) -> Registered:
        return self._host.register_state(self._order.fence, CALL_S)

    def _reserve(self, job: PlaneJob, peer: Peer) -> Registered:
        order = self._order
        registered = self._registered(self._register())
        if registered.device_id:
            raise Unsupported(
                f"the state lies on device {registered.device_id}, which no mover can map: use placement DEVICE",
                reason="STATE_ON_DEVICE",
            )
        layout = registered.layout
        peer.open(self._opening(registered))
        with fetched(
            self._running.regions_dir, order.source.host_id, registered.ticket, self._stop, CALL_S
        ) as descriptor:
            with self._watch.during(DATA_PLANE, reserve_s(layout.region_bytes)):
                job.map(self._stop, descriptor, layout.region_bytes, writable=False)
        ready = peer.ready()
        if len(ready.token) != TOKEN_BYTES or not 0 < len(ready.endpoint) <= _MAX_ENDPOINT_CHARS:
            raise BadRequest(
                f"the destination's mover is ready with a token of {len(ready.token)} bytes and an endpoint of "
                f"{len(ready.endpoint)} characters; {TOKEN_BYTES} and 1 to {_MAX_ENDPOINT_CHARS} are right",
                reason="BAD_READY",
            )
        terms = Terms(
            order.fence.move_id,
            ready.token,
            order.plan.streams,
            order.plan.no_progress_s,
            telemetry.inject().get("traceparent", ""),
        )
        with self._watch.during(DATA_PLANE, order.plan.no_progress_s + CALL_S):
            plan = wire_plan(order.plan)
            runs = runs_of(layout) if plan.codec != RAW else ()
            job.connect(self._stop, plan, terms, ready.endpoint, self._wire_faults(), self._fired, runs)
        return registered

    def _freeze(self, registered: Registered, asked: float) -> Frozen:
        plan, fence = self._order.plan, self._order.fence
        frozen = self._host.freeze(fence, plan.max_freeze_s, plan.max_freeze_s)
        # The host's own timer runs since the boundary; ours must not end later than its.
        since = min(time.monotonic(), asked + frozen.boundary_s)
        what = "deadline_s" if plan.deadline_s <= plan.max_freeze_s else "max_freeze_s"
        limit_s = min(plan.deadline_s, plan.max_freeze_s)
        self._running.end_by(since + limit_s, lambda: deadline_passed(what, limit_s, self._said.stage))
        require_manifest(frozen.manifest, fence, registered.layout, registered.descriptor, registered.fingerprint)
        return frozen

    def _carry(self, job: PlaneJob, peer: Peer) -> Outcome:
        peer.start(self._running.remaining_s)
        return self._sent(job)

    def _sent(self, job: PlaneJob, *, flowing: bool = False) -> Outcome:
        """Have the region carried; `flowing`: as it is filled."""
        try:
            with self._watch.during(DATA_PLANE, self._order.plan.no_progress_s):
                return job.run(self._stop, self._running.remaining_s, self._heard, flowing=flowing)
        except WorldlineError as error:
            if error.reason == "PEER_GONE":
                if self._stop.told:
                    # The other end says so, and may know of our data plane's death before we do.
                    job.require_plane(_OWN_DEATH_S)
                self._stop.sleep(_VERDICT_S)
            raise

    def _verify(self, job: PlaneJob, peer: Peer, frozen: Frozen, outcome: Outcome) -> tuple[Receipt, Verified]:
        plan = self._order.plan
        # A destination that takes its checksums on its device has them compared there.
        peer.finish(frozen.manifest, outcome.crcs if plan.placement is Placement.DEVICE else ())
        job.close()
        budget_s = min(plan.no_progress_s, self._running.remaining_s)
        receipt = self._host.attest(
            self._order.fence, Side.SOURCE, frozen.manifest, plan, outcome.crcs, max(0.001, budget_s)
        )
        return receipt, peer.verified()

    # --- what happens meanwhile

    @contextmanager
    def _peer(self) -> Iterator[Peer]:
        order = self._order
        bounds_s = 2 * order.plan.max_freeze_s + order.plan.deadline_s + self._running.reserve_limit_s
        peer = Peer(
            self._running.channels.to(order.destination_mover_address),
            self._stop,
            self._watch,
            no_progress_s=order.plan.no_progress_s,
            timeout_s=bounds_s,
            progress=self._landed,
        )
        try:
            yield peer
        finally:
            peer.close()

    @contextmanager
    def _stage(self, name: str) -> Iterator[Span]:
        with telemetry.span(name) as span:
            for fault in self._order.faults:
                if fault.kind is FaultKind.HOLD and fault.step == name:
                    self._log.warning("fault_injected", kind=fault.kind.name, step=name, seconds=fault.seconds)
                    self._said.faults += 1
                    self._enter(f"hold:{name}")
                    self._stop.sleep(fault.seconds)
            self._enter(name)
            self._stop.check()
            yield span

    def _enter(self, stage: str) -> None:
        self._said.stage = stage
        self._say(self.message())

    def _time(self, **seconds: float) -> None:
        self._said.times = dataclasses.replace(self._said.times, **seconds)

    def _heard(self, progress: Progress) -> None:
        self._watch.heard(DATA_PLANE)

    def _landed(self, progress: pb.ReceiveProgress) -> None:
        said = self._said
        if (progress.landed_bytes, progress.retried_chunks) != (said.landed_bytes, said.retried_chunks):
            said.landed_bytes, said.retried_chunks = progress.landed_bytes, progress.retried_chunks
            self._say(self.message())

    def _fired(self, kind: str, chunk: int) -> None:
        self._log.warning("fault_injected", kind=kind, chunk=chunk)
        self._said.faults += 1
        self._say(self.message())

    def _wire_faults(self) -> Sequence[WireFault]:
        return [
            WireFault(fault.kind.name, fault.chunk, fault.times, fault.seconds)
            for fault in self._order.faults
            if fault.kind is not FaultKind.HOLD
        ]

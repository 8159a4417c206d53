"""`Receive` at the destination's mover: a shadow slot, the streams into it, their verification, the receipt."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import grpc
from opentelemetry import trace

from mover.carriers import require_carrier, wire_plan
from mover.hosts import Host
from mover.messages import Outcome, Progress
from mover.peer import beat_every
from mover.plane import PlaneJob
from mover.regions import fetched
from mover.reporting import coding_fields, wire_attributes
from mover.running import CALL_S, DATA_PLANE, Running, require_manifest, reserve_s
from mover.stop import deadline_passed
from worldline import telemetry, wire
from worldline.errors import BadRequest, Unavailable, WorldlineError
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint
from worldline.move import Fence, HostRef, RegionRef, new_token
from worldline.plan import Plan
from worldline.receipt import Receipt, Side
from worldline.transport import Terms
from worldline.v1 import mover_service_pb2 as pb

WHO = "source's mover"
_MessageName = Literal["start", "parts", "finish"]
# Words on what comes are as many as a buffer of 32 GiB has segments, at most.
_MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class ReceiveOrder:
    """What `Receive` was opened with."""

    fence: Fence
    plan: Plan
    layout: Layout
    descriptor: Descriptor
    fingerprint: Fingerprint
    destination: HostRef
    source_region: RegionRef | None = None
    flip_chunks: tuple[int, ...] = ()


def order_from(message: pb.ReceiveOpen) -> ReceiveOrder:
    """An order from the wire, checked whole. Raises BadRequest, or Unsupported for a placement."""
    order = ReceiveOrder(
        wire.fence_from(message.fence),
        wire.plan_from(message.plan),
        wire.layout_from(message.layout),
        wire.descriptor_from(message.descriptor),
        Fingerprint(dict(message.fingerprint_fields)),
        wire.host_from(message.destination, "destination"),
        wire.region_from(message.source_region, "open.source_region") if message.HasField("source_region") else None,
        tuple(message.flip_chunks),
    )
    if order.fingerprint.digest != message.fingerprint_digest:
        raise BadRequest(
            "fingerprint_digest is not that of the fields",
            reason="WRONG_DIGEST",
            violations={"open.fingerprint_digest": "does not match the content"},
        )
    if order.descriptor.session_id != order.fence.session_id:
        raise BadRequest(
            f"the descriptor is of session {order.descriptor.session_id}, the fence of {order.fence.session_id}",
            violations={"open.descriptor.session_id": "not the fence's"},
        )
    require_carrier(order.plan)
    order.plan.chunks(order.layout.region_bytes)
    return order


class Inbox:
    """The requests of one control stream, read on a thread of its own so that silence and its end are noticed."""

    def __init__(self, running: Running, requests: Iterator[pb.ReceiveRequest]) -> None:
        self._running = running
        self._requests = requests
        self._changed = threading.Condition()
        self._waiting: deque[pb.ReceiveRequest] = deque()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self, wanted: _MessageName) -> pb.ReceiveRequest:
        """The next request, which must be `wanted`. Raises BadRequest if it is another."""
        with self._running.stop.waking(self._wake), self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running.stop.told)
            self._running.stop.check()
            request = self._waiting.popleft()
        kind = request.WhichOneof("message")
        if kind != wanted:
            raise BadRequest(
                f"the control stream brought {kind or 'an empty message'} where {wanted} was due",
                reason="OUT_OF_ORDER",
                violations={"message": f"{wanted} is due"},
            )
        return request

    def _read(self) -> None:
        try:
            for request in self._requests:
                self._running.watch.heard(WHO)
                if request.WhichOneof("message") == "beat":
                    continue
                with self._changed:
                    self._waiting.append(request)
                    full = len(self._waiting) > _MAX_WAITING
                    self._changed.notify_all()
                if full:
                    self._running.stop.tell(BadRequest("too many messages at once", reason="OUT_OF_ORDER"))
                    return
        except (grpc.RpcError, ValueError):
            pass  # the call is over
        self._running.stop.tell(
            Unavailable(f"the {WHO} ended the control stream; the move was given up", reason="PEER_GONE")
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class DestinationMove:
    """One move that arrives at this node."""

    def __init__(
        self,
        running: Running,
        order: ReceiveOrder,
        say: Callable[[pb.ReceiveResponse], None],
        say_progress: Callable[[pb.ReceiveResponse], None],
    ) -> None:
        self._running = running
        self._order = order
        self._say = say
        self._say_progress = say_progress
        self._stop = running.stop
        self._host = Host(running.channels.to(order.destination.address), order.destination, running.stop)
        self._progress = Progress()
        self._log = telemetry.log("mover").bind(move_id=order.fence.move_id, session_id=order.fence.session_id)

    def message(self) -> pb.ReceiveResponse:
        """How far the move is; also the sign of life."""
        return pb.ReceiveResponse(
            progress=pb.ReceiveProgress(
                landed_bytes=self._progress.moved_bytes, retried_chunks=self._progress.retried_chunks
            )
        )

    @property
    def beat_s(self) -> float:
        """Seconds between signs of life."""
        return beat_every(self._order.plan.no_progress_s)

    def run(self, requests: Iterator[pb.ReceiveRequest]) -> None:
        """Everything from the reservation to the receipt."""
        fence = self._order.fence
        with telemetry.span("mover.receive", {"session.id": fence.session_id, "move.id": fence.move_id}):
            try:
                self._run(requests)
            except WorldlineError as error:
                self._log.warning("receive_failed", reason=error.reason, message=error.message)
                raise

    def _run(self, requests: Iterator[pb.ReceiveRequest]) -> None:
        order, running = self._order, self._running
        running.watch.expect(WHO, order.plan.no_progress_s)
        inbox = Inbox(running, requests)
        with running.job() as job:
            size_bytes = order.layout.region_bytes
            limit_s = reserve_s(size_bytes)
            ticket, prefault_s = self._host.stage(
                order.fence, order.layout, order.descriptor, order.fingerprint, limit_s, order.plan
            )
            with fetched(running.regions_dir, order.destination.host_id, ticket, self._stop, CALL_S) as descriptor:
                with running.watch.during(DATA_PLANE, limit_s):
                    job.map(self._stop, descriptor, size_bytes, writable=True)
            terms = Terms(order.fence.move_id, new_token(), order.plan.streams, order.plan.no_progress_s)
            with running.watch.during(DATA_PLANE, CALL_S):
                endpoint = job.listen(self._stop, wire_plan(order.plan), terms)
            self._say(
                pb.ReceiveResponse(ready=pb.ReceiveReady(endpoint=endpoint, token=terms.token, prefault_s=prefault_s))
            )

            receipt, outcome = self._taken(job, inbox, self._started(inbox))
        self._received(receipt, outcome)

    def _taken(self, job: PlaneJob, inbox: Inbox, remaining_s: float) -> tuple[Receipt, Outcome]:
        """All that lands, and the host's receipt for it."""
        outcome = self._landed_all(job, remaining_s)
        return self._attested(inbox.next("finish").finish, outcome.crcs), outcome

    def _landed_all(
        self,
        job: PlaneJob,
        remaining_s: float,
        *,
        flowing: bool = False,
        landed: Callable[[int], None] | None = None,
    ) -> Outcome:
        """How everything landed, where nothing of ours can write any more."""
        order = self._order
        with self._running.watch.during(DATA_PLANE, order.plan.no_progress_s):
            outcome = job.run(self._stop, remaining_s, self._heard, flowing=flowing, landed=landed)
        attributes = wire_attributes(order.plan, order.layout.region_bytes, outcome)
        telemetry.set_attributes(trace.get_current_span(), attributes)
        job.close()
        return outcome

    def _started(self, inbox: Inbox) -> float:
        """Wait until the source is frozen. Returns the seconds left, by which the move ends from now on."""
        deadline_s = self._order.plan.deadline_s
        remaining_s = inbox.next("start").start.remaining_s
        if not 0 < remaining_s <= deadline_s:
            raise BadRequest(f"{remaining_s} s are left of {deadline_s} s", reason="BAD_DEADLINE")
        self._running.end_by(
            time.monotonic() + remaining_s, lambda: deadline_passed("deadline_s", deadline_s, "wire or verify")
        )
        return remaining_s

    def _attested(self, finish: pb.ReceiveFinish, crcs: Sequence[int]) -> Receipt:
        """The host's receipt over the slot's checksums."""
        order = self._order
        manifest = wire.manifest_from(finish.manifest)
        require_manifest(manifest, order.fence, order.layout, order.descriptor, order.fingerprint)
        budget_s = max(0.001, self._attest_s())
        return self._host.attest(order.fence, Side.DESTINATION, manifest, order.plan, crcs, budget_s)

    def _attest_s(self) -> float:
        """Seconds that the receipt may take."""
        return min(self._order.plan.no_progress_s, self._running.remaining_s)

    def _received(self, receipt: Receipt, outcome: Outcome) -> None:
        """Tell the source's mover of the receipt."""
        self._log.info(
            "received",
            bytes=self._order.layout.region_bytes,
            retried_chunks=outcome.retried_chunks,
            wire_s=outcome.wire_s,
            verify_s=outcome.verify_s,
            traceparents=sorted({*outcome.traceparents}),
            **coding_fields(outcome, "codec_"),
        )
        coding = outcome.coding
        self._say(
            pb.ReceiveResponse(
                verified=pb.ReceiveVerified(
                    receipt=wire.receipt_to(receipt),
                    verify_s=outcome.verify_s,
                    wire_s=outcome.wire_s,
                    decode_bytes_per_s=coding.rate_Bps if coding is not None else 0.0,
                    decode_threads=coding.threads if coding is not None else 0,
                )
            )
        )

    def _heard(self, progress: Progress) -> None:
        self._running.watch.heard(DATA_PLANE)
        if progress != self._progress:
            self._progress = progress
            self._say_progress(self.message())

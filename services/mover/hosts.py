"""What a mover asks of engine hosts. Every call has a time-out and ends at once when the move must end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import grpc

from mover.stop import Stop
from worldline import rpc, wire
from worldline.codec.parts import Part
from worldline.errors import DataLoss, WorldlineError
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fence, HostRef, RegionRef
from worldline.plan import Plan
from worldline.receipt import Receipt, Side
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Registered:
    """A session's state as its host registers it, and the ticket for its region."""

    layout: Layout
    descriptor: Descriptor
    fingerprint: Fingerprint
    ticket: bytes
    device_id: str


@dataclass(frozen=True, slots=True)
class Pulled:
    """Checksums of pulled chunks in the slot, seconds of their copies, and from the last byte to the last checksum."""

    crcs: tuple[int, ...]
    copy_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class Filled:
    """How far a source's buffer is filled: bytes that are there, coded parts that came with this word, and in the last
    one the source's checksum of each chunk.
    """

    filled_bytes: int
    parts: tuple[Part, ...]
    crcs: tuple[int, ...]
    last: bool


class Landing:
    """What a destination is told while its buffer fills; `pulled` waits for the end of its copies."""

    pulled: Callable[[], Pulled]

    def __init__(self, wanted: pb.PullRequest) -> None:
        self._landed_bytes = 0
        self._lock = threading.Lock()
        self._said: queue.SimpleQueue[pb.PullLandingRequest | None] = queue.SimpleQueue()
        self._said.put(pb.PullLandingRequest(pull=wanted))

    def landed(self, landed_bytes: int) -> None:
        """So much has landed and was checked, from the buffer's start on. Any thread."""
        with self._lock:
            self._landed_bytes = landed_bytes
            self._said.put(pb.PullLandingRequest(landed_bytes=landed_bytes))

    def parts(self, parts: Sequence[Part]) -> None:
        """What lands, or landed, is this. Any thread."""
        with self._lock:
            self._said.put(pb.PullLandingRequest(landed_bytes=self._landed_bytes, parts=wire.parts_to(parts)))

    def end(self) -> None:
        """Nothing more will be said."""
        self._said.put(None)

    def requests(self) -> Iterator[pb.PullLandingRequest]:
        """All that is said, in order."""
        while (message := self._said.get()) is not None:
            yield message


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen state, and the seconds that the block boundary was waited for."""

    manifest: Manifest
    boundary_s: float


class Host:
    """One engine host, for one move."""

    def __init__(self, channel: grpc.Channel, host: HostRef, stop: Stop) -> None:
        self._stub = EngineHostServiceStub(channel)
        self._name = f"engine host {host.host_id}"
        self._stop = stop

    def register_state(self, fence: Fence, timeout_s: float, plan: Plan | None = None) -> Registered:
        """Layout, descriptor, fingerprint and region ticket of the session; `plan` is of a move that hosts carry."""
        request = pb.RegisterStateRequest(
            session_id=fence.session_id, fence=wire.fence_to(fence), plan=None if plan is None else wire.plan_to(plan)
        )
        answer = self._call(self._stub.RegisterState, request, timeout_s)
        return Registered(
            wire.layout_from(answer.layout),
            wire.descriptor_from(answer.descriptor),
            wire.fingerprint_from(answer.fingerprint),
            answer.region_ticket,
            answer.device_id,
        )

    def stage(
        self,
        fence: Fence,
        layout: Layout,
        descriptor: Descriptor,
        fingerprint: Fingerprint,
        timeout_s: float,
        plan: Plan,
        source_region: RegionRef | None = None,
    ) -> tuple[bytes, float]:
        """Reserve a shadow slot. Returns the ticket for its region and the seconds its prefault took.

        `source_region`: the source's, which the host maps to pull from.
        """
        request = pb.StageRequest(
            fence=wire.fence_to(fence),
            layout=wire.layout_to(layout),
            descriptor=wire.descriptor_to(descriptor),
            fingerprint=wire.fingerprint_to(fingerprint),
            source_region=None if source_region is None else wire.region_to(source_region),
            plan=wire.plan_to(plan),
        )
        answer = self._call(self._stub.Stage, request, timeout_s)
        return answer.region_ticket, answer.prefault_s

    def freeze(self, fence: Fence, max_freeze_s: float, timeout_s: float) -> Frozen:
        """Stop the session at its next block boundary."""
        request = pb.FreezeRequest(fence=wire.fence_to(fence), max_freeze_s=max_freeze_s)
        answer = self._call(self._stub.Freeze, request, timeout_s)
        return Frozen(wire.manifest_from(answer.manifest), answer.boundary_s)

    def checksum(self, fence: Fence, plan: Plan, timeout_s: float) -> tuple[int, ...]:
        """The source's checksum of each chunk, taken on its device."""
        request = pb.ChecksumRequest(fence=wire.fence_to(fence), plan=wire.plan_to(plan))
        return tuple(self._call(self._stub.Checksum, request, timeout_s).chunk_crcs)

    def fill(self, fence: Fence, plan: Plan, timeout_s: float) -> Iterator[Filled]:
        """Have the source copy its state to the move's buffer: how far it is, last with its checksum of each chunk.

        Raises:
            DataLoss: it ended before it had said all.
        """
        call = self._stub.Fill(pb.FillRequest(fence=wire.fence_to(fence), plan=wire.plan_to(plan)), timeout=timeout_s)
        last = False
        with self._stop.waking(call.cancel), rpc.calling(self._name):
            for message in call:
                last = message.last
                parts, crcs = wire.parts_from(message.parts), tuple(message.chunk_crcs)
                yield Filled(message.filled_bytes, parts, crcs, last)
        if not last:
            raise DataLoss(f"{self._name} ended before it had filled the move's buffer", reason="BUFFER_NOT_FILLED")

    @contextmanager
    def pulling_landing(
        self, fence: Fence, plan: Plan, flip_chunks: Sequence[int], timeout_s: float
    ) -> Iterator[Landing]:
        """Have the destination copy all chunks from its buffer into its slot while they land there."""
        landing = Landing(pb.PullRequest(fence=wire.fence_to(fence), plan=wire.plan_to(plan), flip_chunks=flip_chunks))
        call = self._stub.PullLanding.future(landing.requests(), timeout=timeout_s)

        def pulled() -> Pulled:
            with rpc.calling(self._name):
                return _pulled(call.result().pulled)

        landing.pulled = pulled
        # What goes wrong there before all has landed ends the move now, not when somebody asks.
        call.add_done_callback(self._ended)
        try:
            with self._stop.waking(call.cancel):
                yield landing
        finally:
            landing.end()
            call.cancel()  # type: ignore[no-untyped-call]

    @contextmanager
    def pulling(
        self,
        fence: Fence,
        plan: Plan,
        chunks: Sequence[int],
        flip_chunks: Sequence[int],
        timeout_s: float,
        parts: Sequence[Part] = (),
    ) -> Iterator[Callable[[], Pulled]]:
        """Have the destination copy chunks (all if there are none) from the source's region into its slot.

        `parts`: what its buffer holds, if it was coded on the source's device.

        What is given inside the block waits for the end of that.
        """
        request = pb.PullRequest(
            fence=wire.fence_to(fence),
            plan=wire.plan_to(plan),
            chunks=chunks,
            flip_chunks=flip_chunks,
            parts=wire.parts_to(parts),
        )
        call = self._stub.Pull.future(request, timeout=timeout_s)

        def pulled() -> Pulled:
            with rpc.calling(self._name):
                answer = call.result()
            return _pulled(answer)

        with self._stop.waking(call.cancel):
            yield pulled

    def attest(
        self, fence: Fence, side: Side, manifest: Manifest, plan: Plan, crcs: Sequence[int], timeout_s: float
    ) -> Receipt:
        """This side's receipt over the checksums of its chunks."""
        request = pb.AttestRequest(
            fence=wire.fence_to(fence),
            side=int(side),  # type: ignore[arg-type]
            manifest=wire.manifest_to(manifest),
            plan=wire.plan_to(plan),
            chunk_crcs=crcs,
        )
        return wire.receipt_from(self._call(self._stub.Attest, request, timeout_s).receipt)

    def _ended(self, over: grpc.Future[pb.PullLandingResponse]) -> None:
        try:
            with rpc.calling(self._name):
                over.result()
        except WorldlineError as error:
            self._stop.tell(error)
        except grpc.FutureCancelledError:
            pass  # by us

    def _call(self, method: grpc.UnaryUnaryMultiCallable[Q, A], request: Q, timeout_s: float) -> A:
        call = method.future(request, timeout=timeout_s)
        with self._stop.waking(call.cancel), rpc.calling(self._name):
            return call.result()


def _pulled(answer: pb.PullResponse) -> Pulled:
    return Pulled(tuple(answer.chunk_crcs), answer.copy_s, answer.verify_s)

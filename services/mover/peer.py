"""The control stream to the destination's mover, as the source's mover sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from mover.stop import Stop, Watch
from mover.streaming import Outbox
from worldline import rpc, wire
from worldline.codec.parts import Part
from worldline.errors import Unavailable, WorldlineError
from worldline.manifest import Manifest
from worldline.receipt import Receipt
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

WHO = "destination's mover"
_GOODBYE_S = 1.0
# Signs of life are not sent more often than this, whatever a plan says.
_MIN_BEAT_S = 0.02


@dataclass(frozen=True, slots=True)
class Verified:
    """The destination's receipt, the seconds it measured, the rate at which one thread decoded (0: none did), and how
    many threads did.
    """

    receipt: Receipt
    wire_s: float
    verify_s: float
    decode_Bps: float
    decode_threads: int


class Peer:
    """One `Receive` call. From `open` to `close` the other mover must be heard every `no_progress_s`."""

    def __init__(
        self,
        channel: grpc.Channel,
        stop: Stop,
        watch: Watch,
        *,
        no_progress_s: float,
        timeout_s: float,
        progress: Callable[[pb.ReceiveProgress], None],
    ) -> None:
        self._stub = MoverServiceStub(channel)
        self._stop = stop
        self._watch = watch
        self._no_progress_s = no_progress_s
        self._timeout_s = timeout_s
        self._progress = progress
        self._outbox: Outbox[pb.ReceiveRequest] = Outbox()
        self._changed = threading.Condition()
        self._ready: pb.ReceiveReady | None = None
        self._verified: Verified | None = None
        self._closing = False
        self._call: grpc.Call | None = None
        self._thread: threading.Thread | None = None

    def open(self, message: pb.ReceiveOpen) -> None:
        """Begin: ask the destination to reserve."""
        self._watch.expect(WHO, self._no_progress_s)
        self._outbox.put(pb.ReceiveRequest(open=message))
        beat = pb.ReceiveRequest(beat=pb.ReceiveBeat())
        requests = self._outbox.stream(beat_every(self._no_progress_s), lambda: beat)
        call = self._stub.Receive(requests, timeout=self._timeout_s)
        self._call = call
        self._thread = threading.Thread(target=self._read, args=(call,), name="peer", daemon=True)
        self._thread.start()

    def ready(self) -> pb.ReceiveReady:
        """Wait until it has reserved."""
        with self._stop.waking(self._wake), self._changed:
            self._changed.wait_for(lambda: self._ready is not None or self._stop.told)
            self._stop.check()
            if self._ready is None:
                raise _ended()
            return self._ready

    def start(self, remaining_s: float) -> None:
        """Tell it that the bytes come."""
        self._outbox.put(pb.ReceiveRequest(start=pb.ReceiveStart(remaining_s=remaining_s)))

    def parts(self, parts: Sequence[Part], *, last: bool) -> None:
        """Tell it what they are, if they are coded on the source's device; all at once or as it becomes known."""
        self._outbox.put(pb.ReceiveRequest(parts=pb.ReceiveParts(parts=wire.parts_to(parts), last=last)))

    def finish(self, manifest: Manifest, source_crcs: Sequence[int] = ()) -> None:
        """Tell it that all was sent; for a move that hosts carry, with the source's checksums."""
        finish = pb.ReceiveFinish(manifest=wire.manifest_to(manifest), source_chunk_crcs=source_crcs)
        self._outbox.put(pb.ReceiveRequest(finish=finish))

    def verified(self) -> Verified:
        """Wait for its receipt."""
        with self._stop.waking(self._wake), self._changed:
            self._changed.wait_for(lambda: self._verified is not None or self._stop.told)
            if self._verified is None:
                self._stop.check()
                raise _ended()
            return self._verified

    def close(self) -> None:
        """End the call, if it has not ended, and with it what the destination does for this move."""
        self._watch.forget(WHO)
        with self._changed:
            self._closing = True
            finished = self._verified is not None
        self._outbox.end()
        if self._call is not None and self._thread is not None:
            if finished:
                self._thread.join(_GOODBYE_S)  # it ends the call itself: no cancelled call in its traces
            self._call.cancel()  # type: ignore[no-untyped-call]
            self._thread.join()

    def _read(self, call: Iterator[pb.ReceiveResponse]) -> None:
        try:
            with rpc.calling(f"the {WHO}"):
                for response in call:
                    self._watch.heard(WHO)
                    self._hear(response)
            error: WorldlineError = _ended()
        except WorldlineError as raised:
            error = raised
        with self._changed:
            over = self._closing or self._verified is not None
        if not over:
            self._stop.tell(error)

    def _hear(self, response: pb.ReceiveResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "progress":
            self._progress(response.progress)
            return
        with self._changed:
            if kind == "ready":
                self._ready = response.ready
            elif kind == "verified":
                message = response.verified
                self._verified = Verified(
                    wire.receipt_from(message.receipt),
                    message.wire_s,
                    message.verify_s,
                    message.decode_bytes_per_s,
                    message.decode_threads,
                )
                self._watch.forget(WHO)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def beat_every(no_progress_s: float) -> float:
    """Seconds between signs of life, so that several fit into the bound."""
    return max(_MIN_BEAT_S, min(0.5, no_progress_s / 5))


def _ended() -> Unavailable:
    return Unavailable(f"the {WHO} ended the control stream before it had verified", reason="PEER_GONE")

"""The receiving end of a stream: it sees no bytes come, only the immediates of chunks that lie whole in the slot."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from mover.transports.rdma import verbs
from mover.transports.rdma.device import Device
from mover.transports.rdma.link import Link
from mover.transports.rdma.records import Records
from mover.transports.rdma.regions import Regions, Registered
from mover.transports.rdma.staging import PLACES, Staging
from worldline.errors import BadRequest
from worldline.plan import Chunk
from worldline.transport import Decoder, Landed


class Landing:
    """What one move's streams write into: the slot and the records. Released when the last holder has let go.

    Either each stream is let in by windows, or a `domain` of the move's own keeps every other move's streams out.
    """

    def __init__(self, device: Device, regions: Regions, region: memoryview, chunks: int) -> None:
        windows = device.config.access == "window"
        self._regions = regions
        self._access = verbs.BINDABLE if windows else verbs.REMOTE_WRITE
        self._holders = 1
        self._lock = threading.Lock()
        with ExitStack() as made:
            self.domain = None if windows else device.verbs.domain()
            if self.domain is not None:
                made.callback(self.domain.close)
            self.region = regions.acquire(region, writable=True, domain=self.domain)
            made.callback(regions.release, self.region)
            self.records = Records(chunks)
            made.callback(self.records.close)
            self.records_registered = regions.register_private(self.records.view, self._access, self.domain)
            made.callback(regions.release, self.records_registered)
            self._made = made.pop_all()

    def register(self, view: memoryview) -> Registered:
        """Register a stream's own memory for its peer to write into."""
        return self._regions.register_private(view, self._access, self.domain)

    def deregister(self, registered: Registered) -> None:
        """Undo `register`."""
        self._regions.release(registered)

    def hold(self) -> None:
        """One holder more."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """One holder less."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._made.close()


class Places:
    """Where the coded pieces of one stream land. It is registered as its move's landing is, and goes before it."""

    def __init__(self, landing: Landing) -> None:
        self.staging = Staging()
        try:
            self.registered = landing.register(self.staging.view)
        except BaseException:
            self.staging.close()
            raise
        self._landing = landing

    def let_go(self) -> None:
        """The stream's queue pair is gone."""
        self._landing.deregister(self.registered)
        self.staging.close()


class Receiver:
    """See `worldline.transport.CodedReceiveLink`."""

    def __init__(
        self, link: Link, landing: Landing, chunks: Sequence[Chunk], traceparent: str, staging: Staging | None = None
    ) -> None:
        """`staging` is where coded pieces land, for a coded move."""
        self.traceparent = traceparent
        self._link = link
        self._landing = landing
        self._chunks = chunks
        self._staging = staging
        self._decoder: Decoder | None = None
        self._came: deque[int] = deque()

    def expect(self, receives: int) -> None:
        """Post the receives that immediates use up."""
        for _ in range(receives):
            self._post()

    def decode_with(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def next(self) -> Landed | None:
        with self._link.use("waiting for a chunk"):
            records = self._landing.records
            index = self._next_index()
            while self._staging is not None and records.end_index < index <= records.end_index + PLACES:
                self._decode(self._staging, index - records.end_index - 1)
                index = self._next_index()
            if index == records.end_index:
                return None
            if index > records.end_index:
                raise BadRequest(
                    f"the sender announced chunk {index} of {len(self._chunks)}",
                    reason="BAD_CHUNK",
                    numbers={"chunk": index},
                )
            crc, size_bytes = records.read(index)
            chunk = self._chunks[index]
            if size_bytes != chunk.size_bytes:
                raise BadRequest(
                    f"the sender says chunk {index} has {size_bytes} bytes, the plan says {chunk.size_bytes}",
                    reason="BAD_CHUNK",
                    numbers={"chunk": index, "size_bytes": size_bytes},
                )
            return Landed(chunk, crc)

    def _next_index(self) -> int:
        # Not while some wait here: what is not taken holds its receives, and so the peer, back.
        if not self._came:
            self._link.wait(lambda: bool(self._came), self._take, "waiting for a chunk")
        return self._came.popleft()

    def _decode(self, staging: Staging, place: int) -> None:
        """Hand a coded piece to the decoder, and its place back to the sender."""
        index, piece = staging.piece(place)
        chunk = self._chunks[index] if index < len(self._chunks) else Chunk(index, 0, 0)
        if not chunk.offset <= piece.offset <= chunk.offset + chunk.size_bytes - piece.size_bytes:
            raise BadRequest(
                f"the sender announced a piece of {piece.size_bytes} bytes at {piece.offset}, which is not in chunk "
                f"{index}",
                reason="BAD_PIECE",
                numbers={"chunk": index, "offset": piece.offset, "size_bytes": piece.size_bytes},
            )
        if self._decoder is None:
            raise BadRequest(f"chunk {index} is coded, which the plan does not allow", reason="BAD_CHUNK")
        payload = self._decoder.buffer(piece.wire_bytes)
        staging.take(place, payload)
        self._link.control.send_taken()
        self._decoder.decode(chunk, piece, payload)

    def answer(self, wanted_again: Sequence[int]) -> None:
        with self._link.use("answering the sender"):
            self._link.control.send_answer(tuple(wanted_again))

    def busy(self) -> None:
        with self._link.use("answering the sender"):
            self._link.control.busy()

    def close(self) -> None:
        self._link.close()

    def _take(self, completion: verbs.Completion) -> None:
        if completion.received:
            self._came.append(completion.immediate)
            self._post()

    def _post(self) -> None:
        segment = self._landing.records_registered.segments[0]
        self._link.pair.post_receive(segment.address, segment.size_bytes, segment.local_key)

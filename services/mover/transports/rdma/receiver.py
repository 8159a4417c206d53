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
from mover.transports.rdma.regions import Regions
from worldline.errors import BadRequest
from worldline.plan import Chunk
from worldline.transport import Landed


class Landing:
    """What one move's streams write into: the slot and the records. Released when the last holder has let go.

    Either each stream is let in by windows, or a `domain` of the move's own keeps every other move's streams out.
    """

    def __init__(self, device: Device, regions: Regions, region: memoryview, chunks: int) -> None:
        windows = device.config.access == "window"
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
            access = verbs.BINDABLE if windows else verbs.REMOTE_WRITE
            self.records_registered = regions.register_private(self.records.view, access, self.domain)
            made.callback(regions.release, self.records_registered)
            self._made = made.pop_all()

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


class Receiver:
    """See `worldline.transport.ReceiveLink`."""

    def __init__(self, link: Link, landing: Landing, chunks: Sequence[Chunk], traceparent: str) -> None:
        self.traceparent = traceparent
        self._link = link
        self._landing = landing
        self._chunks = chunks
        self._came: deque[int] = deque()

    def expect(self, receives: int) -> None:
        """Post the receives that immediates use up."""
        for _ in range(receives):
            self._post()

    def next(self) -> Landed | None:
        doing = "waiting for a chunk"
        with self._link.use(doing):
            # Not while some wait here: what is not taken holds its receives, and so the peer, back.
            if not self._came:
                self._link.wait(lambda: bool(self._came), self._take, doing)
            index = self._came.popleft()
            records = self._landing.records
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

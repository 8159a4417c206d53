"""The sending half of the pipeline: checksum a piece of the source region, put it on a stream while it is in cache.

In a coded move the first round takes its pieces from threads that code ahead; what is wanted again is sent raw. Chunks
that the destination makes are read for their checksums only, on a thread beside the streams.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mover.parallel import Together
from worldline.crc import PIECE_BYTES, crc32
from worldline.errors import BadRequest, Cancelled, DataLoss, Internal
from worldline.filling import Filling
from worldline.plan import Chunk
from worldline.transport import CodedSendLink, Piece, SendLink

if TYPE_CHECKING:
    from mover.codec.ahead import Ahead

_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Sent:
    """Checksums of the source region by chunk, chunks sent twice, seconds from the first byte to the last answer."""

    crcs: tuple[int, ...]
    retried_chunks: int
    seconds: float


class Sending:
    """One move's sending half. `sent_bytes` and `retried_chunks` may be read while `run` runs."""

    def __init__(
        self,
        region: memoryview,
        chunks: Sequence[Chunk],
        links: Sequence[SendLink],
        *,
        ahead: Ahead | None = None,
        checksum: bool = True,
        filling: Filling | None = None,
    ) -> None:
        """`ahead` makes it a coded move; `filling` is of a region that is not all there yet. `checksum=False` is for a
        benchmark's arm without verification.
        """
        self.sent_bytes = 0
        self.retried_chunks = 0
        self._region = region
        self._chunks = chunks
        self._links = links
        self._ahead = ahead
        self._checksum = checksum
        self._filling = filling
        self._crcs: list[int | None] = [None] * len(chunks)
        self._left = deque(chunk for chunk in chunks if not chunk.fill)
        self._made = [chunk for chunk in chunks if chunk.fill]
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self, tick: Callable[[], None] = lambda: None) -> Sent:
        """Send everything, once more what the receiver wants again. `tick` is called about ten times a second.

        Raises:
            DataLoss: the source region changed between two reads of a chunk.
            Cancelled, TimedOut, Unavailable, BadRequest: as the links raise them.
        """
        if self._cancelled:
            raise Cancelled("the move was cancelled before its first byte", reason="LINK_CLOSED")
        start = time.monotonic()
        streams = [lambda number=number: self._stream(number) for number in range(len(self._links))]
        Together([*streams, self._check_made], self._close, "send").wait(_TICK_S, tick)
        crcs = tuple(crc for crc in self._crcs if crc is not None)
        return Sent(crcs, self.retried_chunks, time.monotonic() - start)

    def cancel(self) -> None:
        """Make `run` end soon. Any thread."""
        self._close()

    def _close(self) -> None:
        self._cancelled = True
        if self._filling is not None:
            self._filling.stop()
        if self._ahead is not None:
            self._ahead.cancel()
        for link in self._links:
            link.close()

    def _stream(self, number: int) -> None:
        link = self._links[number]
        if self._ahead is not None:
            self._stream_coded(number, link, self._ahead)
        while (chunk := self._next()) is not None:
            self._send(link, chunk)
        wanted = link.finish()
        if not wanted:
            return
        with self._lock:
            self.retried_chunks += len(wanted)
        for index in wanted:
            if index >= len(self._chunks):
                raise BadRequest(f"the receiver wants chunk {index} of {len(self._chunks)}", reason="BAD_ANSWER")
            self._send(link, self._chunks[index])
        if link.finish():
            raise BadRequest("the receiver wants chunks a third time", reason="BAD_ANSWER")

    def _check_made(self) -> None:
        """Checksums of what is not sent: of the bytes that lie there, whatever they are."""
        for chunk in self._made:
            if self._cancelled or not self._there(chunk):
                return
            crc, end = 0, chunk.offset + chunk.size_bytes
            for at in range(chunk.offset, end, PIECE_BYTES) if self._checksum else ():
                with self._region[at : min(at + PIECE_BYTES, end)] as piece:
                    crc = crc32(piece, crc)
            self._keep(chunk, crc)

    def _stream_coded(self, number: int, link: SendLink, ahead: Ahead) -> None:
        """One stream's first round. Some chunks are always reserved: their pieces are coded before their turn."""
        if not isinstance(link, CodedSendLink):
            raise Internal("this transport carries no coded chunks")
        reserved: deque[Chunk] = deque()

        def take() -> tuple[Piece, Sequence[memoryview]]:
            reserve(wait=False)
            return ahead.take(number)

        def reserve(*, wait: bool) -> None:
            # With something to send, nothing is waited for.
            while ahead.wants(number) and (chunk := self._next(wait=wait and not reserved)) is not None:
                ahead.reserve(number, chunk)
                reserved.append(chunk)

        reserve(wait=True)
        while reserved:
            self._send_coded(link, reserved.popleft(), take)
            reserve(wait=True)

    def _next(self, *, wait: bool = True) -> Chunk | None:
        """The next chunk of all streams; None if there is none, or, without `wait`, none that is in the region yet."""
        with self._lock:
            if not self._left or not (wait or self._filling is None or self._filling.reached(_end(self._left[0]))):
                return None
            chunk = self._left.popleft()
        return chunk if self._there(chunk) else None

    def _there(self, chunk: Chunk) -> bool:
        """Wait until the chunk lies in the region. False: it never will."""
        return self._filling is None or self._filling.covers(chunk.offset, _end(chunk))

    def _send(self, link: SendLink, chunk: Chunk) -> None:
        crc = 0
        link.begin(chunk)
        end = chunk.offset + chunk.size_bytes
        for at in range(chunk.offset, end, PIECE_BYTES):
            with self._region[at : min(at + PIECE_BYTES, end)] as piece:
                if self._checksum:
                    crc = crc32(piece, crc)
                link.write(piece, at)
        link.end(crc)
        self._keep(chunk, crc)

    def _send_coded(
        self, link: CodedSendLink, chunk: Chunk, take: Callable[[], tuple[Piece, Sequence[memoryview]]]
    ) -> None:
        crc = 0
        link.begin_coded(chunk)
        at, end = chunk.offset, chunk.offset + chunk.size_bytes
        while at < end:
            piece, payload = take()
            with self._region[at : at + piece.size_bytes] as data:
                crc = crc32(data, crc)
                link.write_piece(piece, payload if piece.planes else (data,))
            at += piece.size_bytes
        link.end(crc)
        self._keep(chunk, crc)

    def _keep(self, chunk: Chunk, crc: int) -> None:
        with self._lock:
            before, self._crcs[chunk.index] = self._crcs[chunk.index], crc
        if before is not None and before != crc:
            raise _torn(chunk, before, crc)
        with self._lock:
            self.sent_bytes += chunk.size_bytes


def _end(chunk: Chunk) -> int:
    return chunk.offset + chunk.size_bytes


def _torn(chunk: Chunk, before: int, now: int) -> DataLoss:
    return DataLoss(
        f"the source's region changed in its freeze: chunk {chunk.index} at offset {chunk.offset} had CRC {before:08x} "
        f"and has {now:08x}. Nothing is installed, the source plays on",
        reason="SOURCE_CHANGED",
        numbers={
            "chunk": chunk.index,
            "offset": chunk.offset,
            "source_crc": f"{before:08x}",
            "source_crc_again": f"{now:08x}",
        },
    )

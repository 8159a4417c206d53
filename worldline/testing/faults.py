"""The fault proxy: decorates the sending end of streams so that named chunks go wrong, each time in the same way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from worldline.errors import Cancelled, Internal, Unavailable
from worldline.move import Fault, FaultKind
from worldline.plan import Chunk
from worldline.transport import CodedSendLink, Piece, SendLink


class Injector:
    """The faults of one move, shared by its streams, so that `times` counts over all of them and over retries."""

    def __init__(self, faults: Sequence[Fault], fired: Callable[[Fault], None] = lambda fault: None) -> None:
        """`fired` is told of each fault as it happens. HOLD is not a fault of the wire and is ignored."""
        self._fired = fired
        self._lock = threading.Lock()
        self._left = [
            (fault, fault.times if fault.times else None) for fault in faults if fault.kind is not FaultKind.HOLD
        ]

    def wrap(self, link: SendLink) -> SendLink:
        """A link that does what `link` does, and goes wrong where told."""
        return _Faulty(link, self)

    def take(self, chunk: int) -> tuple[Fault, ...]:
        """The faults that happen to this passage of `chunk`; each is counted."""
        taken: list[Fault] = []
        with self._lock:
            for at, (fault, left) in enumerate(self._left):
                if fault.chunk == chunk and left != 0:
                    self._left[at] = (fault, None if left is None else left - 1)
                    taken.append(fault)
        for fault in taken:
            self._fired(fault)
        return tuple(taken)


class _Faulty:
    """See `worldline.transport.SendLink`."""

    def __init__(self, link: SendLink, injector: Injector) -> None:
        self._link = link
        self._injector = injector
        self._closed = threading.Event()
        self._now: dict[FaultKind, Fault] = {}
        self._chunk = Chunk(0, 0, 0)

    def begin(self, chunk: Chunk) -> None:
        self._take(chunk)
        if FaultKind.DROP not in self._now:
            self._link.begin(chunk)

    def begin_coded(self, chunk: Chunk) -> None:
        self._take(chunk)
        if FaultKind.DROP not in self._now:
            self._coded.begin_coded(chunk)

    def _take(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._now = {fault.kind: fault for fault in self._injector.take(chunk.index)}
        if FaultKind.DELAY in self._now:
            self._sleep(self._now[FaultKind.DELAY].seconds)

    @property
    def _coded(self) -> CodedSendLink:
        if not isinstance(self._link, CodedSendLink):
            raise Internal("this stream carries no coded chunks")
        return self._link

    def write(self, piece: memoryview, offset: int) -> None:
        if FaultKind.DROP in self._now:
            return
        if FaultKind.TRUNCATE in self._now:
            half = len(piece) // 2
            if half:
                with piece[:half] as part:
                    self._link.write(part, offset)
            self._cut()
        if FaultKind.STALL in self._now:
            self._sleep(self._now.pop(FaultKind.STALL).seconds)
        if FaultKind.FLIP in self._now:
            del self._now[FaultKind.FLIP]
            with memoryview(_flipped(piece)) as wrong:
                self._link.write(wrong, offset)
            return
        self._link.write(piece, offset)

    def write_piece(self, piece: Piece, payload: Sequence[memoryview]) -> None:
        if FaultKind.DROP in self._now:
            return
        if FaultKind.TRUNCATE in self._now:
            self._cut()
        if FaultKind.STALL in self._now:
            self._sleep(self._now.pop(FaultKind.STALL).seconds)
        if FaultKind.FLIP in self._now:
            del self._now[FaultKind.FLIP]
            # The last part is the most significant plane: what a codec has truly coded. Nothing at all is zeros.
            parts = [part for part in payload if len(part)] or [memoryview(bytes(piece.size_bytes))]
            shown = piece if piece.wire_bytes else Piece(piece.offset, piece.size_bytes)
            with memoryview(_flipped(parts[-1])) as wrong:
                self._coded.write_piece(shown, [*parts[:-1], wrong])
            return
        self._coded.write_piece(piece, payload)

    def _cut(self) -> NoReturn:
        self._link.close()
        raise Unavailable(f"chunk {self._chunk.index} was truncated on purpose", reason="PEER_GONE")

    def end(self, crc: int) -> None:
        if FaultKind.DROP not in self._now:
            self._link.end(crc)

    def finish(self) -> Sequence[int]:
        return self._link.finish()

    def close(self) -> None:
        self._closed.set()
        self._link.close()

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Cancelled("the stream was closed while a fault held it", reason="LINK_CLOSED")


def _flipped(data: memoryview) -> bytearray:
    wrong = bytearray(data)
    wrong[len(wrong) // 2] ^= 0x10
    return wrong

"""The fault proxy: decorates the sending end of streams so that named chunks go wrong, each time in the same way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from worldline.errors import Cancelled, Unavailable
from worldline.move import Fault, FaultKind
from worldline.plan import Chunk
from worldline.transport import SendLink


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
        self._chunk = chunk
        self._now = {fault.kind: fault for fault in self._injector.take(chunk.index)}
        if FaultKind.DELAY in self._now:
            self._sleep(self._now[FaultKind.DELAY].seconds)
        if FaultKind.DROP not in self._now:
            self._link.begin(chunk)

    def write(self, piece: memoryview, offset: int) -> None:
        if FaultKind.DROP in self._now:
            return
        if FaultKind.TRUNCATE in self._now:
            half = len(piece) // 2
            if half:
                with piece[:half] as part:
                    self._link.write(part, offset)
            self._link.close()
            raise Unavailable(f"chunk {self._chunk.index} was truncated on purpose", reason="PEER_GONE")
        if FaultKind.STALL in self._now:
            self._sleep(self._now.pop(FaultKind.STALL).seconds)
        if FaultKind.FLIP in self._now:
            del self._now[FaultKind.FLIP]
            flipped = bytearray(piece)
            flipped[len(flipped) // 2] ^= 0x10
            with memoryview(flipped) as wrong:
                self._link.write(wrong, offset)
            return
        self._link.write(piece, offset)

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

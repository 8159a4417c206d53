"""The receiving side of a coded move: threads decode pieces into the slot behind the streams, then the lane verifies.

With IN_PATH nothing runs beside the receive threads: each decodes its pieces itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from mover.codec.counts import Coding
from worldline.codec.zstd import Coder
from worldline.errors import Cancelled
from worldline.plan import Chunk
from worldline.transport import MAX_PIECE_BYTES, Landed, Piece

if TYPE_CHECKING:
    from mover.verification import Checks, Lane

# Payloads that wait to be decoded or are received: with `MAX_PIECE_BYTES` of each, what bounds the codec's memory.
BUFFERS = 16


class Behind:
    """A `mover.verification.Lane` that decodes before `lane` checks, and its links' `worldline.transport.Decoder`.

    A chunk with a piece that cannot be decoded counts as one that differs: it is sent again.
    """

    def __init__(self, region: memoryview, checks: Checks, lane: Lane, threads: int) -> None:
        """`threads` 0: whoever calls `decode` decodes. `lane` is closed with this."""
        self._region = region
        self._checks = checks
        self._lane = lane
        self._changed = threading.Condition()
        self._free = [bytearray() for _ in range(BUFFERS)]
        self._queue: deque[tuple[Chunk, Piece, memoryview]] = deque()
        self._left: Counter[int] = Counter()  # pieces of a chunk that wait or are decoded
        self._landed: dict[int, Landed] = {}  # chunks that are whole but for these
        self._forwarding = 0
        self._bad: set[int] = set()
        self._closed = False
        self._failed: Exception | None = None
        self._counts: Counter[str] = Counter()
        self._busy_s = 0.0
        self._own = threading.local()
        self._threads = [
            threading.Thread(target=self._run, name=f"decode-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # --- the links' side

    def buffer(self, size_bytes: int) -> memoryview:
        """See `worldline.transport.Decoder`."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._closed or self._failed)
            self._require_open()
            memory = self._free.pop()
        if not memory:
            memory = bytearray(MAX_PIECE_BYTES)
        return memoryview(memory)[:size_bytes]

    def decode(self, chunk: Chunk, piece: Piece, payload: memoryview) -> None:
        """See `worldline.transport.Decoder`."""
        with self._changed:
            self._require_open()
            self._left[chunk.index] += 1
            if self._threads:
                self._queue.append((chunk, piece, payload))
                self._changed.notify_all()
                return
        self._decode(chunk, piece, payload)

    # --- the lane's side

    def landed(self, landed: Landed) -> None:
        """See `mover.verification.Lane`: goes on to the lane when every piece of the chunk is decoded."""
        with self._changed:
            self._require_open()
            if self._left[landed.chunk.index]:
                self._landed[landed.chunk.index] = landed
                return
        self._forward(landed)

    def drain(self) -> None:
        """See `mover.verification.Lane`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._failed or not (self._left.total() or self._forwarding))
            self._require_open()
        self._lane.drain()

    def close(self) -> None:
        """See `mover.verification.Lane`."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._lane.close()

    def counts(self) -> Coding:
        """What was done until now; only what the decoder saw."""
        with self._changed:
            counts = self._counts
            return Coding(
                coded_pieces=counts["coded"],
                zero_pieces=counts["zero"],
                bad_pieces=counts["bad"],
                worked_bytes=counts["worked"],
                busy_s=self._busy_s,
                threads=len(self._threads),
            )

    # --- work

    def _require_open(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise Cancelled("the codec was closed", reason="LINK_CLOSED")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                work = self._queue.popleft()
            try:
                self._decode(*work)
            except Exception as error:
                with self._changed:
                    self._failed = error
                    self._changed.notify_all()
                return

    def _decode(self, chunk: Chunk, piece: Piece, payload: memoryview) -> None:
        start = time.perf_counter()
        with self._region[piece.offset : piece.offset + piece.size_bytes] as into:
            good = self._coder().decode(into, piece, payload)
        taken_s = time.perf_counter() - start
        memory = payload.obj
        payload.release()
        with self._changed:
            self._free.append(memory)  # type: ignore[arg-type]  # from `buffer`
            self._counts["bad" if not good else "coded" if piece.wire_bytes else "zero"] += 1
            self._counts["worked"] += piece.size_bytes
            self._busy_s += taken_s
            if not good:
                self._bad.add(chunk.index)
            self._left[chunk.index] -= 1
            landed = None if self._left[chunk.index] else self._landed.pop(chunk.index, None)
            self._forwarding += landed is not None
            self._changed.notify_all()
        if landed is not None:
            self._forward(landed)
            with self._changed:
                self._forwarding -= 1
                self._changed.notify_all()

    def _forward(self, landed: Landed) -> None:
        with self._changed:
            bad = landed.chunk.index in self._bad
            self._bad.discard(landed.chunk.index)
        if bad:
            self._checks.expect(landed)
        else:
            self._lane.landed(landed)

    def _coder(self) -> Coder:
        coder: Coder | None = getattr(self._own, "coder", None)
        if coder is None:
            coder = self._own.coder = Coder()
        return coder

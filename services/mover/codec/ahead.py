"""The sending side of a coded move: threads code pieces ahead of the streams, which never wait for one not begun.

A stream takes its pieces in order. One that is coded goes coded; one that is being coded is waited for; one that nobody
has begun goes raw, because the wire is free now. So a wire that is faster than the codec carries raw bytes at its own
speed, and a slow one carries coded ones. All-zero pieces never go raw.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from mover.codec.counts import Coding
from worldline.codec.planes import is_zero
from worldline.codec.runs import Cutter
from worldline.codec.zstd import Coder
from worldline.errors import Cancelled
from worldline.plan import Chunk
from worldline.transport import Piece

# Of the region, coded or in work and not sent yet: what bounds the codec's memory, whatever the chunks' size.
AHEAD_BYTES = 16 << 20


class _State(enum.Enum):
    WAITING = 1
    AT_WORK = 2
    CODED = 3


@dataclass(slots=True)
class _Task:
    offset: int
    size_bytes: int
    width: int
    state: _State = _State.WAITING
    piece: Piece | None = None
    payload: Sequence[memoryview] = ()


class _Feed:
    """One stream's pieces: all in order, and those that nobody has begun."""

    def __init__(self) -> None:
        self.tasks: deque[_Task] = deque()
        self.waiting: deque[_Task] = deque()
        self.ahead_bytes = 0  # at work or coded, not taken by the stream
        self.reserved_bytes = 0  # in `tasks`


class Ahead:
    """One move's coding threads. Streams call `reserve` and `take`, each with its own number."""

    def __init__(self, region: memoryview, cutter: Cutter, threads: int, streams: int) -> None:
        self._region = region
        self._cutter = cutter
        self._budget_bytes = AHEAD_BYTES // streams
        self._feeds = [_Feed() for _ in range(streams)]
        self._changed = threading.Condition()
        self._closed = False
        self._failed: Exception | None = None
        self._counts: Counter[str] = Counter()
        self._busy_s = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"encode-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def wants(self, stream: int) -> bool:
        """Whether the stream should reserve more chunks, so that its pieces are coded before it comes to them."""
        with self._changed:
            return self._feeds[stream].reserved_bytes < self._budget_bytes

    def reserve(self, stream: int, chunk: Chunk) -> None:
        """The stream will carry this chunk after those it reserved before."""
        tasks = [_Task(*piece) for piece in self._cutter.pieces(chunk)]
        feed = self._feeds[stream]
        with self._changed:
            feed.tasks.extend(tasks)
            feed.waiting.extend(tasks)
            feed.reserved_bytes += chunk.size_bytes
            self._changed.notify_all()

    def take(self, stream: int) -> tuple[Piece, Sequence[memoryview]]:
        """The stream's next piece and its payload, which is empty where the region's own bytes go.

        Raises:
            Cancelled: closed meanwhile.
        """
        feed = self._feeds[stream]
        with self._changed:
            task = feed.tasks.popleft()
            feed.reserved_bytes -= task.size_bytes
            late = task.state is _State.WAITING
            if late:
                feed.waiting.popleft()
            else:
                self._changed.wait_for(lambda: task.state is _State.CODED or self._closed or self._failed)
                feed.ahead_bytes -= task.size_bytes
                self._changed.notify_all()
            if self._failed is not None:
                raise self._failed
            if self._closed:
                raise Cancelled("the codec was closed", reason="LINK_CLOSED")
        piece = task.piece or self._as_it_is(task)
        with self._changed:
            self._counts["wire"] += piece.wire_bytes
            if piece.planes:
                self._counts["coded" if piece.wire_bytes else "zero"] += 1
            else:
                self._counts["late" if late else "raw"] += 1
                self._counts["late_bytes"] += late * piece.size_bytes
        return piece, task.payload

    def _as_it_is(self, task: _Task) -> Piece:
        with self._region[task.offset : task.offset + task.size_bytes] as data:
            return Piece(task.offset, task.size_bytes, (0,) if is_zero(data) else ())

    def counts(self) -> Coding:
        """What was done until now."""
        with self._changed:
            counts = self._counts
            return Coding(
                wire_bytes=counts["wire"],
                coded_pieces=counts["coded"],
                zero_pieces=counts["zero"],
                raw_pieces=counts["raw"],
                late_pieces=counts["late"],
                worked_bytes=counts["worked"],
                busy_s=self._busy_s,
                late_bytes=counts["late_bytes"],
                threads=len(self._threads),
            )

    def cancel(self) -> None:
        """Wake everybody; nothing more is coded. Any thread, any number of times."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """`cancel`, and join the threads: they read the region no more."""
        self.cancel()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        coder = Coder()
        while (task := self._next()) is not None:
            try:
                start = time.perf_counter()
                with self._region[task.offset : task.offset + task.size_bytes] as data:
                    task.piece, task.payload = coder.encode(data, task.offset, task.width)
                taken_s = time.perf_counter() - start
            except Exception as error:
                with self._changed:
                    self._failed = error
                    self._changed.notify_all()
                return
            with self._changed:
                task.state = _State.CODED
                self._counts["worked"] += task.size_bytes
                self._busy_s += taken_s
                self._changed.notify_all()

    def _next(self) -> _Task | None:
        """A piece of the stream that has the least coded ahead; None when closed."""
        with self._changed:
            while not self._closed:
                ready = [feed for feed in self._feeds if feed.waiting and feed.ahead_bytes < self._budget_bytes]
                if ready:
                    feed = min(ready, key=lambda feed: feed.ahead_bytes)
                    task = feed.waiting.popleft()
                    task.state = _State.AT_WORK
                    feed.ahead_bytes += task.size_bytes
                    return task
                self._changed.wait()
        return None

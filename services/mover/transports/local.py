"""Transport "local": both regions are mapped in this data plane, because one mover serves both hosts. One copy."""

from __future__ import annotations

import ctypes
import hmac
import secrets
import threading
from collections import deque
from collections.abc import Sequence

from mover.memory import address_of
from worldline.errors import BadRequest, Cancelled, Precondition, TimedOut, Unauthenticated, Unavailable
from worldline.plan import Chunk
from worldline.transport import Landed, Terms

_Answer = tuple[int, ...]


class _Pair:
    """What the two halves of one stream share; every change wakes both and counts as progress."""

    def __init__(self, region: memoryview, chunks: Sequence[Chunk], no_progress_s: float) -> None:
        self.region = region
        self.address = address_of(region)
        self.chunks = chunks
        self.no_progress_s = no_progress_s
        self.changed = threading.Condition()
        self.landed: deque[Landed | None] = deque()
        self.answers: deque[_Answer] = deque()
        self.progress = 0
        self.writing = 0
        self.closed: set[str] = set()

    def note(self) -> None:
        """Something moved. With `changed` held."""
        self.progress += 1
        self.changed.notify_all()

    def check(self, me: str) -> None:
        """Raise if either half is closed. With `changed` held."""
        if me in self.closed:
            raise Cancelled(f"the {me} closed its end of the stream", reason="LINK_CLOSED")
        if self.closed:
            raise Unavailable(f"the other end of the stream closed while the {me} used it", reason="PEER_GONE")

    def wait(self, me: str) -> None:
        """Wait for a change. With `changed` held."""
        before = self.progress
        if not self.changed.wait_for(lambda: self.progress != before or self.closed, self.no_progress_s):
            raise TimedOut(
                f"no byte moved for {self.no_progress_s} s while the {me} waited",
                reason="NO_PROGRESS",
                numbers={"no_progress_s": self.no_progress_s},
            )

    def close(self, me: str) -> None:
        """Close one half, and return only when no copy runs any more: the regions may be unmapped then."""
        with self.changed:
            self.closed.add(me)
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.writing)


class _Send:
    """The sending half."""

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair
        self._chunk: Chunk | None = None
        self._written = 0

    def begin(self, chunk: Chunk) -> None:
        if chunk.index >= len(self._pair.chunks) or self._pair.chunks[chunk.index] != chunk:
            raise BadRequest(f"chunk {chunk.index} is not one of the plan", reason="BAD_CHUNK")
        self._chunk, self._written = chunk, 0

    def write(self, piece: memoryview, offset: int) -> None:
        pair, chunk = self._pair, self._chunk
        if chunk is None or offset != chunk.offset + self._written or self._written + len(piece) > chunk.size_bytes:
            raise BadRequest(f"{len(piece)} bytes at {offset} are not next in the chunk", reason="BAD_CHUNK")
        with pair.changed:
            pair.check("sender")
            pair.writing += 1
        try:
            ctypes.memmove(pair.address + offset, address_of(piece), len(piece))
        finally:
            with pair.changed:
                pair.writing -= 1
                pair.note()
        self._written += len(piece)

    def end(self, crc: int) -> None:
        chunk = self._chunk
        if chunk is None or self._written != chunk.size_bytes:
            raise BadRequest(f"a chunk was ended after {self._written} bytes", reason="BAD_CHUNK")
        self._put(Landed(chunk, crc))
        self._chunk = None

    def finish(self) -> Sequence[int]:
        pair = self._pair
        self._put(None)
        with pair.changed:
            while not pair.answers:
                pair.check("sender")
                pair.wait("sender")
            return pair.answers.popleft()

    def _put(self, item: Landed | None) -> None:
        with self._pair.changed:
            self._pair.check("sender")
            self._pair.landed.append(item)
            self._pair.note()

    def close(self) -> None:
        self._pair.close("sender")


class _Receive:
    """The receiving half."""

    def __init__(self, pair: _Pair, traceparent: str) -> None:
        self.traceparent = traceparent
        self._pair = pair

    def next(self) -> Landed | None:
        pair = self._pair
        with pair.changed:
            while not pair.landed:
                pair.check("receiver")
                pair.wait("receiver")
            return pair.landed.popleft()

    def answer(self, wanted_again: Sequence[int]) -> None:
        with self._pair.changed:
            self._pair.check("receiver")
            self._pair.answers.append(tuple(wanted_again))
            self._pair.note()

    def busy(self) -> None:
        with self._pair.changed:
            self._pair.check("receiver")
            self._pair.note()

    def close(self) -> None:
        self._pair.close("receiver")


class _Listener:
    """One move that may be connected to from the same process."""

    def __init__(self, home: Local, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str) -> None:
        self.endpoint = endpoint
        self._home = home
        self._region = region
        self._chunks = chunks
        self._terms = terms
        self._changed = threading.Condition()
        self._arrived: deque[_Receive] = deque()
        self._taken: set[int] = set()
        self._closed = False

    def admit(self, terms: Terms, stream: int) -> _Send:
        """Called by the connecting side."""
        if not hmac.compare_digest(terms.token, self._terms.token) or terms.move_id != self._terms.move_id:
            raise Unauthenticated("the stream did not present the token of its move", reason="WRONG_TOKEN")
        with self._changed:
            if self._closed:
                raise Unavailable(f"{self.endpoint} accepts no more streams", reason="PEER_GONE")
            if not 0 <= stream < self._terms.streams or stream in self._taken:
                raise BadRequest(f"stream {stream} is not expected", reason="BAD_STREAM")
            self._taken.add(stream)
            pair = _Pair(self._region, self._chunks, self._terms.no_progress_s)
            self._arrived.append(_Receive(pair, terms.traceparent))
            self._changed.notify_all()
        return _Send(pair)

    def accept(self) -> _Receive:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closed, self._terms.no_progress_s)
            if self._closed:
                raise Cancelled(f"{self.endpoint} was closed", reason="LINK_CLOSED")
            if not self._arrived:
                raise TimedOut(f"no stream came within {self._terms.no_progress_s} s", reason="NO_PROGRESS")
            return self._arrived.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            waiting = list(self._arrived)
            self._arrived.clear()
            self._changed.notify_all()
        for link in waiting:
            link.close()
        self._home.forget(self.endpoint)


class Local:
    """Moves between two regions of this data plane."""

    name = "local"

    def __init__(self) -> None:
        self._listeners: dict[str, _Listener] = {}
        self._lock = threading.Lock()

    def listen(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> _Listener:
        """See `worldline.transport.Transport`."""
        listener = _Listener(self, region, chunks, terms, f"local:{secrets.token_hex(16)}")
        with self._lock:
            self._listeners[listener.endpoint] = listener
        return listener

    def connect(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str, stream: int) -> _Send:
        """See `worldline.transport.Transport`.

        Raises:
            Precondition: `endpoint` is not of this data plane.
        """
        with self._lock:
            listener = self._listeners.get(endpoint)
        if listener is None:
            raise Precondition(
                f"{endpoint[:64]!r} is not in this data plane: 'local' needs one mover at both ends; use 'tcp'",
                reason="NOT_LOCAL",
            )
        return listener.admit(terms, stream)

    def forget(self, endpoint: str) -> None:
        """Called by a listener that closes."""
        with self._lock:
            self._listeners.pop(endpoint, None)

    def close(self) -> None:
        """See `worldline.transport.Transport`."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener.close()

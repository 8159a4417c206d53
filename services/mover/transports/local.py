"""Transport "local": both regions are mapped in this data plane, because one mover serves both hosts. One copy."""

from __future__ import annotations

import ctypes
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mover.memory import address_of
from mover.transports.order import Order
from worldline.errors import BadRequest, Cancelled, Precondition, TimedOut, Unauthenticated, Unavailable
from worldline.plan import Chunk
from worldline.transport import Decoder, Landed, Piece, Terms

_Answer = tuple[int, ...]
# Coded pieces of one stream that the receiving half has not taken yet.
_MOST_CODED = 4


@dataclass(frozen=True, slots=True)
class _Coded:
    """One coded piece on its way from half to half."""

    chunk: Chunk
    piece: Piece
    payload: bytes  # a copy: its parts are the caller's again when `write_piece` returns


class _Pair:
    """What the two halves of one stream share. Every change is progress; copies alone wake nobody."""

    def __init__(self, region: memoryview, chunks: Sequence[Chunk], no_progress_s: float) -> None:
        self.region = region
        self.address = address_of(region)
        self.chunks = chunks
        self.no_progress_s = no_progress_s
        self.changed = threading.Condition()
        self.landed: deque[Landed | _Coded | None] = deque()
        self.coded = 0  # of `landed`
        self.answers: deque[_Answer] = deque()
        self.moved_at_s = time.monotonic()
        self.writing = 0
        self.closed: set[str] = set()

    def note(self) -> None:
        """Something happened that the other half may wait for. With `changed` held."""
        self.moved_at_s = time.monotonic()
        self.changed.notify_all()

    def check(self, me: str) -> None:
        """Raise if either half is closed. With `changed` held."""
        if me in self.closed:
            raise Cancelled(f"the {me} closed its end of the stream", reason="LINK_CLOSED")
        if self.closed:
            raise Unavailable(f"the other end of the stream closed while the {me} used it", reason="PEER_GONE")

    def wait(self, me: str) -> None:
        """Wait until something may have changed. With `changed` held."""
        told = self.changed.wait(self.no_progress_s)
        if not told and time.monotonic() - self.moved_at_s >= self.no_progress_s:
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
        self._order = Order(pair.chunks)

    def begin(self, chunk: Chunk) -> None:
        self._order.begin(chunk, coded=False)

    def begin_coded(self, chunk: Chunk) -> None:
        self._order.begin(chunk, coded=True)

    def write(self, piece: memoryview, offset: int) -> None:
        self._order.next(offset, len(piece))
        self._copy(piece, offset)
        self._order.wrote(len(piece))

    def write_piece(self, piece: Piece, payload: Sequence[memoryview]) -> None:
        chunk = self._order.next_piece(piece, payload)
        if piece.planes:
            self._put_coded(_Coded(chunk, piece, b"".join(payload)))
        else:
            at = piece.offset
            for part in payload:
                self._copy(part, at)
                at += len(part)
        self._order.wrote(piece.size_bytes)

    def _copy(self, piece: memoryview, offset: int) -> None:
        if not len(piece):
            return
        pair = self._pair
        with pair.changed:
            pair.check("sender")
            pair.writing += 1
        try:
            ctypes.memmove(pair.address + offset, address_of(piece), len(piece))
        finally:
            with pair.changed:
                pair.writing -= 1
                pair.moved_at_s = time.monotonic()
                if pair.closed:
                    pair.changed.notify_all()

    def end(self, crc: int) -> None:
        self._put(Landed(self._order.end(), crc))

    def finish(self) -> Sequence[int]:
        pair = self._pair
        self._put(None)
        with pair.changed:
            while not pair.answers:
                pair.check("sender")
                pair.wait("sender")
            return pair.answers.popleft()

    def _put_coded(self, item: _Coded) -> None:
        pair = self._pair
        with pair.changed:
            pair.check("sender")
            while pair.coded >= _MOST_CODED:
                pair.wait("sender")
                pair.check("sender")
            pair.coded += 1
            pair.landed.append(item)
            pair.note()

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
        self._decoder: Decoder | None = None

    def decode_with(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def next(self) -> Landed | None:
        while isinstance(item := self._take(), _Coded):
            self._decode(item)
        return item

    def _take(self) -> Landed | _Coded | None:
        pair = self._pair
        with pair.changed:
            while not pair.landed:
                pair.check("receiver")
                pair.wait("receiver")
            item = pair.landed.popleft()
            if isinstance(item, _Coded):
                pair.coded -= 1
                pair.note()
            return item

    def _decode(self, item: _Coded) -> None:
        decoder = self._decoder
        if decoder is None:
            raise BadRequest(f"chunk {item.chunk.index} is coded, which the plan does not allow", reason="BAD_CHUNK")
        payload = decoder.buffer(item.piece.wire_bytes)
        payload[:] = item.payload
        decoder.decode(item.chunk, item.piece, payload)

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

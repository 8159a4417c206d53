"""Transport "tcp": blocking sockets, one a stream, received straight into the region at the plan's offset."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mover.transports.order import Order
from mover.transports.tcp_port import DataPort, MoveListener, greet
from worldline.errors import BadRequest, Cancelled, TimedOut, Unavailable
from worldline.plan import Chunk
from worldline.transport import Decoder, Landed, Piece, Terms

# Everything beside the payload is a whole number of cache lines: the kernel's copies of the payload then stay aligned
# with the region. A header of 20 bytes instead cost 30 % more processor time at both ends.
#
# Kind, then for a chunk its index and size; for the end of a round and for an answer a count.
_HEADER = struct.Struct(">4sIQ48x")
_CHUNK, _CODED, _END, _ANSWER, _BUSY = b"WLCH", b"WLCZ", b"WLEN", b"WLAN", b"WLBZ"
# A piece of a coded chunk: magic, number of planes, offset and size in the region, bytes of each plane on the wire.
_PIECE = struct.Struct(">4sIQI4I28x")
_PIECE_MAGIC = b"WLPC"
_TRAILER = struct.Struct(">I60x")
_INDEX_BYTES = 4
# Of asm-generic/socket.h; Python has no name for it.
_SO_MAX_PACING_RATE = 47


class _Stream:
    """A connected socket that is closed only when no call is inside it, so that its number is not reused under one."""

    def __init__(self, connected: socket.socket, chunks: Sequence[Chunk], no_progress_s: float) -> None:
        self.chunks = chunks
        self._socket = connected
        self._no_progress_s = no_progress_s
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    @contextmanager
    def _use(self, doing: str) -> Iterator[socket.socket]:
        with self._lock:
            if self._closed:
                raise Cancelled(f"the stream was closed before {doing}", reason="LINK_CLOSED")
            self._users += 1
        try:
            yield self._socket
        except BlockingIOError:
            raise TimedOut(
                f"no byte moved for {self._no_progress_s} s while {doing}: the peer is stopped or the path is dead",
                reason="NO_PROGRESS",
                numbers={"no_progress_s": self._no_progress_s, "where": doing},
            ) from None
        except OSError as error:
            self._check(doing)
            raise Unavailable(f"the connection broke while {doing}: {error}", reason="PEER_GONE") from None
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            self._socket.close()

    def _check(self, doing: str) -> None:
        if self._closed:
            raise Cancelled(f"the stream was closed while {doing}", reason="LINK_CLOSED") from None

    def send(self, data: bytes | memoryview, doing: str) -> None:
        """All of `data`, or an error. SO_SNDTIMEO bounds each wait in which not one byte leaves."""
        with self._use(doing) as connected:
            connected.sendall(data)

    def receive(self, target: memoryview, doing: str) -> None:
        """Fill `target`, or an error. SO_RCVTIMEO bounds each wait in which not one byte comes."""
        got, wanted = 0, len(target)
        with self._use(doing) as connected:
            while got < wanted:
                with target[got:] as rest:
                    came = connected.recv_into(rest, wanted - got, socket.MSG_WAITALL)
                if not came:
                    self._check(doing)
                    raise Unavailable(
                        f"the peer closed the stream while {doing}, {got} of {wanted} bytes had come",
                        reason="PEER_GONE",
                        numbers={"received_bytes": got, "wanted_bytes": wanted},
                    )
                got += came

    def receive_header(self, doing: str) -> tuple[bytes, int, int]:
        """A header of fixed size: kind, number, size."""
        data = bytearray(_HEADER.size)
        with memoryview(data) as view:
            self.receive(view, doing)
        kind, number, size = _HEADER.unpack(data)
        return kind, number, size

    def close(self) -> None:
        """Wake every call inside; the last one out closes."""
        with self._lock:
            first, self._closed = not self._closed, True
            idle = not self._users
        if not first:
            return
        with suppress(OSError):  # the peer was first
            self._socket.shutdown(socket.SHUT_RDWR)
        if idle:
            self._socket.close()


class _Send:
    """The sending end."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._order = Order(stream.chunks)

    def begin(self, chunk: Chunk) -> None:
        self._order.begin(chunk, coded=False)
        self._stream.send(_HEADER.pack(_CHUNK, chunk.index, chunk.size_bytes), f"sending chunk {chunk.index}")

    def begin_coded(self, chunk: Chunk) -> None:
        self._order.begin(chunk, coded=True)
        self._stream.send(_HEADER.pack(_CODED, chunk.index, chunk.size_bytes), f"sending chunk {chunk.index}")

    def write(self, piece: memoryview, offset: int) -> None:
        chunk = self._order.next(offset, len(piece))
        self._stream.send(piece, f"sending chunk {chunk.index}")
        self._order.wrote(len(piece))

    def write_piece(self, piece: Piece, payload: Sequence[memoryview]) -> None:
        doing = f"sending chunk {self._order.next_piece(piece, payload).index}"
        sizes = (*piece.planes, 0, 0, 0, 0)[:4]
        head = _PIECE.pack(_PIECE_MAGIC, len(piece.planes), piece.offset, piece.size_bytes, *sizes)
        self._stream.send(head, doing)
        for part in payload:
            self._stream.send(part, doing)
        self._order.wrote(piece.size_bytes)

    def end(self, crc: int) -> None:
        self._stream.send(_TRAILER.pack(crc), f"sending chunk {self._order.end().index}")

    def finish(self) -> Sequence[int]:
        doing = "waiting for the receiver's checks"
        self._stream.send(_HEADER.pack(_END, 0, 0), doing)
        while True:
            kind, count, _ = self._stream.receive_header(doing)
            if kind == _BUSY:
                continue
            if kind != _ANSWER or count > len(self._stream.chunks):
                raise BadRequest(f"the receiver answered {kind!r} with {count} chunks", reason="BAD_ANSWER")
            data = bytearray(count * _INDEX_BYTES)
            with memoryview(data) as view:
                self._stream.receive(view, doing)
            return struct.unpack(f">{count}I", data)

    def close(self) -> None:
        self._stream.close()


class _Receive:
    """The receiving end."""

    def __init__(self, stream: _Stream, region: memoryview, traceparent: str) -> None:
        self.traceparent = traceparent
        self._stream = stream
        self._region = region
        self._decoder: Decoder | None = None

    def decode_with(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def next(self) -> Landed | None:
        kind, index, size = self._stream.receive_header("waiting for a chunk")
        if kind == _END:
            return None
        chunks = self._stream.chunks
        if kind not in (_CHUNK, _CODED) or index >= len(chunks) or chunks[index].size_bytes != size:
            raise BadRequest(
                f"the sender announced {kind!r}, chunk {index} of {size} bytes, which the plan does not have",
                reason="BAD_CHUNK",
                numbers={"chunk": index, "size_bytes": size},
            )
        chunk, doing = chunks[index], f"receiving chunk {index}"
        if kind == _CODED:
            self._receive_pieces(chunk, doing)
        else:
            self._receive(chunk.offset, size, doing)
        trailer = bytearray(_TRAILER.size)
        with memoryview(trailer) as view:
            self._stream.receive(view, doing)
        return Landed(chunk, _TRAILER.unpack(trailer)[0])

    def _receive(self, offset: int, size: int, doing: str) -> None:
        with self._region[offset : offset + size] as target:
            self._stream.receive(target, doing)

    def _receive_pieces(self, chunk: Chunk, doing: str) -> None:
        decoder = self._decoder
        if decoder is None:
            raise BadRequest(f"chunk {chunk.index} is coded, which the plan does not allow", reason="BAD_CHUNK")
        at, end = chunk.offset, chunk.offset + chunk.size_bytes
        head = bytearray(_PIECE.size)
        while at < end:
            with memoryview(head) as view:
                self._stream.receive(view, doing)
            piece = _piece_from(head)
            if piece.offset != at or at + piece.size_bytes > end:
                raise BadRequest(
                    f"the sender announced a piece of {piece.size_bytes} bytes at {piece.offset}, but {end - at} bytes "
                    f"at {at} are left of chunk {chunk.index}",
                    reason="BAD_PIECE",
                    numbers={"chunk": chunk.index, "offset": piece.offset, "size_bytes": piece.size_bytes},
                )
            if piece.planes:
                payload = decoder.buffer(piece.wire_bytes)
                self._stream.receive(payload, doing)
                decoder.decode(chunk, piece, payload)
            else:
                self._receive(at, piece.size_bytes, doing)
            at += piece.size_bytes

    def answer(self, wanted_again: Sequence[int]) -> None:
        count = len(wanted_again)
        self._stream.send(
            _HEADER.pack(_ANSWER, count, 0) + struct.pack(f">{count}I", *wanted_again), "answering the sender"
        )

    def busy(self) -> None:
        self._stream.send(_HEADER.pack(_BUSY, 0, 0), "answering the sender")

    def close(self) -> None:
        self._stream.close()


def _piece_from(head: bytearray) -> Piece:
    """A piece from its header. Raises BadRequest."""
    magic, count, offset, size, *planes = _PIECE.unpack(head)
    if magic != _PIECE_MAGIC or count > len(planes):
        raise BadRequest(f"the sender announced {magic!r} with {count} planes, which is no piece", reason="BAD_PIECE")
    return Piece(offset, size, tuple(planes[:count]))


class _Listener:
    """One move at the data port."""

    def __init__(self, port: DataPort, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> None:
        self.endpoint = port.endpoint
        self._region = region
        self._chunks = chunks
        self._no_progress_s = terms.no_progress_s
        self._arrivals: MoveListener = port.expect(terms)

    def accept(self) -> _Receive:
        connected, traceparent = self._arrivals.accept(self._no_progress_s)
        bound_waits(connected, self._no_progress_s)
        return _Receive(_Stream(connected, self._chunks, self._no_progress_s), self._region, traceparent)

    def close(self) -> None:
        self._arrivals.close()


class Tcp:
    """Moves over TCP, in and out of one data port."""

    name = "tcp"

    def __init__(self, data_listen: str, data_host: str = "", congestion: str = "", pace_Bps: int = 0) -> None:
        """`congestion` names the kernel's congestion control; empty leaves it as it is.

        `pace_Bps`: most bytes/s that the streams of one move send together; 0 for no bound.
        """
        self._congestion = congestion
        self._pace_Bps = pace_Bps
        self._port = DataPort(data_listen, data_host, congestion)

    def listen(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> _Listener:
        """See `worldline.transport.Transport`."""
        return _Listener(self._port, region, chunks, terms)

    def connect(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str, stream: int) -> _Send:
        """See `worldline.transport.Transport`."""
        connected = greet(endpoint, terms, stream, self._congestion)
        bound_waits(connected, terms.no_progress_s)
        if self._pace_Bps:
            pace(connected, max(1, self._pace_Bps // terms.streams))
        return _Send(_Stream(connected, chunks, terms.no_progress_s))

    def close(self) -> None:
        """See `worldline.transport.Transport`."""
        self._port.close()


def pace(connected: socket.socket, rate_Bps: int) -> None:
    """Have the kernel send at most `rate_Bps` bytes/s, headers included."""
    connected.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("@L", rate_Bps))


def bound_waits(connected: socket.socket, no_progress_s: float) -> None:
    """Have the kernel end each wait of a blocking call after `no_progress_s`."""
    connected.settimeout(None)
    bound_us = max(1, round(no_progress_s * 1e6))  # 0 would mean no bound
    bound = struct.pack("@ll", *divmod(bound_us, 1_000_000))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)

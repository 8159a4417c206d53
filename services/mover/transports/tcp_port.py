"""The TCP data port: one listening socket for all moves, and the greeting that lets a stream in.

A stream opens with a greeting of fixed size: nobody's length is trusted and no memory is taken before the token of a
move that is expected here was presented. Whoever does not greet in time or at all is closed without an answer.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
import uuid
from collections import deque
from contextlib import suppress

from worldline.errors import BadRequest, Cancelled, Exhausted, TimedOut, Unauthenticated, Unavailable
from worldline.transport import Terms

VERSION = 1
GREETING_S = 2.0
MAX_GREETING = 32

# Magic, version, stream, move id, token, W3C traceparent (55 characters, padded); two cache lines in all.
GREETING = struct.Struct(">8sHH16s32s64s4x")
MAGIC = b"WLDATA\r\n"
_WELCOME, _WRONG_TOKEN, _WRONG_VERSION, _WRONG_STREAM = b"\x01", b"\x02", b"\x03", b"\x04"


class MoveListener:
    """The streams of one move as they arrive."""

    def __init__(self, port: DataPort, terms: Terms) -> None:
        self.terms = terms
        self._port = port
        self._changed = threading.Condition()
        self._arrived: deque[tuple[socket.socket, str]] = deque()
        self._taken: set[int] = set()
        self._closed = False

    def reserve(self, stream: int) -> bool:
        """Called by the port for a stream that presented the token. False: it is not expected."""
        with self._changed:
            if self._closed or stream >= self.terms.streams or stream in self._taken:
                return False
            self._taken.add(stream)
            return True

    def deliver(self, connected: socket.socket, traceparent: str) -> bool:
        """Called by the port with a stream that was reserved and welcomed. False: too late."""
        with self._changed:
            if self._closed:
                return False
            self._arrived.append((connected, traceparent))
            self._changed.notify_all()
            return True

    def accept(self, timeout_s: float) -> tuple[socket.socket, str]:
        """The next stream and its traceparent. Raises TimedOut, or Cancelled after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._closed, timeout_s)
            if self._closed:
                raise Cancelled("the listener was closed", reason="LINK_CLOSED")
            if not self._arrived:
                raise TimedOut(
                    f"{len(self._taken)} of {self.terms.streams} streams came within {timeout_s} s",
                    reason="NO_PROGRESS",
                    numbers={"streams": self.terms.streams, "no_progress_s": timeout_s},
                )
            return self._arrived.popleft()

    def close(self) -> None:
        """Expect no more."""
        self._port.forget(self)
        with self._changed:
            self._closed = True
            waiting = list(self._arrived)
            self._arrived.clear()
            self._changed.notify_all()
        for connected, _ in waiting:
            connected.close()


class DataPort:
    """The listening socket. `endpoint` is host:port as peers are told."""

    def __init__(self, listen: str, host: str, congestion: str) -> None:
        """`listen` is host:port; `host` is advertised, the listening one if empty."""
        listen_host, _, port = listen.rpartition(":")
        self._socket = socket.create_server((listen_host, int(port)), backlog=128)
        if congestion:
            try:
                set_congestion(self._socket, congestion)
            except Exhausted:
                self._socket.close()
                raise
        self.endpoint = f"{host or listen_host}:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        self._expected: dict[bytes, MoveListener] = {}
        # Oldest first.
        self._greeting: dict[socket.socket, None] = {}
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="data-port", daemon=True)
        self._acceptor.start()

    def expect(self, terms: Terms) -> MoveListener:
        """Let the streams of a move in. Raises BadRequest if it is expected already."""
        key = uuid.UUID(terms.move_id).bytes
        listener = MoveListener(self, terms)
        with self._lock:
            if self._closed or key in self._expected:
                raise BadRequest(f"move {terms.move_id} is expected already", reason="MOVE_EXPECTED")
            self._expected[key] = listener
        return listener

    def forget(self, listener: MoveListener) -> None:
        """Let no more streams of a move in."""
        key = uuid.UUID(listener.terms.move_id).bytes
        with self._lock:
            if self._expected.get(key) is listener:
                del self._expected[key]

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            greeting, expected = list(self._greeting), list(self._expected.values())
        self._socket.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._socket.close()
        for connected in greeting:
            _shut(connected)
        for listener in expected:
            listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of descriptors, or the peer was gone again
                continue
            # Who has been silent longest makes room: strangers that say nothing cannot keep a move's streams out.
            with self._lock:
                oldest = next(iter(self._greeting)) if len(self._greeting) >= MAX_GREETING else None
                if oldest is not None:
                    del self._greeting[oldest]
                    _shut(oldest)
                self._greeting[connected] = None
            threading.Thread(target=self._greet, args=(connected,), name="data-greeting", daemon=True).start()

    def _greet(self, connected: socket.socket) -> None:
        kept = False
        try:
            kept = self._let_in(connected)
        except OSError:
            pass  # it went away or took too long
        finally:
            with self._lock:
                self._greeting.pop(connected, None)
            if not kept:
                connected.close()

    def _let_in(self, connected: socket.socket) -> bool:
        greeting = _read(connected, GREETING.size, time.monotonic() + GREETING_S)
        magic, version, stream, move, token, trace = GREETING.unpack(greeting)
        if magic != MAGIC:
            return False
        if version != VERSION:
            connected.sendall(_WRONG_VERSION)
            return False
        with self._lock:
            listener = self._expected.get(move)
        # An unknown move is compared with a secret as well, so that the time taken does not tell which moves exist.
        secret = listener.terms.token if listener else secrets.token_bytes(len(token))
        if not hmac.compare_digest(secret, token) or listener is None:
            connected.sendall(_WRONG_TOKEN)
            return False
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not listener.reserve(stream):
            connected.sendall(_WRONG_STREAM)
            return False
        # The welcome leaves before the receiver may write answers on this stream.
        connected.sendall(_WELCOME)
        return listener.deliver(connected, trace.rstrip(b"\0").decode("ascii", "replace"))


def greet(endpoint: str, terms: Terms, stream: int, congestion: str) -> socket.socket:
    """Connect to a data port and present the move's token.

    Raises:
        Unauthenticated: the token is not that of a move that is expected there.
        BadRequest: another version, or a stream that is not expected.
        Unavailable: nobody answers there within `GREETING_S`.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise BadRequest(f"{endpoint[:64]!r} is not host:port", reason="BAD_ENDPOINT")
    deadline = time.monotonic() + min(GREETING_S, terms.no_progress_s)
    try:
        connected = _dial(host, int(port), congestion, deadline)
    except OSError as error:
        raise Unavailable(
            f"the data port {endpoint} cannot be reached: {error}", reason="DATA_PORT_UNREACHABLE", retry_after_s=1.0
        ) from None
    try:
        move = uuid.UUID(terms.move_id).bytes
        trace = terms.traceparent.encode()[:64].ljust(64, b"\0")
        connected.sendall(GREETING.pack(MAGIC, VERSION, stream, move, terms.token, trace))
        _welcomed(_read(connected, 1, deadline), endpoint, terms.move_id, stream)
    except OSError as error:
        connected.close()
        raise Unavailable(
            f"the data port {endpoint} did not answer the greeting: {error}",
            reason="DATA_PORT_UNREACHABLE",
            retry_after_s=1.0,
        ) from None
    except BaseException:
        connected.close()
        raise
    return connected


def _dial(host: str, port: int, congestion: str, deadline: float) -> socket.socket:
    """Connect to the first address that answers by `deadline` (monotonic seconds). Raises OSError, Exhausted."""
    failed = OSError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(max(0.001, deadline - time.monotonic()))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Before the handshake: a socket that began with bbr stays paced whatever is chosen later.
            if congestion:
                set_congestion(connected, congestion)
            connected.connect(address)
            return connected
        except OSError as error:
            connected.close()
            failed = error
        except BaseException:
            connected.close()
            raise
    raise failed


def _welcomed(answer: bytes, endpoint: str, move_id: str, stream: int) -> None:
    if answer == _WRONG_TOKEN:
        raise Unauthenticated(f"{endpoint} does not know this token for move {move_id}", reason="WRONG_TOKEN")
    if answer == _WRONG_VERSION:
        raise BadRequest(f"{endpoint} does not speak version {VERSION} of the data protocol", reason="WRONG_VERSION")
    if answer == _WRONG_STREAM:
        raise BadRequest(f"{endpoint} does not expect stream {stream} of move {move_id}", reason="BAD_STREAM")
    if answer != _WELCOME:
        raise BadRequest(f"{endpoint} is not a data port of Worldline", reason="WRONG_PEER")


def set_congestion(connected: socket.socket, name: str) -> None:
    """Choose the congestion control. Raises Exhausted if this kernel does not let us."""
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        raise Exhausted(
            f"congestion control {name[:16]!r} is not available here ({error}); leave the setting empty",
            reason="NO_SUCH_CONGESTION_CONTROL",
        ) from None


def _read(connected: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly `size` bytes by `deadline` (monotonic seconds). Raises OSError."""
    data = b""
    while len(data) < size:
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        came = connected.recv(size - len(data))
        if not came:
            raise ConnectionResetError("the peer closed")
        data += came
        if time.monotonic() > deadline:
            raise TimeoutError("too slow")
    return data


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # gone already
        connected.shutdown(socket.SHUT_RDWR)

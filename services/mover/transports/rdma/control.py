"""The TCP connection beside a queue pair: signs of progress one way, answers the other, and word of a peer's end.

A peer's death reaches us here at once; through the queue pair it would take all of its retries.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress

from mover.transports.tcp import bound_waits
from worldline.errors import BadRequest, TimedOut, Unavailable

# Kind, count of the indexes that follow.
_HEADER = struct.Struct(">4sI")
_PROGRESS, _ANSWER, _BUSY, _TAKEN = b"WRPR", b"WRAN", b"WRBZ", b"WRTK"
_INDEX_BYTES = 4
_READ_BYTES = 1 << 16


class Control:
    """One connection. One thread at a time, but for `shut`. `taken` counts coded pieces that left their places."""

    def __init__(self, connected: socket.socket, chunks: int, no_progress_s: float) -> None:
        bound_waits(connected, no_progress_s)
        self.heard = 0
        self.taken = 0
        self.over = False
        self.answer: tuple[int, ...] | None = None
        self._socket = connected
        self._chunks = chunks
        self._no_progress_s = no_progress_s
        self._unread = bytearray()
        self._poller = select.poll()
        self._poller.register(connected, select.POLLIN)

    @property
    def descriptor(self) -> int:
        """Readable when the peer has said something or is gone."""
        return self._socket.fileno()

    def progress(self) -> None:
        """Tell the receiver that bytes are being acknowledged."""
        self._send(_HEADER.pack(_PROGRESS, 0))

    def busy(self) -> None:
        """Tell the sender that the receiver is at work."""
        self._send(_HEADER.pack(_BUSY, 0))

    def send_taken(self) -> None:
        """Tell the sender that one coded piece was taken out of its place."""
        self._send(_HEADER.pack(_TAKEN, 0))

    def send_answer(self, wanted_again: tuple[int, ...]) -> None:
        """Answer the sender's round."""
        count = len(wanted_again)
        self._send(_HEADER.pack(_ANSWER, count) + struct.pack(f">{count}I", *wanted_again))

    def take_answer(self) -> tuple[int, ...]:
        """The answer that is there; the next one is of the next round."""
        answer, self.answer = self.answer or (), None
        return answer

    def hear(self, wait_ms: int) -> None:
        """Read once, waiting for it up to `wait_ms`; `over` is set when the peer is gone.

        Not until there is no more: a peer that talks without end would hold the caller here.

        Raises:
            BadRequest: what came makes no sense.
        """
        if self.over or not self._poller.poll(wait_ms):
            return
        try:
            came = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        if not came:
            self.over = True
            return
        self._unread += came
        self._take()

    def _take(self) -> None:
        while len(self._unread) >= _HEADER.size:
            kind, count = _HEADER.unpack_from(self._unread)
            if kind not in (_PROGRESS, _ANSWER, _BUSY, _TAKEN) or count > self._chunks:
                raise BadRequest(f"the peer said {kind!r} with {count} chunks", reason="BAD_ANSWER")
            size = _HEADER.size + count * _INDEX_BYTES
            if len(self._unread) < size:
                return
            if kind == _ANSWER:
                if self.answer is not None:
                    raise BadRequest("the peer answered one round twice", reason="BAD_ANSWER")
                self.answer = struct.unpack_from(f">{count}I", self._unread, _HEADER.size)
            del self._unread[:size]
            self.taken += kind == _TAKEN
            self.heard += 1

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except BlockingIOError:
            raise TimedOut(
                f"the peer took nothing for {self._no_progress_s} s: it is stopped or the path is dead",
                reason="NO_PROGRESS",
                numbers={"no_progress_s": self._no_progress_s},
            ) from None
        except OSError as error:
            raise Unavailable(f"the peer is gone: {error}", reason="PEER_GONE") from None

    def shut(self) -> None:
        """Wake whoever waits here, and tell the peer. Any thread."""
        with suppress(OSError):  # the peer was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close."""
        self._socket.close()

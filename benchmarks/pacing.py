"""A path of a given rate, in user space: `python -m benchmarks.pacing RATE_BPS LISTEN=TARGET ...`.

Connections to each LISTEN (host:port) are carried on to its TARGET. All bytes on their way to targets share the rate;
what comes back is not paced. Ends with its parent. Nothing is copied through Python: pieces go from socket to socket by
way of a pipe (splice).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

PIECE_BYTES = 256 << 10
_PR_SET_PDEATHSIG = 1
# Sleeps end late; what is left of a wait is spun away.
_SPIN_S = 200e-6


class Pace:
    """Bytes go at `rate_Bps`, in the order in which they ask."""

    def __init__(self, rate_Bps: float) -> None:
        self._rate_Bps = rate_Bps
        self._free_at_s = 0.0
        self._lock = threading.Lock()

    def wait(self, size_bytes: int) -> None:
        """Until the bytes may go."""
        with self._lock:
            at_s = max(time.perf_counter(), self._free_at_s)
            self._free_at_s = at_s + size_bytes / self._rate_Bps
        while (left_s := at_s - time.perf_counter()) > 0:
            if left_s > _SPIN_S:
                time.sleep(left_s - _SPIN_S)


def _carry(source: socket.socket, target: socket.socket, pace: Pace | None) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    try:
        while came := os.splice(source.fileno(), writer, PIECE_BYTES):
            if pace is not None:
                pace.wait(came)
            while came:
                came -= os.splice(reader, target.fileno(), came)
    except OSError:
        pass  # an end closed: so does the other
    finally:
        os.close(reader)
        os.close(writer)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, target: tuple[str, int], pace: Pace) -> None:
    while True:
        came, _ = listening.accept()
        onward = socket.create_connection(target)
        for end in (came, onward):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((came, onward, pace), (onward, came, None)):
            threading.Thread(target=_carry, args=ends, daemon=True).start()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Serve until killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pace = Pace(float(sys.argv[1]))
    for pair in sys.argv[2:]:
        listen, _, target = pair.partition("=")
        listening = socket.create_server(_address(listen), backlog=64)
        threading.Thread(target=_serve, args=(listening, _address(target), pace), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

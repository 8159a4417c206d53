"""Regions for movers: a one-time ticket, presented at a Unix socket, is answered with the memory's descriptor.

A mover connects, sends the 32 bytes, and gets one byte 0x01 with the descriptor (SCM_RIGHTS), or 0x00 and the end.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from worldline import telemetry
from worldline.errors import BadRequest, Internal, NotFound, WorldlineError
from worldline.move import TOKEN_BYTES, new_token

ASK_TIMEOUT_S = 2.0
ACCEPT_PAUSE_S = 0.1
MAX_ASKING = 16
MAX_TICKETS = 1024
MAX_SOCKET_PATH = 107
_PROBE = "probe"
_log = telemetry.log("regions")

OpenRegion = Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Ticket:
    key: str
    open_region: OpenRegion


class Regions:
    """Tickets and the socket at which they are presented."""

    def __init__(self, path: Path) -> None:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise BadRequest(
                f"{path} is over {MAX_SOCKET_PATH} bytes, which no Unix socket can have: choose a shorter regions_dir",
                violations={"regions_dir": "too long"},
            )
        self.path = path
        self._tickets: dict[bytes, _Ticket] = {}
        self._lock = threading.Lock()
        self._asking = threading.BoundedSemaphore(MAX_ASKING)
        self._pool = ThreadPoolExecutor(MAX_ASKING, thread_name_prefix="regions")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="regions-accept", daemon=True)

    def start(self) -> None:
        """Listen, and pass a probe region to ourselves and back. Raises Internal if it does not come back."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Left behind by a process that was killed: this one holds the host's lock.
        self.path.unlink(missing_ok=True)
        self._socket.bind(os.fspath(self.path))
        self.path.chmod(0o660)
        self._socket.listen(MAX_ASKING)
        self._thread.start()
        self._probe()

    def issue(self, key: str, open_region: OpenRegion) -> bytes:
        """A ticket for the region that `open_region` gives a new descriptor of.

        One a `key` (its move): a newer one replaces the older. `open_region` raises our error if the region is gone.
        """
        ticket = new_token()
        with self._lock:
            self._forget(key)
            while len(self._tickets) >= MAX_TICKETS:
                self._tickets.pop(next(iter(self._tickets)))
            self._tickets[hashlib.sha256(ticket).digest()] = _Ticket(key, open_region)
        return ticket

    def revoke(self, key: str) -> None:
        """The move is over: its ticket is worth nothing."""
        with self._lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        for digest in [digest for digest, ticket in self._tickets.items() if ticket.key == key]:
            del self._tickets[digest]

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._socket.accept()
            except OSError as error:
                if self._closing.wait(ACCEPT_PAUSE_S):
                    return
                _log.error("regions cannot be asked for", error=str(error))
                continue
            if not self._asking.acquire(blocking=False):
                asking.close()
                continue
            self._pool.submit(self._answer, asking)

    def _answer(self, asking: socket.socket) -> None:
        try:
            with asking:
                asking.settimeout(ASK_TIMEOUT_S)
                fd = self._redeem(_receive(asking))
                if fd is None:
                    asking.sendall(b"\x00")
                    return
                try:
                    socket.send_fds(asking, [b"\x01"], [fd])
                finally:
                    os.close(fd)
        except OSError as error:
            _log.warning("a region was not fetched", error=str(error))
        finally:
            self._asking.release()

    def _redeem(self, presented: bytes) -> int | None:
        with self._lock:
            ticket = self._tickets.pop(hashlib.sha256(presented).digest(), None)
        if ticket is None:
            return None
        try:
            return ticket.open_region()
        except WorldlineError:
            return None

    def _probe(self) -> None:
        content = os.urandom(mmap.PAGESIZE)
        fd = os.memfd_create("worldline-probe", os.MFD_CLOEXEC)
        try:
            os.write(fd, content)
            ticket = self.issue(_PROBE, lambda: os.dup(fd))
            fetched = fetch(self.path, ticket)
            try:
                with mmap.mmap(fetched, mmap.PAGESIZE, prot=mmap.PROT_READ) as mapped:
                    if mapped[:] != content:
                        raise Internal("the probe region did not come back as it was sent")
            finally:
                os.close(fetched)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Stop, and remove the socket."""
        self._closing.set()
        if self._thread.is_alive():
            # Wakes the accept, which a close alone does not.
            self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self.path.unlink(missing_ok=True)
        self._socket.close()
        self._pool.shutdown(wait=True)


def _receive(asking: socket.socket) -> bytes:
    presented = b""
    while len(presented) < TOKEN_BYTES:
        piece = asking.recv(TOKEN_BYTES - len(presented))
        if not piece:
            break
        presented += piece
    return presented


def fetch(path: Path, ticket: bytes) -> int:
    """Present a ticket. Returns the descriptor. Raises NotFound if the ticket is refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ASK_TIMEOUT_S)
        asking.connect(os.fspath(path))
        asking.sendall(ticket)
        answer, fds, _, _ = socket.recv_fds(asking, 1, 1)
        if answer != b"\x01" or not fds:
            raise NotFound("the region ticket was refused: it is unknown, used or its move is over")
        return fds[0]

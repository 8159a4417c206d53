"""Placement IN_PATH: each chunk is checked on its receive thread, before that thread reads the next byte.

Simple, and free while the receive thread waits for the wire anyway; with several senders at one receiver it is what
holds them up (paper §6.5). For comparison, and for machines whose only spare core is the receive thread's.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from worldline.errors import Cancelled
from worldline.transport import Landed

if TYPE_CHECKING:
    from mover.verification import Checks


class InPath:
    """See `mover.verification.Lane`."""

    def __init__(self, checks: Checks, threads: int) -> None:
        """It has no threads of its own, whatever `threads` says."""
        self._checks = checks
        self._closed = threading.Event()

    def landed(self, landed: Landed) -> None:
        """See `Lane`: returns when the chunk is checked."""
        self._require_open()
        self._checks.expect(landed)
        self._checks.check(landed.chunk)

    def drain(self) -> None:
        """See `Lane`: nothing is left to check."""
        self._require_open()

    def close(self) -> None:
        """See `Lane`."""
        self._closed.set()

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Cancelled("the verification lane was closed", reason="LINK_CLOSED")

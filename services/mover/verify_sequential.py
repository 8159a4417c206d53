"""Placement SEQUENTIAL: nothing is checked before the last byte; then all, on as many threads as the lane has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mover.parallel import Together
from worldline.errors import Cancelled
from worldline.plan import Chunk
from worldline.transport import Landed

if TYPE_CHECKING:
    from mover.verification import Checks

_TICK_S = 0.1


class Sequential:
    """See `mover.verification.Lane`."""

    def __init__(self, checks: Checks, threads: int) -> None:
        self._checks = checks
        self._count = threads
        self._lock = threading.Lock()
        self._landed: list[Chunk] = []
        self._closed = threading.Event()

    def landed(self, landed: Landed) -> None:
        """See `Lane`."""
        self._checks.expect(landed)
        with self._lock:
            self._landed.append(landed.chunk)

    def drain(self) -> None:
        """See `Lane`."""
        with self._lock:
            chunks, self._landed = iter(self._landed), []
        Together([lambda: self._check(chunks)] * self._count, self._closed.set, "verify").wait(_TICK_S, lambda: None)
        if self._closed.is_set():
            raise Cancelled("the verification lane was closed", reason="LINK_CLOSED")

    def _check(self, chunks: Iterator[Chunk]) -> None:
        while not self._closed.is_set():
            with self._lock:
                chunk = next(chunks, None)
            if chunk is None:
                return
            self._checks.check(chunk)

    def close(self) -> None:
        """See `Lane`."""
        self._closed.set()

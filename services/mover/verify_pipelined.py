"""Placement PIPELINED: chunks are checked on the lane's own threads while later ones arrive.

A receive thread never waits for the lane: what waits is a reference to a chunk that lies in the slot already, and there
are no more of them than the plan has chunks.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from worldline.errors import Cancelled
from worldline.transport import Landed

if TYPE_CHECKING:
    from mover.verification import Checks


class Pipelined:
    """See `mover.verification.Lane`."""

    def __init__(self, checks: Checks, threads: int) -> None:
        self._checks = checks
        self._changed = threading.Condition()
        self._waiting: deque[Landed] = deque()
        self._at_work = 0
        self._closed = False
        self._failed: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"verify-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def landed(self, landed: Landed) -> None:
        """See `Lane`."""
        self._checks.expect(landed)
        with self._changed:
            self._require_open()
            self._waiting.append(landed)
            self._changed.notify_all()

    def drain(self) -> None:
        """See `Lane`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._failed or not (self._waiting or self._at_work))
            self._require_open()

    def close(self) -> None:
        """See `Lane`."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _require_open(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise Cancelled("the verification lane was closed", reason="LINK_CLOSED")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                landed = self._waiting.popleft()
                self._at_work += 1
            try:
                self._checks.check(landed.chunk)
            except Exception as error:
                self._failed = error
            finally:
                with self._changed:
                    self._at_work -= 1
                    self._changed.notify_all()

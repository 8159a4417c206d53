"""An injected clock: time passes only when a test says so."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs the time takes instead of `time`."""

    def now(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""


class SystemClock:
    """The real one, monotonic."""

    def now(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


class ManualClock:
    """Stands still but for `sleep` and `advance`. Safe from any thread."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._lock = threading.Lock()

    def now(self) -> float:
        """See `Clock`."""
        with self._lock:
            return self._now_s

    def sleep(self, seconds: float) -> None:
        """Advances by `seconds` at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Raises ValueError if they are negative."""
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        with self._lock:
            self._now_s += seconds

"""Whose turn it is at a receiver: who was told to wait comes before moves of a schedule that had not begun."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds that a caller may be late for its turn.
_LATE_S = 1.0


class Turns:
    """Callers with a DEFER in hand, by the engine host that they wait for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends_s: dict[tuple[str, str], float] = {}  # (host, session) -> when its turn is over

    def deferred(self, host_id: str, session_id: str, retry_after_s: float) -> None:
        """The mover of a session was told to ask for this host again in `retry_after_s`."""
        with self._lock:
            self._ends_s[host_id, session_id] = self._clock() + retry_after_s + _LATE_S

    def settled(self, session_id: str) -> None:
        """The session was admitted or refused: it waits no more."""
        with self._lock:
            for key in [key for key in self._ends_s if key[1] == session_id]:
                del self._ends_s[key]

    def taken_s(self, host_id: str) -> float:
        """Seconds for which the host's next place is somebody's; 0 if it is free for a schedule."""
        with self._lock:
            now_s = self._clock()
            self._ends_s = {key: end_s for key, end_s in self._ends_s.items() if end_s > now_s}
            return max((end_s - now_s for key, end_s in self._ends_s.items() if key[0] == host_id), default=0.0)

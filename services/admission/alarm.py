"""One thread that runs small actions at their time, so that no move needs to poll for its own deadlines."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count


class Alarm:
    """Actions by time. They run on the alarm's thread and must be quick."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Run `action` in `seconds` unless the returned function is called before."""
        number = next(self._numbers)
        entry = (time.monotonic() + seconds, number, action)
        with self._changed:
            heapq.heappush(self._due, entry)
            self._changed.notify()

        def cancel() -> None:
            with self._changed:
                if entry in self._due:
                    self._due.remove(entry)
                    heapq.heapify(self._due)

        return cancel

    def stop(self) -> None:
        """End the thread; what is not due yet never runs."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                _, _, action = heapq.heappop(self._due)
            action()

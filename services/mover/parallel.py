"""Some functions at once, each on its own thread: the first failure stops the others and is what is raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class Together:
    """Functions that run until all have returned or one has failed.

    `stop` is called once when one fails; it must make the others return soon.
    """

    def __init__(self, functions: Sequence[Callable[[], None]], stop: Callable[[], None], name: str) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._first: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(function,), name=f"{name}-{number}", daemon=True)
            for number, function in enumerate(functions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            with self._lock:
                first, self._first = self._first is None, self._first or error
            if first:
                self._stop()

    def wait(self, tick_s: float, tick: Callable[[], None]) -> None:
        """Return when all are over, or raise the first failure. `tick` is called every `tick_s` meanwhile."""
        try:
            for thread in self._threads:
                while True:
                    thread.join(tick_s)
                    if not thread.is_alive():
                        break
                    tick()
        except BaseException:
            self._stop()
            raise
        finally:
            for thread in self._threads:
                thread.join()
        if self._first is not None:
            raise self._first

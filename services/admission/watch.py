"""Following moves: each watcher gets the newest record whenever it changed, many small changes as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from admission.record import MoveRecord
from worldline.errors import Exhausted, Unavailable

# Progress alone is passed on at most this often, in seconds; a new phase or stage at once.
_COALESCE_S = 0.1


class Feed:
    """Wakes the watchers of moves. `limit` watchers at most: each holds a server thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._watchers = 0
        self._stopped = False

    def changed(self) -> None:
        """Some move, or some watcher's own state, changed."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End all watchers."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def follow(self, read: Callable[[], MoveRecord], active: Callable[[], bool]) -> Iterator[MoveRecord]:
        """The record now and after each change, until it is closed or `active` is false.

        Raises:
            Exhausted: too many watchers. Unavailable: admission stops.
        """
        with self._changed:
            if self._watchers >= self._limit:
                raise Exhausted(
                    f"{self._watchers} watchers are being served, at most {self._limit} can be; poll GetMove instead",
                    reason="TOO_MANY_WATCHERS",
                    numbers={"watchers": self._watchers, "limit": self._limit},
                    retry_after_s=1.0,
                )
            self._watchers += 1
        try:
            yield from self._follow(read, active)
        finally:
            with self._changed:
                self._watchers -= 1

    def _follow(self, read: Callable[[], MoveRecord], active: Callable[[], bool]) -> Iterator[MoveRecord]:
        last = read()
        yield last
        while not last.phase.closed and self._wait(last, read, active):
            last = read()
            yield last

    def _wait(self, last: MoveRecord, read: Callable[[], MoveRecord], active: Callable[[], bool]) -> bool:
        """Until there is something to tell after `last`; false if nobody listens any more."""
        coalesced_s = time.monotonic() + _COALESCE_S
        with self._changed:
            self._changed.wait_for(lambda: self._over(active) or read() is not last)
            # What a person waits for is passed on at once, the rest in one.
            self._changed.wait_for(
                lambda: self._over(active) or _news(read()) != _news(last), coalesced_s - time.monotonic()
            )
            if self._stopped:
                raise Unavailable("admission is stopping; watch again when it is back", retry_after_s=1.0)
        return active()

    def _over(self, active: Callable[[], bool]) -> bool:
        return self._stopped or not active()


def _news(record: MoveRecord) -> tuple[int, str, bool]:
    return int(record.phase), record.stage, record.stalled

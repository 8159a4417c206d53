"""Following moves: each watcher gets the newest record whenever it changed, many small changes as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from admission.record import MoveRecord
from admission.schedule import Schedule, ScheduleState
from worldline.errors import Exhausted, Unavailable

# Progress alone is passed on at most this often, in seconds; a new phase or stage at once.
_COALESCE_S = 0.1


Followed = TypeVar("Followed")


@dataclass(frozen=True, slots=True)
class Subject(Generic[Followed]):
    """What is followed: its newest value, whether that is its last, and what of it is passed on at once."""

    read: Callable[[], Followed]
    closed: Callable[[Followed], bool]
    news: Callable[[Followed], Hashable]


def of_move(read: Callable[[], MoveRecord]) -> Subject[MoveRecord]:
    """A move: its phase, stage and stalls are news, its bytes are not."""
    return Subject(
        read, lambda record: record.phase.closed, lambda record: (int(record.phase), record.stage, record.stalled)
    )


def of_schedule(read: Callable[[], Schedule]) -> Subject[Schedule]:
    """A schedule: everything of it is news."""
    return Subject(read, lambda schedule: schedule.row.state is not ScheduleState.RUNNING, lambda schedule: schedule)


class Feed:
    """Wakes the watchers of moves and schedules. `limit` watchers at most: each holds a server thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._watchers = 0
        self._stopped = False

    def changed(self) -> None:
        """Some move or schedule, or some watcher's own state, changed."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Until the condition holds, looked at whenever something changed; at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or condition(), timeout_s)

    def stop(self) -> None:
        """End all watchers."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def follow(self, subject: Subject[Followed], active: Callable[[], bool]) -> Iterator[Followed]:
        """Its value now and after each change, until it is closed or `active` is false.

        Raises:
            Exhausted: too many watchers. Unavailable: admission stops.
        """
        with self._changed:
            if self._watchers >= self._limit:
                raise Exhausted(
                    f"{self._watchers} watchers are being served, at most {self._limit} can be; poll instead",
                    reason="TOO_MANY_WATCHERS",
                    numbers={"watchers": self._watchers, "limit": self._limit},
                    retry_after_s=1.0,
                )
            self._watchers += 1
        try:
            yield from self._follow(subject, active)
        finally:
            with self._changed:
                self._watchers -= 1

    def _follow(self, subject: Subject[Followed], active: Callable[[], bool]) -> Iterator[Followed]:
        last = subject.read()
        yield last
        while not subject.closed(last) and self._wait(last, subject, active):
            last = subject.read()
            yield last

    def _wait(self, last: Followed, subject: Subject[Followed], active: Callable[[], bool]) -> bool:
        """Until there is something to tell after `last`; false if nobody listens any more."""
        coalesced_s = time.monotonic() + _COALESCE_S
        with self._changed:
            self._changed.wait_for(lambda: self._over(active) or subject.read() is not last)
            # What a person waits for is passed on at once, the rest in one.
            self._changed.wait_for(
                lambda: self._over(active) or subject.news(subject.read()) != subject.news(last),
                coalesced_s - time.monotonic(),
            )
            if self._stopped:
                raise Unavailable("admission is stopping; watch again when it is back", retry_after_s=1.0)
        return active()

    def _over(self, active: Callable[[], bool]) -> bool:
        return self._stopped or not active()

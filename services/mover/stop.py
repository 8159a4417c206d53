"""Why a move must end: told once, by anybody, heard at every wait. And the watch that tells it when time runs out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from worldline.errors import TimedOut, WorldlineError


class Stop:
    """The first reason wins; every wait of the move wakes and raises it."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._lock = threading.Lock()
        self._error: WorldlineError | None = None
        self._wakers: list[Callable[[], object]] = []

    def tell(self, error: WorldlineError) -> None:
        """End the move for this reason."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            self._told.set()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    @property
    def told(self) -> bool:
        """Whether the move must end."""
        return self._told.is_set()

    def check(self) -> None:
        """Raise the reason, if there is one."""
        if self._error is not None:
            raise self._error

    def sleep(self, seconds: float) -> None:
        """Wait, unless the move must end: then raise why."""
        self._told.wait(seconds)
        self.check()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` from another thread if the move must end while this block waits; then raise the reason."""
        with self._lock:
            self._wakers.append(wake)
        try:
            self.check()
            yield
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                self._wakers.remove(wake)


class Watch:
    """Tells a `Stop` when somebody has not been heard for too long, or when the deadline has passed."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._silences: dict[str, tuple[float, float]] = {}
        self._deadline: tuple[float, Callable[[], TimedOut]] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def expect(self, who: str, within_s: float) -> None:
        """From now on `who` must be heard at least every `within_s`."""
        with self._changed:
            self._silences[who] = (time.monotonic(), within_s)
            self._changed.notify_all()

    def heard(self, who: str) -> None:
        """`who` was heard. Nothing if it is not expected to be."""
        with self._changed:
            if who in self._silences:
                self._silences[who] = (time.monotonic(), self._silences[who][1])

    def forget(self, who: str) -> None:
        """`who` may be silent."""
        with self._changed:
            self._silences.pop(who, None)

    @contextmanager
    def during(self, who: str, within_s: float) -> Iterator[None]:
        """`who` must be heard at least every `within_s` inside this block."""
        self.expect(who, within_s)
        try:
            yield
        finally:
            self.forget(who)

    def end_by(self, at: float, error: Callable[[], TimedOut]) -> None:
        """Tell `error()` at `at` (monotonic seconds)."""
        with self._changed:
            self._deadline = (at, error)
            self._changed.notify_all()

    def close(self) -> None:
        """Watch no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (error := self._next()) is not None:
            self._stop.tell(error)
            with self._changed:
                self._changed.wait_for(lambda: self._closed)

    def _next(self) -> TimedOut | None:
        """Wait for the first bound to be broken; None when closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._deadline is not None and now >= self._deadline[0]:
                    return self._deadline[1]()
                for who, (heard_at, within_s) in self._silences.items():
                    if now - heard_at >= within_s:
                        return _silent(who, within_s)
                ends = [heard_at + within_s for heard_at, within_s in self._silences.values()]
                if self._deadline is not None:
                    ends.append(self._deadline[0])
                self._changed.wait(min(ends) - now if ends else None)
        return None


def _silent(who: str, within_s: float) -> TimedOut:
    return TimedOut(
        f"the {who} was not heard for {within_s} s: it is stopped or cut off; the move was given up",
        reason="NO_PROGRESS",
        numbers={"no_progress_s": within_s, "where": who},
    )


def deadline_passed(what: str, seconds: float, stage: str) -> TimedOut:
    """The error for a bound of the plan, counted from the freeze."""
    return TimedOut(
        f"{what} of {seconds} s from the freeze passed in stage {stage}; the move was given up",
        reason="DEADLINE_EXCEEDED",
        numbers={what: seconds, "stage": stage},
    )

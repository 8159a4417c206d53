"""Moves in flight at this mover, going out and coming in: each once, a bounded number, all ended when it drains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mover.stop import Stop
from worldline.errors import Exhausted, Owned, Unavailable

_RETRY_S = 1.0


class Flights:
    """Every move in flight, by direction and id."""

    def __init__(self, max_receives: int) -> None:
        self._max_receives = max_receives
        self._lock = threading.Condition()
        self._out: dict[str, Stop] = {}
        self._in: dict[str, Stop] = {}
        self._draining = False

    @contextmanager
    def out(self, move_id: str, stop: Stop) -> Iterator[None]:
        """A move that leaves. Raises Owned if it is in flight already, Unavailable while draining."""
        with self._claimed(self._out, move_id, stop):
            yield

    @contextmanager
    def incoming(self, move_id: str, stop: Stop) -> Iterator[None]:
        """A move that arrives. Raises also Exhausted if there are too many."""
        with self._claimed(self._in, move_id, stop, self._max_receives):
            yield

    def ids(self) -> list[str]:
        """Every move in flight, once."""
        with self._lock:
            return sorted({*self._out, *self._in})

    def drain(self, timeout_s: float) -> None:
        """Take no more moves, end those there are, and wait for them."""
        with self._lock:
            self._draining = True
            stops = [*self._out.values(), *self._in.values()]
        for stop in stops:
            stop.tell(_draining())
        with self._lock:
            self._lock.wait_for(lambda: not (self._out or self._in), timeout_s)

    @contextmanager
    def _claimed(self, table: dict[str, Stop], move_id: str, stop: Stop, limit: int | None = None) -> Iterator[None]:
        with self._lock:
            if self._draining:
                raise _draining()
            if move_id in table:
                raise Owned(
                    f"move {move_id} is in flight here already; wait for its end",
                    reason="MOVE_IN_FLIGHT",
                    resource=("move", move_id),
                )
            if limit is not None and len(table) >= limit:
                raise Exhausted(
                    f"{len(table)} moves come in here, which is the most; ask again in {_RETRY_S} s",
                    reason="RECEIVERS_BUSY",
                    numbers={"receives": len(table), "max_receives": limit},
                    retry_after_s=_RETRY_S,
                )
            table[move_id] = stop
        try:
            yield
        finally:
            with self._lock:
                del table[move_id]
                self._lock.notify_all()


def _draining() -> Unavailable:
    return Unavailable("this mover is draining; its moves were given up", reason="DRAINING", retry_after_s=_RETRY_S)

"""A buffer while it is filled: one thread fills it from its start on, others use what is there already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from worldline.codec.parts import Part, carried_bytes
from worldline.errors import BadRequest, Cancelled, WorldlineError


class Filling:
    """How many bytes are there, from the buffer's start on without a gap; how many there will be, once that is known;
    and the coded parts that they are, if they are coded. Any thread.
    """

    def __init__(self, limit_bytes: int, *, most_parts: int = 0) -> None:
        """Of at most `limit_bytes` and `most_parts`, none of which is there yet."""
        self._limit_bytes = limit_bytes
        self._most_parts = most_parts
        self._changed = threading.Condition()
        self._filled_bytes = 0
        self._total_bytes: int | None = None
        self._parts: list[Part] = []
        self._stopped: WorldlineError | None = None

    def advance(self, filled_bytes: int, parts: Sequence[Part] = (), *, last: bool = False) -> None:
        """So much is there; with `last`, nothing more will be.

        Raises:
            BadRequest: less than before, more than there can be, or something after the last.
        """
        with self._changed:
            limit_bytes = self._limit_bytes if self._total_bytes is None else self._total_bytes
            if not self._filled_bytes <= filled_bytes <= limit_bytes:
                what = f"{filled_bytes} bytes after {self._filled_bytes} of at most {limit_bytes}"
                raise BadRequest(f"a buffer cannot be filled to {what}", reason="BAD_MARK", violations={"filled": what})
            if len(self._parts) + len(parts) > self._most_parts:
                what = f"{len(self._parts) + len(parts)} coded parts of at most {self._most_parts}"
                raise BadRequest(what, reason="BAD_PARTS", violations={"parts": what})
            self._filled_bytes = filled_bytes
            self._parts.extend(parts)
            if last:
                self._total_bytes = filled_bytes
            self._changed.notify_all()

    def expect(self, total_bytes: int) -> None:
        """There will be so much. Raises BadRequest as `advance` does."""
        with self._changed:
            if not self._filled_bytes <= total_bytes <= self._limit_bytes:
                what = f"{total_bytes} bytes in all, with {self._filled_bytes} there, of at most {self._limit_bytes}"
                raise BadRequest(f"a buffer cannot hold {what}", reason="BAD_MARK", violations={"total": what})
            self._total_bytes = total_bytes
            self._changed.notify_all()

    def stop(self, error: WorldlineError | None = None) -> None:
        """Whoever waits, now or later, gets the error; Cancelled if none is given. The first one counts."""
        with self._changed:
            self._stopped = self._stopped or error or Cancelled("the move was cancelled", reason="LINK_CLOSED")
            self._changed.notify_all()

    def covers(self, offset: int, end: int) -> bool:
        """Wait until the bytes from `offset` to `end` are there, or as many of them as will be. False: none will be.

        Raises:
            What `stop` was given.
        """

        def there() -> bool:
            total_bytes = self._total_bytes
            return self._filled_bytes >= (end if total_bytes is None else min(end, total_bytes))

        self._wait(lambda: there() or (self._total_bytes is not None and offset >= self._total_bytes))
        with self._changed:
            return self._total_bytes is None or offset < self._total_bytes

    def reached(self, end: int) -> bool:
        """Whether the bytes up to `end` are there."""
        with self._changed:
            return self._filled_bytes >= end

    def require(self, offset: int, end: int) -> None:
        """Wait until all of these bytes are there. Raises as `covers` does; BadRequest if they will not be."""
        if offset == end:
            return
        if not self.covers(offset, end) or (self._total_bytes is not None and self._total_bytes < end):
            what = f"{self._total_bytes} bytes are all there are, and those up to {end} are needed"
            raise BadRequest(f"a buffer was not filled: {what}", reason="BAD_MARK", violations={"filled": what})

    def total_bytes(self) -> int:
        """Wait until it is known how much there will be. Raises as `covers` does."""
        self._wait(lambda: self._total_bytes is not None)
        return self._total_bytes or 0

    def parts(self, first: int, until: int) -> tuple[Part, ...]:
        """Wait for these parts; fewer if there will be no more. Raises as `covers` does."""
        self._wait(lambda: len(self._parts) >= until or self._total_bytes is not None)
        with self._changed:
            return tuple(self._parts[first:until])

    def has(self, parts: int) -> bool:
        """Whether so many parts, and their bytes, are there."""
        with self._changed:
            return len(self._parts) >= parts and self._filled_bytes >= carried_bytes(self._parts[:parts])

    def _wait(self, over: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped is not None or over())
            if self._stopped is not None:
                raise self._stopped


def complete(size_bytes: int, parts: Sequence[Part] = ()) -> Filling:
    """A buffer that holds all it will."""
    whole = Filling(size_bytes, most_parts=len(parts))
    whole.advance(size_bytes, parts, last=True)
    return whole

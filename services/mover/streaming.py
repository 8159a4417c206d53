"""A streaming call whose work runs on its own thread: the handler relays, and notices a caller that left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import grpc

from mover.stop import Stop
from worldline import telemetry
from worldline.errors import Cancelled

T = TypeVar("T")


class Outbox(Generic[T]):
    """Messages for one stream. Progress that was not sent yet is replaced by newer progress."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._progress: T | None = None
        self._over = False

    def put(self, message: T) -> None:
        """A message that must be sent."""
        with self._changed:
            self._progress = None  # older than `message`
            self._waiting.append(message)
            self._changed.notify_all()

    def progress(self, message: T) -> None:
        """A message that newer ones make superfluous."""
        with self._changed:
            self._progress = message
            self._changed.notify_all()

    def end(self) -> None:
        """No more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def stream(self, beat_s: float, beat: Callable[[], T]) -> Iterator[T]:
        """Everything in order; `beat()` whenever nothing was said for `beat_s`. Ends after `end`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._progress is not None or self._over, beat_s)
                if self._waiting:
                    message = self._waiting.popleft()
                elif self._progress is not None:
                    message, self._progress = self._progress, None
                elif self._over:
                    return
                else:
                    message = beat()
            yield message


def relay(
    context: grpc.ServicerContext,
    stop: Stop,
    outbox: Outbox[T],
    work: Callable[[], None],
    *,
    name: str,
    beat_s: float,
    beat: Callable[[], T],
) -> Iterator[T]:
    """Run `work` on a thread of its own, in the caller's trace, and relay its outbox; raise what it raises."""
    failed: list[BaseException] = []
    carrier = telemetry.inject()

    def run() -> None:
        try:
            with telemetry.extracted(carrier):
                work()
        except BaseException as error:
            failed.append(error)
        finally:
            outbox.end()

    def left() -> None:
        stop.tell(Cancelled("the caller cancelled the move or its deadline passed", reason="CANCELLED"))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    if not context.add_callback(left):
        left()
    try:
        yield from outbox.stream(beat_s, beat)
    finally:
        left()  # nothing is told if the work is over
        thread.join()
    if failed:
        raise failed[0]

"""One at a time for each key: two calls with the same request id must not both create."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """Holds keys; another holder of the same key waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold `key`."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._held)
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

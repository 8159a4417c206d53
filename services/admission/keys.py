"""One at a time for each key: two calls with the same request id must not both create."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worldline.errors import Owned


class Keys:
    """Holds keys; another holder of the same key waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def hold(self, key: str, timeout_s: float) -> Iterator[None]:
        """Hold `key`. Raises Owned: another holder still had it after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._held, timeout_s):
                raise Owned(
                    f"request {key} is still being worked on after {timeout_s:.1f} s; ask again with the same id",
                    reason="REQUEST_IN_PROGRESS",
                    resource=("request", key),
                    retry_after_s=1.0,
                )
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

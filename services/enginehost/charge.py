"""The bytes that slots may take: charged before memory is allocated."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worldline.errors import Exhausted

RETRY_AFTER_S = 1.0


class Charge:
    """Bytes taken from a budget until `release`."""

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._budget = budget

    def split(self, size_bytes: int) -> Charge:
        """Part of it as a charge of its own; `size_bytes` is at most what is left."""
        self.size_bytes -= size_bytes
        return Charge(self._budget, size_bytes)

    def release(self) -> None:
        """Give them back; a second time does nothing."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        self._budget._give_back(size_bytes)


class Budget:
    """Bytes that slots may take. `spare` is asked for that many more bytes where too few are free."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.spare: Callable[[int], bool] = _nothing
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are free now."""
        return self.total_bytes - self._used_bytes

    def reserve(self, size_bytes: int, what: str) -> Charge:
        """Take bytes before they are allocated.

        Raises:
            Exhausted: fewer are free.
        """
        while (charge := self.take_free(size_bytes)) is None:
            free = self.free_bytes
            if not self.spare(size_bytes - free):
                raise Exhausted(
                    f"{what} needs {size_bytes} bytes, but {free} of {self.total_bytes} are free on this host",
                    reason="MEMORY_BUDGET",
                    numbers={"wanted_bytes": size_bytes, "free_bytes": free, "total_bytes": self.total_bytes},
                    violations={"budget_bytes": f"{size_bytes} wanted, {free} free"},
                    retry_after_s=RETRY_AFTER_S,
                )
        return charge

    def take_free(self, size_bytes: int) -> Charge | None:
        """Take bytes that are free now, asking nobody to spare any; None if there are too few."""
        with self._lock:
            if size_bytes > self.total_bytes - self._used_bytes:
                return None
            self._used_bytes += size_bytes
        return Charge(self, size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


def _nothing(_: int) -> bool:
    """There is nothing to spare."""
    return False

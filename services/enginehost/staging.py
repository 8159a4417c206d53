"""Host memory that state on a device goes through where no other device can read it: shared with the mover, pinned.

A buffer holds a whole state. A ring of a few chunks would need less memory, but a word between engine host and mover
for each chunk of every move, and nothing could be sent again without the device; whole buffers leave the mover as it
is, over every transport. What they take is bounded: `limit_bytes` for all. A buffer is kept for the next move, because
pinning it takes longer than filling it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from enginehost.arena import Arena
from enginehost.charge import Budget, Charge
from enginehost.device import Device
from worldline import telemetry
from worldline.errors import Cancelled, Exhausted

# Sizes are multiples of this, so that states of nearly one size share buffers.
_STEP_BYTES = 2 << 20
_log = telemetry.log("staging")


class Buffer:
    """One buffer, lent to one move at one end. The memory is its user's between `using` and its end."""

    def __init__(self, pool: Staging, memory: Arena, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._pool = pool
        self._memory: Arena | None = memory
        self._using = threading.Lock()

    @contextmanager
    def using(self) -> Iterator[int]:
        """The buffer's address, which stays valid inside. Raises Cancelled once it was given back."""
        with self._using:
            if self._memory is None:
                raise Cancelled("the host memory of this move was given back", reason="CANCELLED")
            yield self._memory.address

    def descriptor(self, *, writable: bool) -> int:
        """A new descriptor for a mover. Raises Cancelled once the buffer was given back."""
        with self._using:
            if self._memory is None:
                raise Cancelled("the host memory of this move was given back", reason="CANCELLED")
            return self._memory.writable_fd() if writable else self._memory.read_only_fd()

    def give_back(self, *, unmapped: bool) -> None:
        """End the loan, after a copy that runs; a second time does nothing.

        Only a buffer that its mover has `unmapped` may serve another move. Any other is taken from whoever still maps
        it: what they read is zeros, and what they write is nobody's.
        """
        with self._using:
            memory, self._memory = self._memory, None
        if memory is not None:
            self._pool.take_back(memory, keep=unmapped)


class Staging:
    """The buffers of one host."""

    def __init__(self, limit_bytes: int, device: Device, setting: str = "staging_bytes") -> None:
        """`setting` is what `limit_bytes` is set by, for whoever meets the limit."""
        self._setting = setting
        self._budget = Budget(limit_bytes)
        self._device = device
        self._lock = threading.Lock()
        self._free: list[Arena] = []
        self._closed = False

    @property
    def kept_bytes(self) -> int:
        """Bytes of buffers that wait for a move."""
        with self._lock:
            return sum(memory.size_bytes for memory in self._free)

    def lend(self, size_bytes: int, what: str) -> Buffer:
        """A buffer of at least `size_bytes`, pinned and faulted in.

        Raises:
            Exhausted: STAGING_MEMORY; moves in flight have it, or `staging_bytes` is too small for this state.
        """
        wanted_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
        with self._lock:
            fitting = [memory for memory in self._free if memory.size_bytes >= wanted_bytes]
            if fitting:
                memory = min(fitting, key=lambda memory: memory.size_bytes)
                self._free.remove(memory)
                return Buffer(self, memory, size_bytes)
            charge = self._charge(wanted_bytes, what)
        return Buffer(self, self._made(wanted_bytes, charge), size_bytes)

    def _charge(self, wanted_bytes: int, what: str) -> Charge:
        """Takes buffers that wait apart until there is room."""
        while self._free and wanted_bytes > self._budget.free_bytes:
            self._end(self._free.pop(0))
        try:
            return self._budget.reserve(wanted_bytes, what)
        except Exhausted as error:
            limit_bytes, free_bytes = self._budget.total_bytes, self._budget.free_bytes
            raise Exhausted(
                f"{what} needs {wanted_bytes} bytes of host memory, but {free_bytes} of {limit_bytes} "
                f"({self._setting}) are free: wait until others have given theirs back, or raise {self._setting}",
                reason=self._setting.removesuffix("_bytes").upper() + "_MEMORY",
                numbers={"wanted_bytes": wanted_bytes, "free_bytes": free_bytes, "limit_bytes": limit_bytes},
                violations={self._setting: f"{wanted_bytes} wanted, {free_bytes} free"},
                retry_after_s=error.retry_after_s,
            ) from None

    def _made(self, wanted_bytes: int, charge: Charge) -> Arena:
        memory = Arena("staging", wanted_bytes, charge)
        try:
            self._device.pin(memory.address, wanted_bytes)
        except BaseException:
            memory.close()
            raise
        _log.info("host memory pinned", size_bytes=wanted_bytes)
        return memory

    def take_back(self, memory: Arena, *, keep: bool) -> None:
        """Called by a buffer whose loan has ended."""
        with self._lock:
            if keep and not self._closed:
                self._free.append(memory)
            else:
                self._end(memory)

    def _end(self, memory: Arena) -> None:
        self._device.unpin(memory.address)
        memory.close()

    def close(self) -> None:
        """Give back what is not lent; what is follows when its loan ends."""
        with self._lock:
            self._closed = True
            while self._free:
                self._end(self._free.pop())

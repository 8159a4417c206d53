"""Arenas (one memfd, mapped shared) and the budget they are charged to before they are allocated."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from worldline import pages
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
    """Bytes that slots may take."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
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
        with self._lock:
            if size_bytes > self.total_bytes - self._used_bytes:
                free = self.total_bytes - self._used_bytes
                raise Exhausted(
                    f"{what} needs {size_bytes} bytes, but {free} of {self.total_bytes} are free on this host",
                    reason="MEMORY_BUDGET",
                    numbers={"wanted_bytes": size_bytes, "free_bytes": free, "total_bytes": self.total_bytes},
                    violations={"budget_bytes": f"{size_bytes} wanted, {free} free"},
                    retry_after_s=RETRY_AFTER_S,
                )
            self._used_bytes += size_bytes
        return Charge(self, size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


class Arena:
    """`size_bytes` of zeroed shared memory at `address`, faulted in. Closing returns every byte, also to the budget."""

    def __init__(self, name: str, size_bytes: int, charge: Charge) -> None:
        """Takes over `charge`.

        Raises:
            Exhausted: the kernel has no memory for it; the charge is released.
        """
        self.size_bytes = size_bytes
        self._charge = charge
        self._closed = False
        self.fd = -1
        try:
            self.fd = os.memfd_create(f"worldline-slot-{name}", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size_bytes)
            self.map = mmap.mmap(self.fd, size_bytes)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            charge.release()
            raise Exhausted(f"an arena of {size_bytes} bytes was refused: {error}", reason="OUT_OF_MEMORY") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        try:
            pages.ask_for_huge_pages(self.address, size_bytes)
            pages.populate(self.address, size_bytes, writable=True)
        except OSError as error:
            self.close()
            raise Exhausted(
                f"{size_bytes} bytes could not be faulted in: {error}",
                reason="OUT_OF_MEMORY",
                numbers={"wanted_bytes": size_bytes},
            ) from None
        except BaseException:
            self.close()
            raise

    def contains(self, address: int) -> bool:
        """Whether an address lies in it."""
        return self.address <= address < self.address + self.size_bytes

    def read_only_fd(self) -> int:
        """A new descriptor of the same memory, opened for reading.

        It keeps an honest reader from writing; a process of the same user can open it again for writing.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def writable_fd(self) -> int:
        """A new descriptor of the same memory."""
        return os.dup(self.fd)

    def close(self) -> int:
        """Give the memory back now; a second time does nothing. Returns the bytes given back.

        Views that outlive this read zeros; the last of them ends the mapping.
        """
        if self._closed:
            return 0
        self._closed = True
        pages.remove(self.address, self.size_bytes)
        os.close(self.fd)
        # Never closed by hand: torch's views hold the map alive, but would not stop it from being closed under them.
        del self.map
        self._charge.release()
        return self.size_bytes

"""Regions in this process's memory: mapped from a descriptor, faulted in before needed, unmapped for certain."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress

from worldline import pages
from worldline.buffers import address_of as address_of
from worldline.errors import BadRequest, Internal


class SharedMapping(mmap.mmap):
    """A mapping that still knows the memory behind it: `descriptor` is its own, and open as long as it is mapped."""

    descriptor = -1

    def close(self) -> None:
        """Unmap; a second time does nothing. Raises BufferError while somebody holds a view."""
        super().close()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # The last of those who held it on after a failed `close`.
        self.close()


class Region:
    """One mapped region; `view` is read-only at a source and writable at a destination."""

    def __init__(self, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        """Map `size_bytes` of `descriptor`, which stays the caller's.

        Raises:
            BadRequest: the descriptor is smaller than that, or may not be written.
        """
        held = os.fstat(descriptor).st_size
        if size_bytes <= 0 or held < size_bytes:
            raise BadRequest(
                f"the region's descriptor holds {held} bytes, but the layout needs {size_bytes}",
                reason="REGION_TOO_SMALL",
                numbers={"held_bytes": held, "size_bytes": size_bytes},
            )
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            self._map = SharedMapping(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=protection)
            self._map.descriptor = os.dup(descriptor)
        except OSError as error:
            raise BadRequest(f"the region cannot be mapped: {error}", reason="REGION_NOT_MAPPED") from None
        self.size_bytes = size_bytes
        self.writable = writable
        self.view = memoryview(self._map)

    def populate(self, unwanted: Callable[[], bool] = lambda: False) -> None:
        """Fault every page in, so that none is while the session is frozen. A kernel that cannot makes it a no-op.

        Ends early when `unwanted()`: gigabytes take seconds, and a cancelled move must be unmapped before that.
        """
        start = address_of(self.view)
        pages.ask_for_huge_pages(start, self.size_bytes)
        with suppress(OSError):
            pages.populate(start, self.size_bytes, writable=self.writable, unwanted=unwanted)

    def close(self) -> None:
        """Unmap.

        Raises:
            Internal: somebody still holds a view, so the region is still mapped.
        """
        self.view.release()
        try:
            self._map.close()
        except BufferError as error:
            raise Internal(f"a region is still in use and stays mapped: {error}", reason="REGION_IN_USE") from None

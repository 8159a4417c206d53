"""Memory calls that let the GIL go: `madvise` and `memmove` through ctypes. Serving goes on while gigabytes move."""

from __future__ import annotations

import ctypes
import os

from worldline.errors import Exhausted

_HUGEPAGE = 14
_REMOVE = 9
_POPULATE_WRITE = 23
_PIECE_BYTES = 64 << 20

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int


def copy(destination: int, source: int, size_bytes: int) -> None:
    """Copy between two addresses; they may overlap."""
    ctypes.memmove(destination, source, size_bytes)


def ask_for_huge_pages(address: int, size_bytes: int) -> None:
    """A wish: kernels that give none for shared memory say so, and nothing depends on it."""
    _madvise(address, size_bytes, _HUGEPAGE)


def populate(address: int, size_bytes: int) -> None:
    """Fault every page in, writable.

    Raises:
        Exhausted: the kernel has no memory for it.
    """
    for offset in range(0, size_bytes, _PIECE_BYTES):
        piece = min(_PIECE_BYTES, size_bytes - offset)
        if _madvise(address + offset, piece, _POPULATE_WRITE):
            number = ctypes.get_errno()
            raise Exhausted(
                f"{size_bytes} bytes could not be faulted in at {offset}: {os.strerror(number)}",
                reason="OUT_OF_MEMORY",
                numbers={"wanted_bytes": size_bytes, "offset": offset},
            )


def remove(address: int, size_bytes: int) -> None:
    """Give the pages and their backing store back; views that are still there read zeros."""
    for offset in range(0, size_bytes, _PIECE_BYTES):
        if _madvise(address + offset, min(_PIECE_BYTES, size_bytes - offset), _REMOVE):
            raise OSError(ctypes.get_errno(), "madvise(MADV_REMOVE)")

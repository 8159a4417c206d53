"""Regions in this process's memory: mapped from a descriptor, faulted in before they are needed, unmapped for certain.

The heavy calls go through ctypes, which releases the GIL: the standard library's do not.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from worldline.errors import BadRequest, Internal

_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_POPULATE_STEP_BYTES = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _PyBuffer(ctypes.Structure):
    """`Py_buffer`: the only way to the address of a read-only buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Where the bytes of `view` lie. Good for as long as `view` is held."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


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
            self._map = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=protection)
        except OSError as error:
            raise BadRequest(f"the region cannot be mapped: {error}", reason="REGION_NOT_MAPPED") from None
        self.size_bytes = size_bytes
        self.writable = writable
        self.view = memoryview(self._map)

    def populate(self) -> None:
        """Fault every page in, so that none is while the session is frozen. A kernel that cannot makes it a no-op."""
        start = address_of(self.view)
        _libc.madvise(start, self.size_bytes, _MADV_HUGEPAGE)
        advice = _MADV_POPULATE_WRITE if self.writable else _MADV_POPULATE_READ
        # In steps, so that a process that is asked to end does so soon.
        for at in range(0, self.size_bytes, _POPULATE_STEP_BYTES):
            if _libc.madvise(start + at, min(_POPULATE_STEP_BYTES, self.size_bytes - at), advice):
                return

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

"""Where the bytes of a buffer lie, also of a read-only one: ctypes' own way needs a writable buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of the C API."""

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


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_PyBuffer),)
_release.restype = None


@contextmanager
def _pinned(data: memoryview) -> Iterator[tuple[int, int]]:
    """Address and bytes of contiguous `data`, which cannot be released, resized or unmapped inside the block.

    Raises:
        BufferError: `data` is not contiguous.
    """
    buffer = _PyBuffer()
    _get(data, buffer, 0)
    try:
        yield int(buffer.buf or 0), int(buffer.len)
    finally:
        _release(buffer)


def address_of(view: memoryview) -> int:
    """Where the bytes of `view` lie. Good for as long as `view` is held."""
    with _pinned(view) as (address, _):
        return address

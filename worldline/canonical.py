"""One canonical byte form for everything that is digested, so that equal values have equal digests everywhere.

Each value is a tag, a length and its bytes; protobuf is not used here because its byte form is not canonical.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

Canonical = None | bool | int | float | str | bytes | Sequence[object] | Mapping[str, object]


def canonical_bytes(value: Canonical) -> bytes:
    """The canonical bytes of nested values; mappings are ordered by key."""
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


def digest(kind: str, value: Canonical) -> bytes:
    """SHA-256 over the canonical bytes of `value`, bound to `kind` so that no two kinds share a digest."""
    return hashlib.sha256(canonical_bytes([f"worldline.v1.{kind}", value])).digest()


def _write(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif isinstance(value, bool):
        out.append(b"t" if value else b"f")
    elif isinstance(value, int):
        _field(b"i", str(value).encode(), out)
    elif isinstance(value, float):
        _field(b"d", struct.pack(">d", value), out)
    elif isinstance(value, str):
        _field(b"s", value.encode(), out)
    elif isinstance(value, bytes):
        _field(b"b", value, out)
    elif isinstance(value, Mapping):
        out.append(b"m" + struct.pack(">Q", len(value)))
        for key in sorted(value):
            _field(b"s", key.encode(), out)
            _write(value[key], out)
    elif isinstance(value, Sequence):
        out.append(b"l" + struct.pack(">Q", len(value)))
        for item in value:
            _write(item, out)
    else:
        raise TypeError(f"{type(value).__name__} has no canonical form")


def _field(tag: bytes, data: bytes, out: list[bytes]) -> None:
    out.append(tag + struct.pack(">Q", len(data)))
    out.append(data)

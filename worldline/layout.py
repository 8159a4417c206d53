"""The layout: where every leaf of a state tree lies in a region. Fixed when a session is registered.

A region is one stretch of memory. Groups of leaves lie in it one after another, each aligned to 64 bytes. A group is
one leaf, stored contiguous, or several leaves that share memory, stored once with the strides they had.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from worldline.canonical import digest
from worldline.errors import BadRequest

ALIGN_BYTES = 64
MAX_LEAVES = 65_536
MAX_PATH_BYTES = 512
MAX_PATH_DEPTH = 32
MAX_DIMS = 32
MAX_REGION_BYTES = 1 << 46

# Bytes of one element. Every torch dtype that is plain bytes; quantized ones are not, and are refused by path.
DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}

# Python scalars: bytes each takes in the region, None where the value's own length counts.
SCALAR_BYTES: dict[str, int | None] = {
    "py.none": 0,
    "py.bool": 1,
    "py.int": 8,
    "py.float": 8,
    "py.str": None,
    "py.bytes": None,
}


class LeafKind(enum.IntEnum):
    """What a leaf is; values are those of the wire."""

    TENSOR = 1
    SCALAR = 2
    GENERATOR = 3


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: `shape` and `stride` in elements, `offset` and `size_bytes` in bytes of the region.

    `stride` is empty for a contiguous leaf. Leaves of one `group` share memory.
    """

    path: str
    kind: LeafKind
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size_bytes: int
    group: int


def aligned(offset: int) -> int:
    """`offset` rounded up to the alignment of leaves."""
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


def span_bytes(dtype: str, shape: Sequence[int], stride: Sequence[int]) -> int:
    """Bytes from the first to past the last element; `stride` empty means contiguous."""
    size = DTYPE_BYTES[dtype]
    if any(n == 0 for n in shape):
        return 0
    if not stride:
        return math.prod(shape) * size
    return (sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1) * size


@dataclass(frozen=True)
class Layout:
    """A layout that has been checked whole.

    Raises:
        BadRequest: overlap between groups, a gap, an overflow, an unknown dtype, a duplicate or too deep path, a size
            that does not follow from dtype, shape and stride, or more than `MAX_LEAVES` leaves.
    """

    leaves: tuple[Leaf, ...]
    region_bytes: int

    def __post_init__(self) -> None:
        check_layout(self.leaves, self.region_bytes)

    @cached_property
    def topology_hash(self) -> bytes:
        """SHA-256 over the shape of the tree: paths, kinds, dtypes, shapes and sharing, without offsets."""
        return digest(
            "topology", [[leaf.path, int(leaf.kind), leaf.dtype, leaf.shape, leaf.group] for leaf in self.leaves]
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over every field."""
        rows = [
            [leaf.path, int(leaf.kind), leaf.dtype, leaf.shape, leaf.stride, leaf.offset, leaf.size_bytes, leaf.group]
            for leaf in self.leaves
        ]
        return digest("layout", [self.region_bytes, rows])

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of all groups, without the padding between them."""
        ends: dict[int, tuple[int, int]] = {}
        for leaf in self.leaves:
            start, end = ends.get(leaf.group, (leaf.offset, leaf.offset))
            ends[leaf.group] = (min(start, leaf.offset), max(end, leaf.offset + leaf.size_bytes))
        return sum(end - start for start, end in ends.values())


def check_layout(leaves: Sequence[Leaf], region_bytes: int) -> None:
    """Refuse a layout that lies, whole. Costs nothing per byte, and no memory on an unchecked size."""
    if not 0 < len(leaves) <= MAX_LEAVES:
        raise _bad("layout.leaves", f"{len(leaves)} leaves; between 1 and {MAX_LEAVES} are allowed")
    if not 0 < region_bytes <= MAX_REGION_BYTES or region_bytes % ALIGN_BYTES:
        raise _bad(
            "layout.region_bytes",
            f"{region_bytes} is not a multiple of {ALIGN_BYTES} between {ALIGN_BYTES} and {MAX_REGION_BYTES}",
        )
    previous = ""
    groups: dict[int, tuple[int, int]] = {}
    for index, leaf in enumerate(leaves):
        if index and leaf.path <= previous:
            raise _bad(f"layout.leaves[{index}].path", f"{leaf.path!r} repeats or is out of order")
        previous = leaf.path
        _check_leaf(leaf, f"layout.leaves[{index}]", region_bytes)
        start, end = groups.get(leaf.group, (leaf.offset, leaf.offset))
        groups[leaf.group] = (min(start, leaf.offset), max(end, leaf.offset + leaf.size_bytes))
    _check_groups(groups, region_bytes)


def _check_leaf(leaf: Leaf, where: str, region_bytes: int) -> None:
    path = leaf.path
    if not 0 < len(path.encode("utf-8", "replace")) <= MAX_PATH_BYTES or path.count("/") >= MAX_PATH_DEPTH:
        raise _bad(
            f"{where}.path", f"{path[:64]!r} is empty, over {MAX_PATH_BYTES} bytes or over {MAX_PATH_DEPTH} deep"
        )
    if len(leaf.shape) > MAX_DIMS or (leaf.stride and len(leaf.stride) != len(leaf.shape)):
        raise _bad(f"{where}.shape", f"{path}: {len(leaf.shape)} dimensions and {len(leaf.stride)} strides")
    if any(not 0 <= n <= MAX_REGION_BYTES for n in (*leaf.shape, *leaf.stride)):
        raise _bad(f"{where}.shape", f"{path}: a size or stride is not between 0 and {MAX_REGION_BYTES}")
    if not 0 <= leaf.offset <= region_bytes or not 0 <= leaf.size_bytes <= region_bytes - leaf.offset:
        raise _bad(f"{where}.size_bytes", f"{path}: {leaf.size_bytes} bytes at {leaf.offset} leave the region")
    if leaf.kind is LeafKind.TENSOR:
        if leaf.dtype not in DTYPE_BYTES:
            raise _bad(f"{where}.dtype", f"{path}: unknown dtype {leaf.dtype[:32]!r}")
        expected: int | None = span_bytes(leaf.dtype, leaf.shape, leaf.stride)
        if leaf.offset % DTYPE_BYTES[leaf.dtype] and leaf.size_bytes:
            raise _bad(f"{where}.offset", f"{path}: {leaf.dtype} at {leaf.offset} is not aligned to its element")
    elif leaf.kind is LeafKind.SCALAR:
        if leaf.dtype not in SCALAR_BYTES or leaf.shape:
            raise _bad(f"{where}.dtype", f"{path}: unknown scalar {leaf.dtype[:32]!r} or one with a shape")
        expected = SCALAR_BYTES[leaf.dtype]
    else:
        if not re.fullmatch(r"generator\.[a-z]{1,16}", leaf.dtype) or leaf.shape:
            raise _bad(f"{where}.dtype", f"{path}: unknown generator {leaf.dtype[:32]!r} or one with a shape")
        expected = None
    if expected is not None and expected != leaf.size_bytes:
        raise _bad(f"{where}.size_bytes", f"{path}: {leaf.size_bytes} bytes, but dtype and shape make {expected}")


def _check_groups(groups: dict[int, tuple[int, int]], region_bytes: int) -> None:
    at = 0
    for group, (start, end) in sorted(groups.items(), key=lambda item: (item[1], item[0])):
        if start < at:
            raise _bad("layout.leaves", f"group {group} at {start} overlaps the one that ends at {at}")
        if start - aligned(at) >= ALIGN_BYTES:
            raise _bad("layout.leaves", f"a gap of {start - at} bytes before group {group} at {start}")
        at = end
    if aligned(at) > region_bytes or region_bytes - aligned(at) >= ALIGN_BYTES + 1:
        raise _bad("layout.region_bytes", f"{region_bytes} bytes, but the leaves end at {at}")


def _bad(field: str, what: str) -> BadRequest:
    return BadRequest(f"the layout was refused: {what}", reason="BAD_LAYOUT", violations={field: what})

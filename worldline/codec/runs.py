"""Where a region's element width changes: what decides how its bytes are split into planes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worldline.layout import DTYPE_BYTES, Layout
from worldline.plan import Chunk
from worldline.transport import MAX_PIECE_BYTES

# Elements whose bytes differ in kind: sign and exponent code well, the low bits of the mantissa do not at all.
_FLOATS = ("float16", "bfloat16", "float32", "complex32", "complex64")
# Smaller stretches are not worth planes of their own.
_LEAST_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of the region up to `end` (bytes) whose elements have `width` bytes; 1: not split."""

    end: int
    width: int


def runs_of(layout: Layout) -> tuple[Run, ...]:
    """The runs of a layout, in order, from byte 0 to its end.

    What is too small for planes of its own, as scalars and the space between leaves, is split like what is before it.
    """
    runs: list[Run] = []

    def reach(end: int, width: int) -> None:
        before, last = (runs[-1].end, runs[-1].width) if runs else (0, 0)
        if end - before < _LEAST_BYTES or width == last:
            width = last or width
            del runs[-1:]
        runs.append(Run(end, width))

    for leaf in sorted(layout.leaves, key=lambda leaf: leaf.offset):
        at = runs[-1].end if runs else 0
        if leaf.size_bytes >= _LEAST_BYTES and leaf.offset >= at:
            if leaf.offset > at:
                reach(leaf.offset, 1)
            reach(leaf.offset + leaf.size_bytes, _width(leaf.dtype))
    if not runs or runs[-1].end < layout.region_bytes:
        reach(layout.region_bytes, 1)
    return tuple(runs)


def _width(dtype: str) -> int:
    if dtype not in _FLOATS:
        return 1
    return DTYPE_BYTES[dtype] // (2 if dtype.startswith("complex") else 1)


class Cutter:
    """Cuts chunks into pieces along runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._ends = [run.end for run in runs]

    def pieces(self, chunk: Chunk) -> Iterator[tuple[int, int, int]]:
        """Offset, bytes and width of the pieces of a chunk: each within one run, none over `MAX_PIECE_BYTES`.

        Bytes that no run reaches, and those that are no whole element, are not split.
        """
        start, end = chunk.offset, chunk.offset + chunk.size_bytes
        at = bisect_right(self._ends, start)
        while start < end:
            stop, width = (min(self._runs[at].end, end), self._runs[at].width) if at < len(self._runs) else (end, 1)
            whole = stop - (stop - start) % width
            for offset in range(start, whole, MAX_PIECE_BYTES):
                yield offset, min(MAX_PIECE_BYTES, whole - offset), width
            if whole < stop:
                yield whole, stop - whole, 1
            start, at = stop, at + 1

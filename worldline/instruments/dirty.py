"""Which pieces each block has written, from checksums at block boundaries (paper §3.3).

A piece counts whole if any of its bytes differ, so what is measured bounds the dirty bytes from above, to within one
piece at each end of what was written. Bytes that are written again with the same value cannot be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worldline.errors import Mismatch
from worldline.instruments.pieces import Pieces
from worldline.instruments.snapshot import Boundary

Bits: TypeAlias = "npt.NDArray[np.bool_]"

# The longest run of blocks whose writes are counted together.
MAX_WINDOW_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Step:
    """From one boundary to the next: `blocks` blocks, one unless boundaries were missed."""

    first_block: int
    blocks: int
    dirty_bytes: int
    still_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Dirty:
    """`changed[i, j]`: whether step i changed piece j."""

    pieces: Pieces
    steps: tuple[Step, ...]
    changed: Bits

    def of_leaf(self, index: int) -> list[int]:
        """Bytes of the leaf that each step has written."""
        own = self.pieces.of_leaf[index]
        weights = _weights(self.pieces)[own.start : own.stop]
        return [int(weight) for weight in self.changed[:, own.start : own.stop] @ weights]

    def windows(self) -> list[tuple[int, float]]:
        """(blocks, distinct bytes that so many blocks in a row have written, the mean over where they begin)."""
        weights = _weights(self.pieces)
        found: dict[int, list[int]] = {}
        for start in range(len(self.steps)):
            window = self.steps[start : start + MAX_WINDOW_BLOCKS]
            union = np.logical_or.accumulate(self.changed[start : start + MAX_WINDOW_BLOCKS])
            blocks = 0
            for step, distinct in zip(window, union @ weights, strict=True):
                blocks += step.blocks
                found.setdefault(blocks, []).append(int(distinct))
        return [(blocks, sum(sizes) / len(sizes)) for blocks, sizes in sorted(found.items())]


def compare(pieces: Pieces, boundaries: Sequence[Boundary]) -> Dirty:
    """What changed between neighbouring boundaries, two of them or more.

    Raises:
        Mismatch: not one checksum for each piece, or boundaries out of order.
    """
    count = len(pieces.chunks)
    for boundary in boundaries:
        if len(boundary.crcs) != count:
            raise Mismatch(
                f"{len(boundary.crcs)} checksums before block {boundary.next_block}, but there are {count} pieces",
                reason="PIECES_MISMATCH",
            )
    before = boundaries[:-1]
    if any(late.next_block <= early.next_block for early, late in zip(before, boundaries[1:], strict=True)):
        raise Mismatch(f"boundaries out of order: {[boundary.next_block for boundary in boundaries]}")
    crcs = np.array([np.array(boundary.crcs, np.uint32) for boundary in boundaries])
    changed = crcs[1:] != crcs[:-1]
    sizes = changed @ _weights(pieces)
    steps = tuple(
        Step(early.next_block, late.next_block - early.next_block, int(size), late.still_s)
        for early, late, size in zip(before, boundaries[1:], sizes, strict=True)
    )
    return Dirty(pieces, steps, changed)


def _weights(pieces: Pieces) -> npt.NDArray[np.int64]:
    return np.array(pieces.stands_for, np.int64)

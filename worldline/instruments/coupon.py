"""The paper's law for distinct dirty bytes (§6.2, Appendix H), fitted to a session: distinct = H (1 - e^(-w / H)).

w are the bytes that k blocks write, H the hot bytes, among which writes fall at random. The paper's N·C is H where no
part of the state is cold. An engine that rewrites the same bytes in every block is past the law's knee after one block:
then H is exact and w is only bounded from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# One block writes this share of what any number of blocks write: more blocks would tell nothing of w.
_SATURATED = 0.99
_GRID = 96
_ROUNDS = 4
# The most often that one block may write each hot byte, in the fit.
_MOST_WRITES = 64.0


@dataclass(frozen=True, slots=True)
class Fit:
    """`hot_bytes` is H, `written_bytes` what one block writes, repeated writes counted.

    `points`: (blocks, measured distinct bytes, the law's). `worst_error` is the largest distance of the two as a share
    of what was measured. `saturated`: `written_bytes` is a lower bound.
    """

    hot_bytes: float
    written_bytes: float
    points: tuple[tuple[int, float, float], ...]
    worst_error: float
    saturated: bool


def law(hot_bytes: float, written_bytes: float) -> float:
    """Distinct bytes, of `written_bytes` that fall at random on `hot_bytes`."""
    return float(-hot_bytes * np.expm1(-written_bytes / hot_bytes)) if hot_bytes > 0 else 0.0


def fit(windows: Sequence[tuple[int, float]], state_bytes: int) -> Fit:
    """The law that is closest, in relative terms, to (blocks, distinct bytes); see `Dirty.windows`."""
    blocks = np.array([count for count, _ in windows], np.float64)
    found = np.array([size for _, size in windows], np.float64)
    most = float(found.max(initial=0.0))
    if most <= 0:
        return Fit(0.0, 0.0, tuple((int(count), 0.0, 0.0) for count in blocks), 0.0, False)
    low = np.array([most, float(found[0]) / float(blocks[0])])
    high = np.array([max(float(state_bytes), most), _MOST_WRITES * most])
    best = low
    for _ in range(_ROUNDS):
        hot = np.geomspace(low[0], high[0], _GRID)[:, None, None]
        written = np.geomspace(low[1], high[1], _GRID)[None, :, None]
        said = -hot * np.expm1(-written * blocks / hot)
        errors = (((said - found) / np.maximum(found, 1.0)) ** 2).sum(-1)
        row, column = np.unravel_index(int(errors.argmin()), errors.shape)
        best = np.array([hot[row, 0, 0], written[0, column, 0]])
        # Next round: between the neighbours of the best.
        ratio = (high / low) ** (1 / (_GRID - 1))
        low, high = np.maximum(low, best / ratio), np.minimum(high, best * ratio)
    points = tuple(
        (int(count), float(size), law(float(best[0]), float(best[1] * count)))
        for count, size in zip(blocks, found, strict=True)
    )
    worst = max(abs(said - size) / size if size else 0.0 for _, size, said in points)
    saturated = bool(found[0] >= _SATURATED * most)
    return Fit(float(best[0]), float(best[1]), points, worst, saturated)

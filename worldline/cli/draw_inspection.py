"""An inspection as a picture: dirty map, dirty share of each block, the coupon law, what the codec leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from worldline.instruments.coupon import law
from worldline.instruments.inspection import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_COLUMNS = 2048
_MOST_CLASSES = 16
_LEAST_SHARE = 0.001


def draw(found: Report, pictures: Sequence[Path]) -> None:
    """Draw it into each file, in the format that its name ends with."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    FigureCanvasAgg(figure)
    subject = found.subject
    figure.suptitle(f"{subject.name}: {subject.engine}/{subject.preset}, S = {found.state_bytes / 1e6:.4g} MB")
    places = figure.add_gridspec(2, 2)
    _map(figure.add_subplot(places[0, :]), found)
    _law(figure.add_subplot(places[1, 0]), found)
    _codec(figure.add_subplot(places[1, 1]), found)
    for path in pictures:
        figure.savefig(path)


def _map(axes: Axes, found: Report) -> None:
    sizes = np.array(found.pieces.stands_for, np.float64)
    ends = np.cumsum(sizes)
    columns = min(_MOST_COLUMNS, len(sizes))
    column = np.minimum(((ends - sizes / 2) / ends[-1] * columns).astype(np.int64), columns - 1)
    total = np.maximum(np.bincount(column, sizes, columns), 1.0)
    rows = np.array([np.bincount(column, sizes * step, columns) / total for step in found.dirty.changed])
    megabytes = found.state_bytes / 1e6
    last = len(rows)
    axes.imshow(
        rows, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest", extent=(0, megabytes, last, 0)
    )
    axes.set(title="dirty map: bright is written", xlabel="MB of the state, by leaf path", ylabel="block")
    axes.set_yticks([row + 0.5 for row in range(last)], [str(step.first_block) for step in found.dirty.steps])


def _law(axes: Axes, found: Report) -> None:
    fit = found.fit
    blocks = [point[0] for point in fit.points]
    axes.plot(blocks, [point[1] / found.state_bytes for point in fit.points], "o", label="measured")
    # Of a saturated fit, w is not known: before the first block there is nothing to draw.
    across = np.linspace(1 if fit.saturated else 0, max(blocks, default=1), 200)
    said = [law(fit.hot_bytes, fit.written_bytes * float(count)) / found.state_bytes for count in across]
    axes.plot(across, said, "-", label="H (1 - e^(-w/H)), H = " + f"{fit.hot_bytes / found.state_bytes:.1%} of S")
    axes.set(title="distinct dirty bytes", xlabel="blocks in a row", ylabel="share of S", ylim=(0, 1.05))
    axes.legend(fontsize="small")


def _codec(axes: Axes, found: Report) -> None:
    large = [item for item in found.classes if item.size_bytes >= _LEAST_SHARE * found.state_bytes]
    shown = sorted(large, key=lambda item: item.size_bytes)[-_MOST_CLASSES:]
    names = [item.name for item in shown]
    axes.barh(names, [item.dirty_share for item in shown], height=0.4, align="edge", label="written a block")
    axes.barh(names, [item.wire_share or 0.0 for item in shown], height=-0.4, align="edge", label="the codec leaves")
    axes.set(title="by class of leaves, the largest", xlabel="share of the class's bytes", xlim=(0, 1.05))
    axes.tick_params(axis="y", labelsize="small")
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)

"""A battery as a picture: what flipped bits did by stratum, and how far each lossy handle takes the readout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from worldline.instruments.battery import Cell, Report
from worldline.instruments.bits import BitClass

_CEILING_DB = 60.0


def draw(found: Report, pictures: Sequence[Path]) -> None:
    """Draw it into each file, in the format that its name ends with."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: dict[str, dict[str, Cell]] = {}
    for cell in found.cells:
        rows.setdefault(f"{cell.leaf_class}, {cell.where}: {cell.fate}", {})[cell.bit_class] = cell
    figure = Figure(figsize=(13, max(4.0, 2 + 0.35 * len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{found.engine}/{found.preset}, seed {found.seed}")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    kinds = [kind.value for kind in BitClass]
    shares = [
        [cells[kind].reached / cells[kind].flips if kind in cells else math.nan for kind in kinds]
        for cells in rows.values()
    ]
    if rows:
        left.imshow(shares, aspect="auto", vmin=0, vmax=1, cmap="viridis")
    for row, cells in enumerate(rows.values()):
        for column, kind in enumerate(kinds):
            if kind in cells:
                cell = cells[kind]
                colour = "black" if cell.reached * 2 > cell.flips else "white"
                left.text(column, row, f"{cell.reached}/{cell.flips}", ha="center", va="center", color=colour)
    left.set_xticks(range(len(kinds)), kinds)
    left.set_yticks(range(len(rows)), list(rows), fontsize="small")
    left.set_title("flipped bits that changed the next block")
    for loss in found.losses:
        heights = [min(block.psnr_db, _CEILING_DB) for block in loss.went_on.blocks]
        right.plot(range(1, len(heights) + 1), heights, marker="o", label=loss.name)
    right.set(
        title="readout after a lossy handle",
        xlabel="block",
        ylabel=f"PSNR, dB ({_CEILING_DB:g}: or equal)",
        ylim=(0, _CEILING_DB + 2),
    )
    right.set_xticks(range(1, found.blocks + 1))
    if found.losses:
        right.legend(fontsize="small")
    for path in pictures:
        figure.savefig(path)

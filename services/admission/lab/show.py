"""How a sweep is shown: table, JSON, plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from admission.lab.sweep import Scenario
from admission.lab.tally import Cell, Spread
from worldline.cli import render

_PANELS: tuple[tuple[str, Callable[[Cell], Spread]], ...] = (
    ("missed, share of offered", lambda cell: cell.miss_share),
    ("on time, share of offered", lambda cell: cell.on_time_share),
    ("rejected, share of offered", lambda cell: cell.reject_share),
    ("goodput in time, Gb/s", lambda cell: cell.goodput_gbps),
)


@contextmanager
def progress(runs: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error while it is a terminal; yields what to call after each run."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=runs)
        yield lambda: bar.advance(task)


def print_table(cells: Sequence[Cell]) -> None:
    """One row for each load and arm."""
    columns = ("load", "arm", "missed", "on time", "rejected", "goodput Gb/s", "a move Gb/s")
    rows = [
        (
            f"{cell.load:g}",
            cell.arm,
            _percent(cell.miss_share),
            _percent(cell.on_time_share),
            _percent(cell.reject_share),
            f"{cell.goodput_gbps.mean:.1f}",
            f"{cell.admitted_gbps.mean:.1f}",
        )
        for cell in sorted(cells, key=lambda cell: cell.load)
    ]
    render.console().print(render.table("", columns, rows))


def _percent(spread: Spread) -> str:
    return f"{spread.mean * 100:5.1f} % [{spread.least * 100:.1f}, {spread.most * 100:.1f}]"


def as_json(scenario: Scenario, cells: Sequence[Cell]) -> dict[str, object]:
    """What was run and what came of it, each seed by itself."""
    return {
        "fabric": asdict(scenario.spec),
        "hidden": asdict(scenario.errors),
        "requests": scenario.requests,
        "capacity_per_s": scenario.spec.capacity_per_s,
        "cells": [
            {
                "arm": cell.arm,
                "load": cell.load,
                "miss_share": asdict(cell.miss_share),
                "on_time_share": asdict(cell.on_time_share),
                "reject_share": asdict(cell.reject_share),
                "goodput_gbps": asdict(cell.goodput_gbps),
                "admitted_gbps": asdict(cell.admitted_gbps),
                "seeds": [{**asdict(tally), "reasons": dict(tally.reasons)} for tally in cell.tallies],
            }
            for cell in cells
        ],
    }


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Four panels over offered load: means as lines, from least to most as bands."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, spread_of) in enumerate(_PANELS, start=1):
        axes = figure.add_subplot(2, 2, number)
        for arm in dict.fromkeys(cell.arm for cell in cells):
            own = sorted((cell for cell in cells if cell.arm == arm), key=lambda cell: cell.load)
            loads, spreads = [cell.load for cell in own], [spread_of(cell) for cell in own]
            (line,) = axes.plot(loads, [spread.mean for spread in spreads], marker="o", markersize=3, label=arm)
            axes.fill_between(
                loads,
                [spread.least for spread in spreads],
                [spread.most for spread in spreads],
                color=line.get_color(),
                alpha=0.15,
            )
        axes.set_title(title)
        axes.set_xlabel("offered load")
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, format="png", dpi=120)

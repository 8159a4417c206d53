"""What each arm costs for a gigabyte, as a picture: the paper's Figure 4 for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row

_HEIGHT_IN = 0.24  # of one bar


@dataclass(frozen=True, slots=True)
class Bar:
    """One arm of one suite, in seconds for 10^9 bytes; None where it did not run, and `note` says why."""

    suite: str
    name: str
    median_s: float | None
    least_s: float = 0.0
    most_s: float = 0.0
    note: str = ""


def bars(suite: str, rows: Sequence[Row]) -> list[Bar]:
    """Of every arm that moved bytes or could not run."""
    found = []
    for row in rows:
        if not row.seconds:
            found.append(Bar(suite, row.name, None, note=row.note))
        elif row.size_bytes:
            of_one = 1e9 / row.size_bytes
            found.append(
                Bar(suite, row.name, row.median_s * of_one, min(row.seconds) * of_one, max(row.seconds) * of_one)
            )
    return found


def draw(shown: Sequence[Bar], path: Path, host: str, *, attributed: bool) -> None:
    """Horizontal bars, the cheapest of each suite on top; a line shows minimum and maximum."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    suites = list(dict.fromkeys(bar.suite for bar in shown))
    ordered = sorted(shown, key=lambda bar: (suites.index(bar.suite), bar.median_s is None, bar.median_s or 0.0))
    figure = Figure(figsize=(10, 1.6 + _HEIGHT_IN * len(ordered)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for at, bar in enumerate(ordered):
        if bar.median_s is None:
            axes.annotate(bar.note, (0, at), textcoords="offset points", xytext=(4, -3), fontsize="small")
            continue
        spread = [[bar.median_s - bar.least_s], [bar.most_s - bar.median_s]]
        colour = f"C{suites.index(bar.suite) % 10}"
        axes.barh(at, bar.median_s * 1e3, color=colour, alpha=0.7)
        axes.errorbar(
            bar.median_s * 1e3, at, xerr=[[side * 1e3 for side in end] for end in spread], color="black", capsize=2
        )
        axes.annotate(
            f"{bar.median_s * 1e3:.0f} ms",
            (bar.most_s * 1e3, at),
            textcoords="offset points",
            xytext=(5, -3),
            fontsize="small",
        )
    axes.set_yticks(range(len(ordered)), [f"{bar.suite}: {bar.name}" for bar in ordered], fontsize="small")
    axes.set_ylim(len(ordered) - 0.4, -0.6)
    axes.margins(x=0.12)
    mark = "" if attributed else "UNATTRIBUTED: "
    axes.set_xlabel(f"ms for a gigabyte (10^9 bytes): median, minimum and maximum\n{host}")
    axes.set_title(f"{mark}price list")
    figure.savefig(path)

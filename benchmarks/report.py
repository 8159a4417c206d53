"""Rows of medians and ratios, the host they were measured on, and the one place that writes results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
Facts: TypeAlias = dict[str, str | int | float]


@dataclass
class Row:
    """One arm: `seconds` of each run; `ratio_to` names the arm it is compared with (its median over ours).

    An arm that could not run has no seconds, and a `note` that says why.
    """

    name: str
    size_bytes: int
    ratio_to: str = ""
    seconds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median_s(self) -> float:
        """Median of the runs."""
        return statistics.median(self.seconds)


def host() -> Facts:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    from worldline import crc, pages

    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "crc_library": crc.BACKEND,
        "huge_pages_for_shared_memory": pages.huge_page_policy(),
        "load_1min_at_start": os.getloadavg()[0],
        "steal_s_at_start": steal_s(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def steal_s() -> float:
    """Seconds that the hypervisor has taken from this machine since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def as_json(rows: Sequence[Row]) -> list[dict[str, str | int | float]]:
    """Rows as they are stored."""
    by_name = {row.name: row for row in rows}
    stored: list[dict[str, str | int | float]] = []
    for row in rows:
        kept: dict[str, str | int | float] = {"name": row.name, "bytes": row.size_bytes, "runs": len(row.seconds)}
        if row.note:
            kept["note"] = row.note
        if row.seconds:
            kept |= {
                "median_s": round(row.median_s, 6),
                "min_s": round(min(row.seconds), 6),
                "max_s": round(max(row.seconds), 6),
                "ratio_to": row.ratio_to,
                "ratio": round(by_name[row.ratio_to].median_s / row.median_s, 4) if row.ratio_to else 1.0,
            }
        stored.append(kept)
    return stored


def table(stored: Sequence[Mapping[str, str | int | float]], title: str = "") -> Table:
    """Rows as people read them."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("arm", "median", "min", "max", "runs", "GB/s", "ratio", "to"):
        made.add_column(column, justify="left" if column in ("arm", "to") else "right", no_wrap=column == "arm")
    for row in stored:
        if not row["runs"]:
            made.add_row(str(row["name"]), str(row["note"]))
            continue
        rate = f"{float(row['bytes']) / float(row['median_s']) / 1e9:.2f}" if row["bytes"] else ""
        times = [f"{float(row[key]) * 1e3:.1f} ms" for key in ("median_s", "min_s", "max_s")]
        shown = f"{float(row['ratio']):.2f}" if row["ratio_to"] else ""
        made.add_row(str(row["name"]), *times, str(row["runs"]), rate, shown, str(row["ratio_to"]))
    return made


def head(facts: Mapping[str, str | int | float]) -> str:
    """The host in a line."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_1min_at_start']:.2f} at the start, "
        f"huge pages for shared memory: {facts['huge_pages_for_shared_memory'] or 'unknown'}"
    )


def document(
    facts: Facts, rows: Sequence[Mapping[str, object]], more: Mapping[str, object] | None = None
) -> dict[str, object]:
    """What is stored: the host with the facts of this run, what is told beside it, the rows."""
    known = {**facts, "steal_s_during": round(steal_s() - float(facts["steal_s_at_start"]), 2)}
    return {"host": known, **(more or {}), "rows": list(rows)}


def store(name: str, made: Mapping[str, object], directory: Path = RESULTS) -> Path:
    """Write `<directory>/<name>.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(made, indent=2) + "\n")
    return path


def write(name: str, rows: Sequence[Row], facts: Facts) -> None:
    """Print the table and write `benchmarks/results/<name>.json`."""
    stored = as_json(rows)
    out = Console(width=120, highlight=False)
    out.print(head(facts))
    out.print(table(stored))
    out.print(f"written to {store(name, document(facts, stored))}")

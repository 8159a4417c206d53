"""Rows of medians and ratios, the host they were measured on, and where they are written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass
class Row:
    """One arm: `seconds` of each run; `ratio_to` names the arm it is compared with (its median over ours)."""

    name: str
    size_bytes: int
    ratio_to: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Median of the runs."""
        return statistics.median(self.seconds)


def host() -> dict[str, str | int | float]:
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
    return [
        {
            "name": row.name,
            "bytes": row.size_bytes,
            "runs": len(row.seconds),
            "median_s": round(row.median_s, 6),
            "min_s": round(min(row.seconds), 6),
            "max_s": round(max(row.seconds), 6),
            "ratio_to": row.ratio_to,
            "ratio": round(by_name[row.ratio_to].median_s / row.median_s, 4) if row.ratio_to else 1.0,
        }
        for row in rows
    ]


def write(name: str, rows: Sequence[Row], facts: dict[str, str | int | float]) -> None:
    """Print the table and write `benchmarks/results/<name>.json`."""
    stored = as_json(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("arm", "median", "min", "max", "GB/s", "ratio", "to"):
        table.add_column(column, justify="left" if column in ("arm", "to") else "right")
    for row in stored:
        rate = f"{float(row['bytes']) / float(row['median_s']) / 1e9:.2f}" if row["bytes"] else ""
        times = [f"{float(row[key]) * 1e3:.1f} ms" for key in ("median_s", "min_s", "max_s")]
        shown = f"{float(row['ratio']):.2f}" if row["ratio_to"] else ""
        table.add_row(str(row["name"]), *times, rate, shown, str(row["ratio_to"]))
    facts = {**facts, "steal_s_during": round(steal_s() - float(facts["steal_s_at_start"]), 2)}
    out = Console(width=120, highlight=False)
    out.print(
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_1min_at_start']:.2f} at the start, "
        f"huge pages for shared memory: {facts['huge_pages_for_shared_memory'] or 'unknown'}"
    )
    out.print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"host": facts, "rows": stored}, indent=2) + "\n")
    out.print(f"written to {path}")

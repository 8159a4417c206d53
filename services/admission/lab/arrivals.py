"""When requests come: Poisson, bursts, or a recorded trace brought to the wanted load."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from admission.lab.board import Request
from admission.lab.fabric import FabricSpec
from worldline.errors import BadRequest

TIMESTAMP = "TIMESTAMP"
BURST = 4

# From a seed's chance, how many, and a mean rate per second: the times, in order.
Arrivals = Callable[[random.Random, int, float], list[float]]


def poisson(chance: random.Random, count: int, rate_per_s: float) -> list[float]:
    """Independent arrivals."""
    times, now_s = [], 0.0
    for _ in range(count):
        now_s += chance.expovariate(rate_per_s)
        times.append(now_s)
    return times


def bursts(chance: random.Random, count: int, rate_per_s: float) -> list[float]:
    """Four at the same instant, bursts at random: the incast that a barrier makes (paper §6.3)."""
    times: list[float] = []
    now_s = 0.0
    while len(times) < count:
        now_s += chance.expovariate(rate_per_s / BURST)
        times += [now_s] * min(BURST, count - len(times))
    return times


def trace(recorded: list[float]) -> Arrivals:
    """A recorded process: a seed's window of it, its time stretched so that its mean is the wanted rate."""

    def arrivals(chance: random.Random, count: int, rate_per_s: float) -> list[float]:
        if count >= len(recorded):
            raise BadRequest(f"the trace has {len(recorded)} arrivals; ask for fewer than that, not {count}")
        first = chance.randrange(len(recorded) - count)
        window = recorded[first : first + count + 1]
        span_s = window[-1] - window[0]
        if span_s <= 0:
            raise BadRequest(f"arrivals {first} to {first + count} of the trace have one and the same time stamp")
        stretch = count / rate_per_s / span_s
        return [(at_s - window[0]) * stretch for at_s in window[:-1]]

    return arrivals


def read_trace(path: Path) -> list[float]:
    """Seconds since the first arrival, in order.

    CSV with a header row and a column TIMESTAMP, `2023-11-16 18:17:03.9799600`: the form of the Azure LLM inference
    traces. Other columns are left alone: the states that are moved here all have one size.

    Raises:
        BadRequest: no such file, no such column, fewer than two rows, or a time stamp that is none.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if TIMESTAMP not in (rows.fieldnames or ()):
                raise BadRequest(
                    f"{path} has no column {TIMESTAMP}; its header is {', '.join(rows.fieldnames or ())!r}"
                )
            stamps = sorted(_time(path, number, row[TIMESTAMP]) for number, row in enumerate(rows, start=2))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read the trace {path}: {error}") from error
    if len(stamps) < 2:
        raise BadRequest(f"{path} has {len(stamps)} arrivals; a trace needs two")
    return [(stamp - stamps[0]).total_seconds() for stamp in stamps]


def _time(path: Path, line: int, text: str) -> datetime:
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(f"{path}, line {line}: {text[:64]!r} is no time stamp") from error
    if stamp.tzinfo is not None:
        raise BadRequest(f"{path}, line {line}: {text[:64]!r} names a zone; give all stamps without one")
    return stamp


def requests(spec: FabricSpec, arrivals: Arrivals, seed: int, count: int, load: float) -> list[Request]:
    """The requests of a seed: each from a node at random, due a horizon after it came."""
    chance = random.Random(f"{seed}/arrivals")
    sources = random.Random(f"{seed}/sources")
    times = arrivals(chance, count, load * spec.capacity_per_s)
    return [
        Request(number, at_s, at_s + spec.horizon_s, sources.choice(spec.sources)) for number, at_s in enumerate(times)
    ]

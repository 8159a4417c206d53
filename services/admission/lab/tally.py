"""What came of a run, and of many: counts, shares and their spread over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from admission.lab.fabric import GBPS, FabricSpec
from admission.lab.world import Record

# A move that ends this close to its deadline is on time: rounding of simulated times.
_ROUNDING_S = 1e-7


@dataclass(frozen=True, slots=True)
class Tally:
    """One run. Shares are of what was offered; `admitted_gbps` is the median rate of the moves, setup included."""

    offered: int
    on_time: int
    missed: int
    rejected: int
    goodput_gbps: float
    admitted_gbps: float
    reasons: tuple[tuple[str, int], ...]

    @property
    def miss_share(self) -> float:
        """Admitted and late, of what was offered (as the paper counts: 5/72)."""
        return self.missed / self.offered

    @property
    def on_time_share(self) -> float:
        """In time, of what was offered."""
        return self.on_time / self.offered

    @property
    def reject_share(self) -> float:
        """Refused, of what was offered."""
        return self.rejected / self.offered


def count(record: Record, spec: FabricSpec) -> Tally:
    """Count a run. Goodput is what arrived in time, over the time from the first request to the last deadline."""
    on_time = [move for move in record.moves if move.ended_s <= move.request.deadline_s + _ROUNDING_S]
    span_s = record.requests[-1].deadline_s - record.requests[0].arrival_s
    rates = [spec.state_bytes / (move.ended_s - move.begun_s) / GBPS for move in record.moves]
    return Tally(
        offered=len(record.requests),
        on_time=len(on_time),
        missed=len(record.moves) - len(on_time),
        rejected=len(record.refusals),
        goodput_gbps=len(on_time) * spec.state_bytes / span_s / GBPS,
        admitted_gbps=median(rates) if rates else 0.0,
        reasons=tuple(sorted(Counter(record.refusals.values()).items())),
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, least and most over seeds."""

    mean: float
    least: float
    most: float


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    found = list(values)
    return Spread(fmean(found), min(found), max(found))


@dataclass(frozen=True, slots=True)
class Cell:
    """An arm at a load, one tally for each seed."""

    arm: str
    load: float
    tallies: tuple[Tally, ...]

    @property
    def miss_share(self) -> Spread:
        """Spread of the miss share."""
        return spread(tally.miss_share for tally in self.tallies)

    @property
    def on_time_share(self) -> Spread:
        """Spread of the on-time share."""
        return spread(tally.on_time_share for tally in self.tallies)

    @property
    def reject_share(self) -> Spread:
        """Spread of the reject share."""
        return spread(tally.reject_share for tally in self.tallies)

    @property
    def goodput_gbps(self) -> Spread:
        """Spread of the goodput."""
        return spread(tally.goodput_gbps for tally in self.tallies)

    @property
    def admitted_gbps(self) -> Spread:
        """Spread of the admitted moves' median rate."""
        return spread(tally.admitted_gbps for tally in self.tallies)

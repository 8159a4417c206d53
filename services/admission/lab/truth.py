"""What is true of one run and hidden from the controllers: drawn once from a seed, the same for every arm."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from admission.lab.fabric import DUPLEX_SHARE, Errors, FabricSpec, freeze_s

# Freezes are drawn this long past the last arrival; what runs later than that is late anyway.
_TAIL_S = 10.0


@dataclass(frozen=True, slots=True)
class Truth:
    """One realization.

    `path_Bps[source][receiver]` is what a mover carries there with nothing beside it; `jitter_share[request]`
    multiplies that. `freezes[node]` are (start, end) in seconds, in order. `outgoing_wins[node]` and
    `duplex_share[node]` say who loses a duplex and what it keeps. `chance[request]` are two uniform numbers: whether an
    in-path checksum trips, and where in the gap before its wire a move falls.
    """

    spec: FabricSpec
    errors: Errors
    path_Bps: tuple[tuple[float, ...], ...]
    jitter_share: tuple[float, ...]
    freezes: tuple[tuple[tuple[float, float], ...], ...]
    outgoing_wins: tuple[bool, ...]
    duplex_share: tuple[float, ...]
    chance: tuple[tuple[float, float], ...]

    def solo_Bps(self, request: int, source: int, receiver: int) -> float:
        """What this request's mover carries with nothing beside it. A probe's number is below 0."""
        return self.path_Bps[source][receiver] * self.jitter_share[request % len(self.jitter_share)]

    def frozen(self, node: int, now_s: float) -> bool:
        """Whether a receiver stands still."""
        windows = self.freezes[node]
        if not windows:
            return False
        at = bisect_right(windows, (now_s, math.inf)) - 1
        return at >= 0 and now_s < windows[at][1]

    def next_boundary_s(self, node: int, now_s: float) -> float:
        """When a receiver next freezes or thaws; infinite if never."""
        windows = self.freezes[node]
        at = bisect_right(windows, (now_s, math.inf))
        if at and now_s < windows[at - 1][1]:
            return windows[at - 1][1]
        return windows[at][0] if at < len(windows) else math.inf


def draw(spec: FabricSpec, errors: Errors, seed: int, requests: int, last_arrival_s: float) -> Truth:
    """The realization of a seed."""
    # One generator for each kind of chance: a run without freezes has the rates of the run with them.
    rates, stalls, duplex, other = (random.Random(f"{seed}/{kind}") for kind in ("rates", "freezes", "duplex", "other"))
    lasting = errors.rate - errors.jitter
    nodes = range(spec.nodes)
    return Truth(
        spec=spec,
        errors=errors,
        path_Bps=tuple(
            tuple(spec.believed_Bps(source) * (1 + rates.uniform(-lasting, lasting)) for _ in nodes) for source in nodes
        ),
        # Both together stay within the bound of the error.
        jitter_share=tuple(1 + rates.uniform(-1, 1) * errors.jitter / (1 + lasting) for _ in range(requests)),
        freezes=tuple(_freezes(stalls, errors, last_arrival_s + _TAIL_S) for _ in nodes),
        outgoing_wins=tuple(duplex.random() < 0.5 for _ in nodes),
        duplex_share=tuple(duplex.uniform(*DUPLEX_SHARE) for _ in nodes),
        chance=tuple((other.random(), other.random()) for _ in range(requests)),
    )


def _freezes(chance: random.Random, errors: Errors, until_s: float) -> tuple[tuple[float, float], ...]:
    """Episodes that begin at random and do not overlap."""
    found, now_s = [], 0.0
    while errors.freezes_per_s > 0:
        now_s += chance.expovariate(errors.freezes_per_s)
        if now_s >= until_s:
            break
        found.append((now_s, now_s + freeze_s(errors.freeze_exponent)))
        now_s = found[-1][1]
    return tuple(found)

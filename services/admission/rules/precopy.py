"""Pre-copy convergence (paper §6.2, Appendix H): does a live move ever have little enough left to freeze for?

While a round ships the share x of S, the engine rewrites D·xS/B bytes at random among those it writes at all. The
coupon law says how many are distinct, and they are the next round: x <- h(1 - e^(-D x / (B h))), x = 1 at first, h the
share that is not cold. It has converged once x is at most the share that the last, frozen round may carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from admission.rules.cost import wire_Bps
from admission.rules.question import Mode, Question
from worldline.verdict import Clause, Kind

NAME = "precopy"


@dataclass(frozen=True, slots=True)
class Precopy:
    """How pre-copy goes: its rounds, the first full and the last frozen one counted, or 0 if it diverges.

    `left_fraction` is the share of S that the last one carries, or that is still dirty when it gives up.
    """

    rounds: int
    left_fraction: float


def converge(ratio: float, stop_fraction: float, rounds: int, hot_fraction: float = 1.0) -> Precopy:
    """The recursion for `ratio` D/B; diverges if it takes more than `rounds`. All shares are of S."""
    left = 1.0
    for shipped in range(1, rounds):
        left = hot_fraction * -math.expm1(-ratio * left / hot_fraction) if hot_fraction > 0 else 0.0
        if left <= stop_fraction:
            return Precopy(shipped + 1, left)
    return Precopy(0, left)


def threshold_Bps(bandwidth_Bps: float, stop_fraction: float) -> float:
    """D*, above which no number of rounds is enough: the fixed point of the recursion lies at the stop (bytes/s)."""
    return -bandwidth_Bps * math.log1p(-stop_fraction) / stop_fraction


def precopy(question: Question) -> Clause:
    """ADMIT a frozen move, and a live one that converges; REJECT one that diverges."""
    if question.mode is not Mode.LIVE:
        return Clause(NAME, Kind.ADMIT, "frozen: nothing is dirtied, S is shipped once", {"rounds": 1.0})
    if question.dirty_rate_Bps is None:
        return Clause(NAME, Kind.ADMIT, "D is not known yet: convergence could not be judged, see flux", {})
    rate_Bps, stop = wire_Bps(question), question.precopy_stop_fraction
    hot = 1.0 - min(question.cold_bytes / question.state_bytes, 1.0) if question.state_bytes else 0.0
    ratio = question.dirty_Bps / rate_Bps
    found = converge(ratio, stop, question.precopy_rounds, hot)
    numbers = {
        "ratio": ratio,
        "rounds": float(found.rounds),
        "left_fraction": found.left_fraction,
        "stop_fraction": stop,
        "dirty_rate_max_Bps": threshold_Bps(rate_Bps, stop),
    }
    law = f"D/B = {question.dirty_Bps:.4g} / {rate_Bps:.4g} = {ratio:.3f}"
    if found.rounds:
        text = f"{law}: {found.rounds} rounds, the last freezes for {found.left_fraction:.2%} of S <= {stop:.2%}"
        return Clause(NAME, Kind.ADMIT, text, numbers)
    return Clause(
        NAME,
        Kind.REJECT,
        f"{law} diverges: {found.left_fraction:.2%} of S is still dirty after {question.precopy_rounds} rounds > "
        f"{stop:.2%}; freeze instead, or move while D < B",
        numbers,
        reason="PRECOPY_DIVERGES",
    )

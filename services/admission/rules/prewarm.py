"""Prewarm: a cold slot or engine pays its first touch, seconds where a warm install takes a tenth (paper §6.3)."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "prewarm"


def prewarm(question: Question) -> Clause:
    """REJECT a cold destination whose first touch alone is too long; ADMIT a warm one, and one nobody told of."""
    if question.slot_warm is None:
        return Clause(NAME, Kind.ADMIT, "whether the slot is warm was not told: no first touch is charged")
    if question.slot_warm:
        return Clause(NAME, Kind.ADMIT, "warm: no first touch", {"first_touch_s": 0.0})
    cost_s, allowed_s = question.first_touch_s, question.allowed_s
    if cost_s is None:
        return Clause(
            NAME,
            Kind.REJECT,
            "the destination is cold, and what its first touch takes was not measured; warm it first",
            reason="FIRST_TOUCH_UNKNOWN",
        )
    fits = cost_s < allowed_s
    text = f"cold: a first touch of {cost_s:.3f} s {'<' if fits else '>='} {allowed_s:g} s"
    numbers = {"first_touch_s": cost_s, "allowed_s": allowed_s}
    if fits:
        return Clause(NAME, Kind.ADMIT, text, numbers)
    return Clause(NAME, Kind.REJECT, f"{text}; warm the destination first", numbers, reason="FIRST_TOUCH_COLD")

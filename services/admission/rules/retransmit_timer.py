"""Retransmit timer: checksums on the receive path under fan-in trip it, and then the wire stands still (paper §6.5).

A freeze lasts 2·4.096 us·2^n. Where that floor exceeds H, IN_PATH is refused under fan-in: no tuning saves the move.
"""

from __future__ import annotations

from admission.rules.cost import fan_in
from admission.rules.question import Question
from worldline.plan import Placement
from worldline.verdict import Clause, Kind

NAME = "retransmit_timer"
_UNIT_S = 4.096e-6


def floor_s(exponent: int) -> float:
    """The freeze of a timeout exponent n, in seconds."""
    return 2 * _UNIT_S * float(1 << exponent)


def retransmit_timer(question: Question) -> Clause:
    """REJECT IN_PATH under fan-in whose freeze would outlast what the move may take; ADMIT else."""
    sources, freeze_s = fan_in(question), question.retransmit_floor_s
    numbers = {"fan_in": float(sources), "allowed_s": question.allowed_s}
    if question.placement is not Placement.IN_PATH or sources == 1:
        why = "one move into this receiver" if sources == 1 else f"{question.placement.name} is not on the receive path"
        return Clause(NAME, Kind.ADMIT, f"{why}: checksums trip no retransmit timer", numbers)
    if freeze_s is None:
        return Clause(
            NAME,
            Kind.REJECT,
            f"IN_PATH with {sources} moves into this receiver, and the retransmit floor of the path was not told; use "
            "PIPELINED",
            numbers,
            reason="RETRANSMIT_FLOOR_UNKNOWN",
        )
    numbers["retransmit_floor_s"] = freeze_s
    fits = freeze_s <= question.allowed_s
    text = (
        f"{sources} moves into this receiver; a retransmit freeze of {freeze_s:.4g} s {'<=' if fits else '>'} "
        f"{question.allowed_s:g} s"
    )
    if fits:
        return Clause(NAME, Kind.ADMIT, text, numbers)
    return Clause(NAME, Kind.REJECT, f"{text}; check off the receive path", numbers, reason="RETRANSMIT_FREEZE")

"""Receiver: a destination with as many moves in flight as its cap is at capacity (incast, paper §6.3)."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "receiver"


def receiver(question: Question) -> Clause:
    """ADMIT below the cap; at it DEFER until enough moves are over if the caller's patience allows, else REJECT."""
    in_flight, cap = len(question.busy_s), question.receiver_cap
    numbers = {"in_flight": float(in_flight), "receiver_cap": float(cap), "patience_s": question.patience_s}
    if in_flight < cap:
        return Clause(NAME, Kind.ADMIT, f"{in_flight} moves in flight < {cap}", numbers)
    # Room comes when all but cap - 1 of the moves in flight are over.
    wait_s = sorted(question.busy_s)[in_flight - cap]
    numbers["wait_s"] = wait_s
    text = f"{in_flight} moves in flight >= {cap}; room in {wait_s:.3f} s"
    if question.patience_s >= wait_s:
        text = f"{text} <= {question.patience_s:g} s patience"
        return Clause(NAME, Kind.DEFER, text, numbers, reason="RECEIVER_BUSY", retry_after_s=wait_s)
    return Clause(NAME, Kind.REJECT, f"{text} > {question.patience_s:g} s patience", numbers, reason="RECEIVER_BUSY")

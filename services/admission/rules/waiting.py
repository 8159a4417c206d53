"""Waiting: what only the moves in flight into the same port forbid passes once they are over (DEFER, not REJECT)."""

from __future__ import annotations

from dataclasses import replace

from admission.rules.question import Question, Rule
from worldline.verdict import Clause, Kind


def judged(rule: Rule, question: Question) -> Clause:
    """The rule's clause; a REJECT that it would not give without those moves is a DEFER if the caller can wait."""
    clause = rule(question)
    if clause.verdict is not Kind.REJECT or not question.mover_moves:
        return clause
    if rule(replace(question, mover_moves=(), port_moves=())).verdict is not Kind.ADMIT:
        return clause
    wait_s = max(move.left_s for move in question.mover_moves)
    waits = wait_s <= question.patience_s
    sign, count = "<=" if waits else ">", len(question.mover_moves)
    text = (
        f"{clause.arithmetic}; alone on the port it passes: {count} moves are over in {wait_s:.3f} s {sign} "
        f"{question.patience_s:g} s patience"
    )
    if not waits:
        return replace(clause, arithmetic=text)
    return replace(clause, verdict=Kind.DEFER, arithmetic=text, retry_after_s=wait_s)

"""Slot memory: the destination must have room for a shadow slot of S bytes."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "slot_memory"


def slot_memory(question: Question) -> Clause:
    """ADMIT if S fits into the destination's free bytes, else REJECT."""
    fits = question.state_bytes <= question.destination_free_bytes
    return Clause(
        NAME,
        Kind.ADMIT if fits else Kind.REJECT,
        f"{question.state_bytes} B slot {'<=' if fits else '>'} {question.destination_free_bytes} B free",
        {"state_bytes": float(question.state_bytes), "free_bytes": float(question.destination_free_bytes)},
        reason="" if fits else "NO_SLOT_MEMORY",
    )

"""Duplex: full-cache moves both ways through one node are winner-take-all; they are never co-scheduled (paper §6.5)."""

from __future__ import annotations

from admission.rules.full_cache import kept_apart
from admission.rules.question import Question
from worldline.verdict import Clause

NAME = "duplex"


def duplex(question: Question) -> Clause:
    """ADMIT if no full-cache move goes the other way; else DEFER until it is over if patience allows, else REJECT."""
    return kept_apart(NAME, "DUPLEX", question, question.opposite_moves, "the other way")

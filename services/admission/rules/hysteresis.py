"""Hysteresis: a move must save more than it costs (paper §5), by a margin, or sessions are moved to and fro."""

from __future__ import annotations

from admission.rules.cost import predict
from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "hysteresis"


def hysteresis(question: Question) -> Clause:
    """REJECT a move that saves no more than its cost and the margin; ADMIT one that does, or that is simply wanted."""
    if question.benefit_s is None:
        return Clause(NAME, Kind.ADMIT, "the caller wants this move: nothing to weigh")
    cost_s = predict(question).total_s
    needed_s = cost_s * (1.0 + question.hysteresis)
    pays = question.benefit_s > needed_s
    return Clause(
        NAME,
        Kind.ADMIT if pays else Kind.REJECT,
        f"{question.benefit_s:.4g} s saved {'>' if pays else '<='} {cost_s:.3f} s cost x {1 + question.hysteresis:g} = "
        f"{needed_s:.3f} s",
        {"benefit_s": question.benefit_s, "cost_s": cost_s, "needed_s": needed_s},
        reason="" if pays else "NOT_WORTH_IT",
    )

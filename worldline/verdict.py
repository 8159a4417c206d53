"""Verdicts: what a rule answers, and what its answers compose to."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Kind(enum.IntEnum):
    """What admission answers; values are those of the wire."""

    ADMIT = 1
    REJECT = 2
    DEFER = 3


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule's answer: the inequality in words, its numbers by name, and for DEFER when to ask again."""

    name: str
    verdict: Kind
    arithmetic: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The composed answer. `slack_s` is the horizon minus the prediction, 0 where the class has no deadline."""

    kind: Kind
    clauses: tuple[Clause, ...]
    retry_after_s: float = 0.0
    predicted_s: float = 0.0
    slack_s: float = 0.0

    @property
    def failed(self) -> tuple[Clause, ...]:
        """Every clause that did not pass."""
        return tuple(clause for clause in self.clauses if clause.verdict is not Kind.ADMIT)


def compose(clauses: Sequence[Clause], *, predicted_s: float = 0.0, slack_s: float = 0.0) -> Verdict:
    """REJECT if any clause rejects, else DEFER (for the longest wait) if any defers, else ADMIT."""
    kinds = {clause.verdict for clause in clauses}
    kind = Kind.REJECT if Kind.REJECT in kinds else Kind.DEFER if Kind.DEFER in kinds else Kind.ADMIT
    waits = [clause.retry_after_s for clause in clauses if clause.verdict is Kind.DEFER]
    return Verdict(kind, tuple(clauses), max(waits, default=0.0) if kind is Kind.DEFER else 0.0, predicted_s, slack_s)

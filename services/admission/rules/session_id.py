"""Session id: a destination that has another session under the same id cannot stage this one."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "session_id"


def session_id(question: Question) -> Clause:
    """ADMIT if the id is free at the destination, else REJECT."""
    taken = question.destination_has_id
    return Clause(
        NAME,
        Kind.REJECT if taken else Kind.ADMIT,
        "the destination has a session of its own under this id; close that one first" if taken else "the id is free",
        {"taken": float(taken)},
        reason="SESSION_ID_TAKEN" if taken else "",
    )

"""Sender: full-cache moves out of one node share its line, and each was promised all of it: they go one by one.

The receiver's cap does not see them, since they go to different receivers; rounds of node-disjoint moves (paper §6.3)
keep them apart in the same way.
"""

from __future__ import annotations

from admission.rules.full_cache import kept_apart
from admission.rules.question import Question
from worldline.verdict import Clause

NAME = "sender"


def sender(question: Question) -> Clause:
    """ADMIT if no other full-cache move leaves the source's node; else DEFER if patience allows, else REJECT."""
    return kept_apart(NAME, "SENDER_BUSY", question, question.sender_moves, "out of the source's node")

"""Every admission rule, one file and one row each. Rules are pure: a question in, a clause out."""

from __future__ import annotations

from admission.rules.deadline_gate import deadline_gate, predicted_s
from admission.rules.fingerprint import fingerprint
from admission.rules.flux import flux
from admission.rules.question import InFlight, Mode, Peer, Question, Rule
from admission.rules.reachable import reachable
from admission.rules.receiver import receiver
from admission.rules.session_id import session_id
from admission.rules.slot_memory import slot_memory
from worldline.verdict import Verdict, compose

__all__ = ["RULES", "InFlight", "Mode", "Peer", "Question", "evaluate"]

RULES: tuple[Rule, ...] = (
    deadline_gate,
    flux,
    slot_memory,
    fingerprint,
    receiver,
    reachable,
    session_id,
)


def evaluate(question: Question) -> Verdict:
    """The verdict of all rules, every clause in it."""
    total_s = predicted_s(question)
    slack_s = question.contract.horizon_s - total_s if question.contract.has_deadline else 0.0
    return compose([rule(question) for rule in RULES], predicted_s=total_s, slack_s=slack_s)

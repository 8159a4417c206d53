"""Reachable: both hosts and both movers were heard from lately, can take part, and share a transport."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "reachable"


def reachable(question: Question) -> Clause:
    """ADMIT if all can take part; DEFER if all that is wrong is a silence within the grace; else REJECT."""
    refusals = [f"{peer.name} {peer.refusal}" for peer in question.peers if peer.refusal]
    if question.transport_refusal:
        refusals.append(question.transport_refusal)
    silent = [peer for peer in question.peers if not peer.refusal and peer.silent_s > question.silent_s]
    longest_s = max((peer.silent_s for peer in question.peers if not peer.refusal), default=0.0)
    numbers = {"silent_s": longest_s, "silent_bound_s": question.silent_s, "silent_grace_s": question.silent_grace_s}
    if not refusals and not silent:
        text = f"all heard from within {longest_s:.1f} s <= {question.silent_s:g} s; transport {question.transport}"
        if question.staged_because:
            text += f", staged through host memory ({question.staged_because})"
        return Clause(NAME, Kind.ADMIT, text, numbers)
    bound_s = question.silent_s + question.silent_grace_s
    found = refusals + [f"{peer.name} silent for {peer.silent_s:.1f} s > {question.silent_s:g} s" for peer in silent]
    may_wake = not refusals and longest_s <= bound_s and question.patience_s >= question.heartbeat_s
    reason = "SILENT" if not refusals else "UNREACHABLE" if not question.transport_refusal else "NO_COMMON_TRANSPORT"
    return Clause(
        NAME,
        Kind.DEFER if may_wake else Kind.REJECT,
        "; ".join(found),
        numbers,
        reason=reason,
        retry_after_s=question.heartbeat_s if may_wake else 0.0,
    )

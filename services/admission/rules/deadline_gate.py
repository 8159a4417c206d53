"""Deadline gate: the move must be over within the horizon H (paper §4.1, eq. 1 and 2).

Frozen: T = setup + exposed + S/B < H. Live: T = setup + exposed + L*, L* = S/(B - D). A class without a deadline has no
H, but its plan bounds how long the session may stand still: a move that is predicted to outlast that would be cut off.
"""

from __future__ import annotations

import math

from admission.rules.question import Mode, Question
from worldline.verdict import Clause, Kind

NAME = "deadline_gate"


def predicted_s(question: Question) -> float:
    """T in seconds; infinite where a live move never catches up with its source."""
    rate_Bps = question.bandwidth_Bps
    if question.mode is Mode.LIVE:
        rate_Bps -= question.dirty_rate_Bps or 0.0
    if rate_Bps <= 0:
        return math.inf
    return question.setup_s + question.exposed_s + question.state_bytes / rate_Bps


def deadline_gate(question: Question) -> Clause:
    """ADMIT if T < H and T is less than the plan allows, else REJECT."""
    contract = question.contract
    dirty_Bps = (question.dirty_rate_Bps or 0.0) if question.mode is Mode.LIVE else 0.0
    total_s = predicted_s(question)
    numbers = {
        "state_bytes": float(question.state_bytes),
        "bandwidth_Bps": question.bandwidth_Bps,
        "setup_s": question.setup_s,
        "exposed_s": question.exposed_s,
        "dirty_rate_Bps": dirty_Bps,
        "predicted_s": total_s,
        "bound_s": question.bound_s,
    }
    if question.mode is Mode.LIVE:
        rate = f"({question.bandwidth_Bps:.4g} - {dirty_Bps:.4g}) B/s"
    else:
        rate = f"{question.bandwidth_Bps:.4g} B/s"
    exposed = f" + {question.exposed_s:.3f} s exposed" if question.exposed_s else ""
    sum_text = f"{question.setup_s:.3f} s setup{exposed} + {question.state_bytes} B / {rate} = {total_s:.3f} s"
    if not contract.has_deadline:
        text, fits = f"{contract.contract_class.name} has no deadline; {sum_text}", total_s < question.bound_s
        return Clause(
            NAME,
            Kind.ADMIT if fits else Kind.REJECT,
            f"{text} {'<' if fits else '>='} {question.bound_s:g} s that the plan allows from freeze to commit",
            numbers,
            reason="" if fits else "PREDICTED_FREEZE_TOO_LONG",
        )
    numbers["horizon_s"] = contract.horizon_s
    numbers["bandwidth_min_Bps"] = question.state_bytes / contract.horizon_s + dirty_Bps
    if question.mode is Mode.LIVE and math.isfinite(total_s):
        numbers["horizon_min_s"] = question.state_bytes / (question.bandwidth_Bps - dirty_Bps)
    if total_s < min(contract.horizon_s, question.bound_s):
        return Clause(NAME, Kind.ADMIT, f"{sum_text} < {contract.horizon_s:g} s horizon", numbers)
    needed = f"; B of at least {numbers['bandwidth_min_Bps']:.4g} B/s and a short setup are needed"
    return Clause(
        NAME,
        Kind.REJECT,
        f"{sum_text} >= {min(contract.horizon_s, question.bound_s):g} s horizon{needed}",
        numbers,
        reason="PREDICTED_DEADLINE_MISS",
    )

"""Deadline gate: the move must be over within the horizon H (paper §4.1, eq. 1 and 2).

Frozen: T = setup + exposed + S/B < H. Live: T = setup + exposed + L*, L* = S/(B - D). A class without a deadline has no
H, but its plan bounds how long the session may stand still: a move that is predicted to outlast that would be cut off.
"""

from __future__ import annotations

import math

from admission.rules.cost import Stages, fan_in, payload_bytes, predict, wire_Bps
from admission.rules.question import Mode, Question
from worldline.verdict import Clause, Kind

NAME = "deadline_gate"
# Less than this rounds to nothing in what people read.
_SHOWN_S = 0.0005


def deadline_gate(question: Question) -> Clause:
    """ADMIT if T < H and T is less than the plan allows, else REJECT."""
    contract, dirty_Bps = question.contract, question.dirty_Bps
    stages, rate_Bps = predict(question), wire_Bps(question)
    total_s = stages.total_s
    numbers = {
        "state_bytes": float(question.state_bytes),
        "made_bytes": float(question.state_bytes - question.sent_bytes),
        "payload_bytes": payload_bytes(question),
        "bandwidth_Bps": question.bandwidth_Bps,
        "wire_Bps": rate_Bps,
        "dirty_rate_Bps": dirty_Bps,
        "setup_s": stages.setup_s,
        "first_touch_s": stages.first_touch_s,
        "quantum_s": stages.quantum_s,
        "encode_s": stages.encode_s,
        "wire_s": stages.wire_s,
        "exposed_s": stages.exposed_s,
        "decode_s": stages.decode_s,
        "predicted_s": total_s,
        "margin_s": question.allowed_s - total_s,
        "bound_s": question.bound_s,
    }
    sum_text = _sum(question, stages, rate_Bps)
    if not contract.has_deadline:
        fits = total_s < question.bound_s
        return Clause(
            NAME,
            Kind.ADMIT if fits else Kind.REJECT,
            f"{contract.contract_class.name} has no deadline; {sum_text} {'<' if fits else '>='} "
            f"{question.bound_s:g} s that the plan allows from freeze to commit",
            numbers,
            reason="" if fits else "PREDICTED_FREEZE_TOO_LONG",
        )
    numbers["horizon_s"] = contract.horizon_s
    numbers["bandwidth_min_Bps"] = payload_bytes(question) / contract.horizon_s + dirty_Bps
    if question.mode is Mode.LIVE and math.isfinite(total_s):
        numbers["horizon_min_s"] = payload_bytes(question) / (rate_Bps - dirty_Bps)
    if total_s < question.allowed_s:
        return Clause(NAME, Kind.ADMIT, f"{sum_text} < {contract.horizon_s:g} s horizon", numbers)
    needed = f"; B of at least {numbers['bandwidth_min_Bps']:.4g} B/s and a short setup are needed"
    return Clause(
        NAME,
        Kind.REJECT,
        f"{sum_text} >= {question.allowed_s:g} s horizon{needed}",
        numbers,
        reason="PREDICTED_DEADLINE_MISS",
    )


def _sum(question: Question, stages: Stages, rate_Bps: float) -> str:
    """Every stage that takes time, and their sum."""
    parts = [f"{stages.setup_s:.3f} s setup"]
    for seconds, what in (
        (stages.first_touch_s, "first touch"),
        (stages.quantum_s, "quantum there"),
        (stages.encode_s, "encode"),
        (stages.exposed_s, "exposed"),
    ):
        if seconds >= _SHOWN_S:
            parts.append(f"{seconds:.3f} s {what}")
    rate = f"{rate_Bps:.4g}"
    if question.mode is Mode.LIVE:
        rate = f"({rate} - {question.dirty_Bps:.4g})"
    payload = payload_bytes(question)
    coded = "" if payload == question.sent_bytes else f"{payload / question.sent_bytes:.4g} x "
    made = question.state_bytes - question.sent_bytes
    sent = f"({question.state_bytes} - {made} made there) B" if made else f"{question.state_bytes} B"
    shared = f", shared by {fan_in(question)}" if fan_in(question) > 1 else ""
    parts.append(f"{coded}{sent} / {rate} B/s{shared}")
    if stages.decode_s >= _SHOWN_S:
        parts.append(f"{stages.decode_s:.3f} s decode")
    return f"{' + '.join(parts)} = {stages.total_s:.3f} s"

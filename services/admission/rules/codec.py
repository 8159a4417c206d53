"""Codec gate: S becomes r·S on the wire, plus the codec's own time (paper §6.4).

Whether a codec is used at all is the choice's: where it turns REJECT into ADMIT, or shortens a move that no deadline
bounds. This rule holds it to the horizon: one that misses it where the raw move would not is refused.
"""

from __future__ import annotations

from dataclasses import replace

from admission.rules.cost import predict
from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "codec"


def codec(question: Question) -> Clause:
    """REJECT a codec that costs the horizon; ADMIT else."""
    used = question.codec
    if used is None:
        return Clause(NAME, Kind.ADMIT, "raw: no codec", {"ratio": 1.0})
    raw_s, coded_s = predict(replace(question, codec=None)).total_s, predict(question).total_s
    costs = raw_s < question.allowed_s <= coded_s
    if used.ratio is None:
        text = f"{used.name}: its share is not known yet, {coded_s:.3f} s as if raw, {question.allowed_s:g} s allowed"
        return Clause(NAME, Kind.ADMIT, text, {"coded_s": coded_s, "allowed_s": question.allowed_s})
    numbers = {"ratio": used.ratio, "raw_s": raw_s, "coded_s": coded_s, "allowed_s": question.allowed_s}
    text = (
        f"{used.name} at r = {used.ratio:g}: {coded_s:.3f} s coded, {raw_s:.3f} s raw, {question.allowed_s:g} s allowed"
    )
    if costs:
        return Clause(NAME, Kind.REJECT, f"{text}; move raw", numbers, reason="CODEC_COSTS_HORIZON")
    return Clause(NAME, Kind.ADMIT, text, numbers)

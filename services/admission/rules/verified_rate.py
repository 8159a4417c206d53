"""Verified rate: what the placement leaves of the wire once every byte is checked (paper §6.5).

harm(B, B_crc) <= B_verified <= min(B, B_crc): in sequence the harmonic bound is met, pipelined the rate is wire x
wall/(wall + one chunk's checksum). Between them lies the band of states that only pipelined verification serves.
"""

from __future__ import annotations

import math

from admission.rules.cost import crc_Bps, predict, wire_Bps
from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "verified_rate"


def harmonic(*rates_Bps: float) -> float:
    """Rate of stages one after the other: 1 / sum(1/rate)."""
    return 1.0 / sum(1.0 / rate for rate in rates_Bps)


def one_chunk_tail_Bps(wire_Bps: float, wall_s: float, chunk_crc_s: float) -> float:
    """Pipelined: wire x wall / (wall + one chunk's checksum), bytes/s."""
    return wire_Bps * wall_s / (wall_s + chunk_crc_s)


def verified_rate(question: Question) -> Clause:
    """REJECT a placement whose verification takes what the wire alone would have left of the time; ADMIT else."""
    stages, wire = predict(question), wire_Bps(question)
    left_s, taken_s = question.allowed_s - stages.fixed_s, stages.wire_s + stages.exposed_s
    rate_Bps = question.state_bytes / taken_s if 0 < taken_s < math.inf else 0.0
    numbers = {"verified_Bps": rate_Bps, "wire_Bps": wire, "exposed_s": stages.exposed_s, "left_s": left_s}
    crc = crc_Bps(question)
    if question.verified:
        bounds = "measured with verification at work"
    elif crc is None:
        bounds = "B_crc was not told: only what was measured as exposed is charged"
    else:
        lower, upper = harmonic(wire, crc), min(wire, crc)
        numbers |= {"crc_Bps": crc, "lower_Bps": lower, "upper_Bps": upper}
        bounds = f"between harm {lower:.4g} and min {upper:.4g} B/s of wire and checksum"
    costs = stages.total_s >= question.allowed_s > stages.fixed_s + stages.wire_s
    sum_text = f"{stages.wire_s:.3f} s wire + {stages.exposed_s:.3f} s {question.placement.name} = {taken_s:.3f} s"
    if costs:
        text = f"{sum_text} >= {left_s:.3f} s, which the wire alone would meet; {bounds}"
        return Clause(NAME, Kind.REJECT, text, numbers, reason="VERIFIED_RATE")
    return Clause(NAME, Kind.ADMIT, f"{sum_text}: {rate_Bps:.4g} B/s verified, {bounds}", numbers)

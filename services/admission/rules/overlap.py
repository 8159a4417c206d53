"""Overlap's break-even: checksums on the receive path hide at most their own time and risk p·E (paper §6.5)."""

from __future__ import annotations

from admission.rules.cost import crc_Bps
from admission.rules.question import Question
from worldline.plan import Placement
from worldline.verdict import Clause, Kind

NAME = "overlap"


def hidden_s(state_bytes: float, chunk_bytes: float, crc_rate_Bps: float) -> float:
    """Seconds that overlap hides: all checksums but those of the last chunk."""
    return max(state_bytes - chunk_bytes, 0.0) / crc_rate_Bps


def overlap(question: Question) -> Clause:
    """REJECT IN_PATH where what it hides is not worth what it risks; ADMIT else."""
    if question.placement is not Placement.IN_PATH:
        return Clause(NAME, Kind.ADMIT, f"{question.placement.name} risks no freeze of the wire")
    rate_Bps, risk = crc_Bps(question), question.episodes
    if rate_Bps is None or risk is None:
        lacking = "B_crc" if rate_Bps is None else "p and E"
        return Clause(NAME, Kind.ADMIT, f"{lacking} of this path was not told: the break-even could not be weighed")
    saved_s = hidden_s(question.state_bytes, question.chunk_bytes, rate_Bps)
    lost_s = risk.probability * risk.length_s
    pays = saved_s >= lost_s
    text = (
        f"{saved_s:.4f} s of checksums hidden {'>=' if pays else '<'} p·E = {risk.probability:g} x {risk.length_s:g} s "
        f"= {lost_s:.4f} s"
    )
    return Clause(
        NAME,
        Kind.ADMIT if pays else Kind.REJECT,
        text,
        {"saved_s": saved_s, "lost_s": lost_s},
        reason="" if pays else "OVERLAP_LOSES",
    )

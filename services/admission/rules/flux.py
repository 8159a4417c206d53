"""Flux clause: the path must outrun what the source dirties, B >= S/H + D (paper §4.1, eq. 1).

A frozen source dirties nothing: D -> 0. Without a deadline S/H -> 0, and a live move needs B > D to converge.
"""

from __future__ import annotations

from admission.rules.question import Mode, Question
from worldline.verdict import Clause, Kind

NAME = "flux"


def flux(question: Question) -> Clause:
    """ADMIT if the flux suffices; DEFER or REJECT a live move whose dirty rate is not known yet."""
    live = question.mode is Mode.LIVE
    if live and question.dirty_rate_Bps is None:
        waits = question.patience_s >= question.heartbeat_s
        return Clause(
            NAME,
            Kind.DEFER if waits else Kind.REJECT,
            f"D is not known before the first block was timed; ask again in {question.heartbeat_s:g} s",
            {"patience_s": question.patience_s},
            reason="DIRTY_RATE_UNKNOWN",
            retry_after_s=question.heartbeat_s if waits else 0.0,
        )
    horizon_s = question.contract.horizon_s
    dirty_Bps = (question.dirty_rate_Bps or 0.0) if live else 0.0
    drain_Bps = question.state_bytes / horizon_s if question.contract.has_deadline else 0.0
    needed_Bps = drain_Bps + dirty_Bps
    numbers = {
        "bandwidth_Bps": question.bandwidth_Bps,
        "bandwidth_min_Bps": needed_Bps,
        "state_bytes": float(question.state_bytes),
        "dirty_rate_Bps": dirty_Bps,
        "horizon_s": horizon_s,
    }
    over_h = f"{question.state_bytes} B / {horizon_s:g} s" if question.contract.has_deadline else "0 (no deadline)"
    dirty = f"{dirty_Bps:.4g} B/s dirtied" if live else "0 B/s dirtied (frozen: D -> 0)"
    passes = (
        question.bandwidth_Bps >= needed_Bps if question.contract.has_deadline else question.bandwidth_Bps > dirty_Bps
    )
    sign = ">=" if question.contract.has_deadline else ">"
    text = f"{question.bandwidth_Bps:.4g} B/s {sign if passes else 'falls short of'} {over_h} + {dirty}"
    if passes:
        return Clause(NAME, Kind.ADMIT, f"{text} = {needed_Bps:.4g} B/s", numbers)
    return Clause(NAME, Kind.REJECT, f"{text} = {needed_Bps:.4g} B/s", numbers, reason="FLUX")

"""Flux clause: the path must outrun what the source dirties, B >= S/H + D (paper §4.1, eq. 1).

A frozen source dirties nothing: D -> 0. Without a deadline S/H -> 0, and a live move needs B > D to converge. A codec
makes S the payload r·S; D is charged raw, since nobody has measured how what is rewritten codes.
"""

from __future__ import annotations

from admission.rules.cost import payload_bytes, wire_Bps
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
    has_deadline, horizon_s = question.contract.has_deadline, question.contract.horizon_s
    payload, rate_Bps, dirty_Bps = payload_bytes(question), wire_Bps(question), question.dirty_Bps
    needed_Bps = (payload / horizon_s if has_deadline else 0.0) + dirty_Bps
    numbers = {
        "bandwidth_Bps": question.bandwidth_Bps,
        "wire_Bps": rate_Bps,
        "bandwidth_min_Bps": needed_Bps,
        "payload_bytes": payload,
        "dirty_rate_Bps": dirty_Bps,
        "horizon_s": horizon_s,
    }
    over_h = f"{payload:.0f} B / {horizon_s:g} s" if has_deadline else "0 (no deadline)"
    dirty = f"{dirty_Bps:.4g} B/s dirtied" if live else "0 B/s dirtied (frozen: D -> 0)"
    passes = rate_Bps >= needed_Bps if has_deadline else rate_Bps > dirty_Bps
    sign = ">=" if has_deadline else ">"
    text = f"{rate_Bps:.4g} B/s {sign if passes else 'falls short of'} {over_h} + {dirty} = {needed_Bps:.4g} B/s"
    return Clause(NAME, Kind.ADMIT if passes else Kind.REJECT, text, numbers, reason="" if passes else "FLUX")

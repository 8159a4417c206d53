"""Port budget: the flows into one destination port may not need more than the port has (paper §6.5).

A flow needs S/H + D (eq. 1); one without a deadline takes what is left.
"""

from __future__ import annotations

from admission.rules.cost import fan_in, payload_bytes, wire_Bps
from admission.rules.question import PortMove, Question
from worldline.verdict import Clause, Kind

NAME = "port_budget"


def needed_Bps(move: PortMove) -> float:
    """What a flow needs of its port, bytes/s."""
    return (move.state_bytes / move.horizon_s if move.horizon_s > 0 else 0.0) + move.dirty_rate_Bps


def port_budget(question: Question) -> Clause:
    """ADMIT if all flows together need no more than the port has, else REJECT."""
    if not question.port_moves:
        return Clause(NAME, Kind.ADMIT, "no other move into this port", {"flows": 1.0})
    horizon_s = question.contract.horizon_s
    mine_Bps = (payload_bytes(question) / horizon_s if question.contract.has_deadline else 0.0) + question.dirty_Bps
    others_Bps = sum(needed_Bps(move) for move in question.port_moves)
    port_Bps = wire_Bps(question) * fan_in(question)
    fits = mine_Bps + others_Bps <= port_Bps
    numbers = {
        "flows": 1.0 + len(question.port_moves),
        "needed_Bps": mine_Bps,
        "others_Bps": others_Bps,
        "port_Bps": port_Bps,
    }
    text = (
        f"{mine_Bps:.4g} + {others_Bps:.4g} B/s of {len(question.port_moves)} others {'<=' if fits else '>'} "
        f"{port_Bps:.4g} B/s of the port"
    )
    return Clause(NAME, Kind.ADMIT if fits else Kind.REJECT, text, numbers, reason="" if fits else "PORT_BUDGET")

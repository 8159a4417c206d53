"""Checksum capacity: a receive path that checks at B_crc sustains K wires only while K·B_wire <= B_crc (paper §6.5).

Off the receive path a slower checksum only makes the move longer, which the cost model charges; in it, it stops the
wire.
"""

from __future__ import annotations

from admission.rules.cost import fan_in, wire_Bps
from admission.rules.question import Question
from worldline.plan import Placement
from worldline.verdict import Clause, Kind

NAME = "crc_capacity"


def crossing(crc_Bps: float, wire_Bps: float) -> float:
    """K*: the wires that one checksum engine keeps up with."""
    return crc_Bps / wire_Bps


def crc_capacity(question: Question) -> Clause:
    """REJECT checksums on the receive path beyond its capacity; ADMIT any other placement."""
    if question.placement is not Placement.IN_PATH:
        text = f"{question.placement.name} checks off the receive path: the wire does not wait for it"
        return Clause(NAME, Kind.ADMIT, text)
    engine, sources = question.destination_crc, fan_in(question)
    if engine is None and sources == 1:
        return Clause(NAME, Kind.ADMIT, "one move IN_PATH; B_crc of the receiver was not told: not charged")
    if engine is None:
        return Clause(
            NAME,
            Kind.REJECT,
            f"IN_PATH with {sources} moves into this receiver needs its B_crc, and it was not told; use PIPELINED",
            {"fan_in": float(sources)},
            reason="CRC_RATE_UNKNOWN",
        )
    wire = wire_Bps(question) * sources  # the whole wire, before it is shared
    fits = sources * wire <= engine.rate_Bps
    numbers = {
        "fan_in": float(sources),
        "wire_Bps": wire,
        "crc_Bps": engine.rate_Bps,
        "crossing": crossing(engine.rate_Bps, wire),
    }
    text = (
        f"{sources} x {wire:.4g} B/s {'<=' if fits else '>'} {engine.rate_Bps:.4g} B/s of checksums: they keep up with "
        f"{numbers['crossing']:.2f} wires"
    )
    if fits:
        return Clause(NAME, Kind.ADMIT, text, numbers)
    return Clause(NAME, Kind.REJECT, f"{text}; check off the path", numbers, reason="CRC_CAPACITY")

"""What a move's trace says of how its bytes went: chunks, the tail as it was executed, and what a codec did."""

from __future__ import annotations

import dataclasses

from mover.messages import Outcome
from worldline.plan import Plan
from worldline.telemetry import Attribute


def wire_attributes(plan: Plan, region_bytes: int, outcome: Outcome) -> dict[str, Attribute]:
    """Attributes of a span; times in seconds, sizes in bytes, rates in bytes/s."""
    sizes = [chunk.size_bytes for chunk in plan.chunks(region_bytes)]
    # A region that is smaller than the tail has none.
    tail = sizes[-len(plan.tail_bytes) :] if sum(plan.tail_bytes) < region_bytes and plan.tail_bytes else []
    attributes: dict[str, Attribute] = {
        "chunk.count": len(sizes),
        "chunk.bytes": plan.chunk_bytes,
        "chunk.tail_bytes": ",".join(map(str, tail)),
        "chunk.retried": outcome.retried_chunks,
        "wire.s": outcome.wire_s,
        "verify.exposed_s": outcome.verify_s,
    }
    if outcome.checking_s > 0:
        attributes["verify.Bps_a_thread"] = outcome.checked_bytes / outcome.checking_s
    if outcome.coding is not None:
        attributes.update(coding_fields(outcome, "codec."))
        attributes["codec.Bps_a_thread"] = outcome.coding.rate_Bps
    return attributes


def coding_fields(outcome: Outcome, prefix: str) -> dict[str, Attribute]:
    """The codec's counts by name; nothing where no codec was at work."""
    if outcome.coding is None:
        return {}
    return {f"{prefix}{name}": value for name, value in dataclasses.asdict(outcome.coding).items()}

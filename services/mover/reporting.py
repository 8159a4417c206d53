"""What a move's trace says of how its bytes went: chunks, the tail as it was executed, and what a codec did."""

from __future__ import annotations

import dataclasses

from mover.messages import Outcome
from worldline.plan import Plan
from worldline.telemetry import Attribute


def wire_attributes(plan: Plan, region_bytes: int, outcome: Outcome) -> dict[str, Attribute]:
    """Attributes of a span; times in seconds, sizes in bytes, rates in bytes/s."""
    chunks = plan.chunks(region_bytes)
    sizes = [chunk.size_bytes for chunk in chunks if not chunk.fill]
    # What is sent last has no tail if it is smaller than that.
    last = sizes[len(sizes) - len(plan.tail_bytes) :]
    tail = last if tuple(last) == plan.tail_bytes else []
    attributes: dict[str, Attribute] = {
        "chunk.count": len(chunks),
        "chunk.bytes": plan.chunk_bytes,
        "chunk.tail_bytes": ",".join(map(str, tail)),
        "chunk.retried": outcome.retried_chunks,
        "motion.made_bytes": plan.made_bytes,
        "motion.sent_bytes": region_bytes - plan.made_bytes,
        "wire.s": outcome.wire_s,
        "verify.exposed_s": outcome.verify_s,
    }
    if outcome.checking_s > 0:
        attributes["verify.Bps_a_thread"] = outcome.checked_bytes / outcome.checking_s
    if outcome.coding is not None:
        attributes.update(coding_fields(outcome, "codec."))
        attributes["codec.Bps_a_thread"] = outcome.coding.rate_Bps
        if outcome.coding.wire_bytes:
            attributes["codec.ratio"] = outcome.coding.wire_bytes / (region_bytes - plan.made_bytes)
    return attributes


def coding_fields(outcome: Outcome, prefix: str) -> dict[str, Attribute]:
    """The codec's counts by name; nothing where no codec was at work."""
    if outcome.coding is None:
        return {}
    return {f"{prefix}{name}": value for name, value in dataclasses.asdict(outcome.coding).items()}

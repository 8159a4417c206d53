"""Which engine host a new session is created on: the pick is pure, what it looks at is gathered by the placer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that could take a new session.

    `free_bytes` is what moves and placements on their way leave of its slot memory, `warm_bytes` the part of it that is
    prefaulted. `egress_Bps` is the best measured path to a host of an equal fingerprint, 0 if there is none: a session
    there could not be moved any more. `receiving` counts moves on their way into its node.
    """

    host_id: str
    free_bytes: int
    warm_bytes: int
    egress_Bps: float
    receiving: int


def ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The best first: prewarmed, then movable, then with the quietest receiver, then by room.

    Room counts in proportion to the path out of it: what cannot leave fast is given less (paper §6.3, a capacity-aware
    pick over the measured path matrix).
    """
    found = list(candidates)
    fastest_Bps = max((item.egress_Bps for item in found), default=0.0)

    def preference(item: Candidate) -> tuple[bool, bool, int, float, str]:
        share = item.egress_Bps / fastest_Bps if fastest_Bps else 1.0
        return (not item.warm_bytes, not item.egress_Bps, item.receiving, -item.free_bytes * share, item.host_id)

    return sorted(found, key=preference)

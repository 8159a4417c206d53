"""Injected holds: the coordinator waits before a named step, so that tests can look at a move, or kill, there."""

from __future__ import annotations

import math
from collections.abc import Iterable

from worldline.errors import BadRequest
from worldline.move import Fault, FaultKind

MOVER_STEPS = ("reserve", "freeze", "verify")
OUR_STEPS = ("commit", "release", "granted", "take", "done", "free")


def require_known(faults: Iterable[Fault]) -> None:
    """Raises BadRequest for a HOLD at a step that does not exist."""
    for fault in faults:
        if fault.kind is FaultKind.HOLD and fault.step not in MOVER_STEPS + OUR_STEPS:
            what = f"one of {', '.join(MOVER_STEPS + OUR_STEPS)} is needed"
            raise BadRequest(f"a hold at {fault.step[:32]!r} is none: {what}", violations={"faults.step": what})


class Holds:
    """The holds of one move that have not been used up, and the faults that are its mover's."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        ours = [fault for fault in faults if fault.kind is FaultKind.HOLD and fault.step in OUR_STEPS]
        self._ours = {fault.step: fault for fault in ours}
        self._left = {fault.step: fault.times or math.inf for fault in ours}
        self.mover_faults = tuple(fault for fault in faults if fault not in ours)
        self.mover_seconds = sum(fault.seconds for fault in self.mover_faults)

    def take(self, step: str) -> float:
        """Seconds to hold at `step` now."""
        if self._left.get(step, 0) < 1:
            return 0.0
        self._left[step] -= 1
        return self._ours[step].seconds

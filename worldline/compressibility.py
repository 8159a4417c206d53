"""What a codec leaves of a state, as an estimate that travels: hosts take it, admission plans with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from worldline.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Compressibility:
    """`ratio`: share of its bytes that the codec leaves, two standard errors above the sample's; above 0, at most 1.
    The rates are bytes/s of state that one thread codes and decodes.

    Raises:
        BadRequest: a number out of bounds.
    """

    ratio: float
    encode_Bps: float
    decode_Bps: float

    def __post_init__(self) -> None:
        violations = {}
        if not 0 < self.ratio <= 1:
            violations["compressibility.ratio"] = f"{self.ratio} is not above 0 and at most 1"
        for name in ("encode_Bps", "decode_Bps"):
            rate = getattr(self, name)
            if not (math.isfinite(rate) and rate > 0):
                violations[f"compressibility.{name}"] = f"{rate} is not a rate above 0"
        if violations:
            raise BadRequest("the sample was refused: " + "; ".join(violations.values()), violations=violations)

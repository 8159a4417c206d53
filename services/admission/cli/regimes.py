"""The regime map (paper §6.3, Figure 2): what an object's dirty rate and its fabric's bandwidth leave open to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Regime(enum.Enum):
    """Which moves are legal; the value is what people read."""

    INADMISSIBLE = "inadmissible"
    FROZEN = "frozen only"
    LIVE = "frozen or live"

    @property
    def meaning(self) -> str:
        """In words."""
        return _MEANINGS[self]


_MEANINGS = {
    Regime.INADMISSIBLE: "B < S/H: even a frozen move misses the horizon",
    Regime.FROZEN: "S/H <= B < S/H + D: only while the source stands still",
    Regime.LIVE: "B >= S/H + D: also while the source plays on",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A session on the map: S (bytes), D and B (bytes/s, None if not known), H (s, 0 without a deadline)."""

    name: str
    state_bytes: float
    dirty_rate_Bps: float | None
    horizon_s: float
    bandwidth_Bps: float | None
    note: str = ""

    @property
    def frozen_gate_Bps(self) -> float:
        """S/H."""
        return self.state_bytes / self.horizon_s if self.horizon_s > 0 else 0.0

    @property
    def live_gate_Bps(self) -> float | None:
        """S/H + D; None while D is not known."""
        return None if self.dirty_rate_Bps is None else self.frozen_gate_Bps + self.dirty_rate_Bps

    @property
    def regime(self) -> Regime | None:
        """None while B is not known, or D where it decides."""
        if self.bandwidth_Bps is None:
            return None
        if self.bandwidth_Bps < self.frozen_gate_Bps:
            return Regime.INADMISSIBLE
        live_gate_Bps = self.live_gate_Bps
        if live_gate_Bps is None:
            return None
        # Without a deadline the gate is the phase line, and on it a live move never ends.
        passes = self.bandwidth_Bps >= live_gate_Bps if self.horizon_s > 0 else self.bandwidth_Bps > live_gate_Bps
        return Regime.LIVE if passes else Regime.FROZEN

    @property
    def converges(self) -> bool | None:
        """Whether the session lies below the phase line D = B; None if that is not known."""
        if self.bandwidth_Bps is None or self.dirty_rate_Bps is None:
            return None
        return self.dirty_rate_Bps < self.bandwidth_Bps

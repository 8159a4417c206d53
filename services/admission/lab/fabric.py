"""The fabric as it is specified: nodes, rates, and how flows that share a node slow each other down (paper §6.3, §6.5).

All constants here are the paper's; what had to be extended beyond its measurements says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from worldline.errors import BadRequest

GBPS = 1e9 / 8
LINE_BPS = 100 * GBPS
# §6.3: what one mover carries alone, and the one slow egress node of the four.
MOVER_BPS = 73 * GBPS
SLOW_MOVER_BPS = 54 * GBPS
# Table 3: what one of K movers from K sources into one receiver carries, as a share of what it carries alone.
INCAST = (1.0, 20.4 / 73.0, 7.8 / 73.0)
# Beyond K = 3 nothing was measured: the receiver's ingest keeps falling as from two movers to three.
_INGEST_FALL = 3 * INCAST[2] / (2 * INCAST[1])
# §6.5: an in-path checksum slows the wire by 12 % and under fan-in trips a freeze in two incasts of three; alone it
# leaves a stall tail of about one move in eight.
IN_PATH_SLOWDOWN = 0.12
IN_PATH_TRIPS = 2 / 3
IN_PATH_STALLS = 1 / 8
# §6.5: of a duplex pair one direction keeps the line rate, the other gets 1/5 to 1/10 of it.
DUPLEX_SHARE = (0.1, 0.2)
MG2_BYTES = 1_670_124_960
NATIVE_SETUP_S = 0.0188
HORIZON_S = 0.4


def incast_share(sources: int) -> float:
    """What each of `sources` movers into one receiver carries, as a share of what it carries alone (Table 3)."""
    if sources <= len(INCAST):
        return INCAST[sources - 1]
    ingest = len(INCAST) * INCAST[-1] * _INGEST_FALL ** (sources - len(INCAST))
    return ingest / sources


def freeze_s(exponent: int) -> float:
    """A retransmit freeze in seconds: twice the local ACK timeout 4.096 us * 2^n (§6.5, appendix A)."""
    return 2 * 4.096e-6 * float(1 << exponent)


@dataclass(frozen=True, slots=True)
class Errors:
    """What the controller does not know.

    `rate` bounds how far a true rate is off the believed one (0.2: within 20 %), `jitter` is the part of it that
    differs from move to move; `freezes_per_s` is how often a receiver freezes, for `freeze_s(exponent)`.
    """

    rate: float = 0.0
    jitter: float = 0.0
    freezes_per_s: float = 0.0
    freeze_exponent: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= self.rate < 1:
            raise BadRequest(
                f"a rate error of {self.rate} with a jitter of {self.jitter}: 0 <= jitter <= rate < 1 holds"
            )
        if self.freezes_per_s < 0 or not 0 <= self.freeze_exponent <= 31:
            raise BadRequest(
                f"{self.freezes_per_s} freezes/s of exponent {self.freeze_exponent}: at least 0, and 0 to 31, are right"
            )


FLUID = Errors()
HIDDEN = Errors(rate=0.2, jitter=0.02, freezes_per_s=0.05)


@dataclass(frozen=True, slots=True)
class FabricSpec:
    """What the controllers are told: nodes 0..n-1, of which the last that sends is slow.

    In a mesh (`senders` 0) every node sends and receives; else the first `senders` only send and the others only
    receive, so no duplex pair can come about, as in the paper's incast cell.
    """

    nodes: int = 4
    senders: int = 0
    state_bytes: int = MG2_BYTES
    setup_s: float = NATIVE_SETUP_S
    horizon_s: float = HORIZON_S

    def __post_init__(self) -> None:
        if self.nodes < 2 or not 0 <= self.senders < self.nodes:
            raise BadRequest(
                f"{self.nodes} nodes, {self.senders} of them senders: a move needs a sender and a receiver"
            )
        if self.state_bytes < 1 or self.horizon_s <= 0:
            raise BadRequest(f"{self.state_bytes} B in {self.horizon_s} s: both have to be positive")

    @property
    def sources(self) -> range:
        """The nodes that send."""
        return range(self.senders or self.nodes)

    def receivers(self, source: int) -> list[int]:
        """Where a session of `source` may go."""
        return [node for node in range(self.senders, self.nodes) if node != source]

    def believed_Bps(self, source: int) -> float:
        """What a mover on `source` carries alone, as it was once calibrated."""
        return SLOW_MOVER_BPS if len(self.sources) > 1 and source == self.sources[-1] else MOVER_BPS

    def solo_s(self, source: int) -> float:
        """A move of one state with nothing beside it."""
        return self.setup_s + self.state_bytes / self.believed_Bps(source)

    @property
    def capacity_per_s(self) -> float:
        """Moves a second that node-disjoint pairs carry back to back; offered load is counted in this."""
        pairs = min(self.senders, self.nodes - self.senders) if self.senders else self.nodes // 2
        return pairs / fmean(self.solo_s(node) for node in self.sources)


MESH = FabricSpec()
# Two senders, two receivers: the paper's incast cell as far as it is told.
CELL = FabricSpec(senders=2)

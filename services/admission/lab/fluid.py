"""The wires: flows as fluids whose rates change when a flow begins or ends, or a receiver freezes or thaws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field

from admission.lab.fabric import IN_PATH_SLOWDOWN, IN_PATH_STALLS, IN_PATH_TRIPS, LINE_BPS, freeze_s, incast_share
from admission.lab.truth import Truth

# What is left of a flow that counts as nothing: rounding of times, far below one packet.
_NOTHING_BYTES = 1.0


@dataclass(slots=True)
class Flow:
    """One state on its way; it is on the wire from `wire_from_s` on. `stalled_until_s`: its retransmit timer runs."""

    request: int
    source: int
    receiver: int
    left_bytes: float
    wire_from_s: float
    in_path: bool = False
    joined: bool = False
    stalled_until_s: float = 0.0


@dataclass(slots=True)
class Fluid:
    """All flows of a fabric at `now_s`. Rates hold until `next_change_s`."""

    truth: Truth
    now_s: float = 0.0
    flows: list[Flow] = field(default_factory=list)
    _rates: list[float] | None = None

    def copy(self) -> Fluid:
        """The same fabric, to look ahead in."""
        return Fluid(self.truth, self.now_s, [copy(flow) for flow in self.flows])

    def add(self, flow: Flow) -> None:
        """A flow from its `wire_from_s` on, which is not in the past."""
        self.flows.append(flow)
        self._changed()

    def rates_Bps(self) -> list[float]:
        """Of each flow: Table 3's incast, shared egress, winner-take-all duplex, in-path slowdown, and freezes."""
        if self._rates is None:
            on_wire = [flow for flow in self.flows if flow.wire_from_s <= self.now_s]
            leaving = Counter(flow.source for flow in on_wire)
            entering: dict[int, set[int]] = {}
            for flow in on_wire:
                entering.setdefault(flow.receiver, set()).add(flow.source)
            self._rates = [self._rate_Bps(flow, leaving, entering) for flow in self.flows]
        return self._rates

    def _rate_Bps(self, flow: Flow, leaving: Mapping[int, int], entering: Mapping[int, set[int]]) -> float:
        truth, now_s, source, receiver = self.truth, self.now_s, flow.source, flow.receiver
        if flow.wire_from_s > now_s or flow.stalled_until_s > now_s or truth.frozen(receiver, now_s):
            return 0.0
        rate_Bps = min(truth.solo_Bps(flow.request, source, receiver), LINE_BPS / leaving[source])
        if flow.in_path:
            rate_Bps *= 1 - IN_PATH_SLOWDOWN
        duplex = 1.0
        if source in entering and not truth.outgoing_wins[source]:
            duplex = truth.duplex_share[source]
        if receiver in leaving and truth.outgoing_wins[receiver]:
            duplex = min(duplex, truth.duplex_share[receiver])
        return rate_Bps * incast_share(len(entering[receiver])) * duplex

    def next_change_s(self) -> float:
        """When a flow begins, ends, stalls or goes on; infinite if nothing will happen."""
        soonest_s = math.inf
        for flow, rate_Bps in zip(self.flows, self.rates_Bps(), strict=True):
            if flow.wire_from_s > self.now_s:
                soonest_s = min(soonest_s, flow.wire_from_s)
                continue
            soonest_s = min(soonest_s, self.truth.next_boundary_s(flow.receiver, self.now_s))
            if flow.stalled_until_s > self.now_s:
                soonest_s = min(soonest_s, flow.stalled_until_s)
            elif rate_Bps > 0:
                soonest_s = min(soonest_s, self.now_s + flow.left_bytes / rate_Bps)
        return soonest_s

    def advance(self, to_s: float) -> list[Flow]:
        """Carry bytes until `to_s`, at most `next_change_s`; the flows that are over then."""
        if to_s <= self.now_s:
            return []
        for flow, rate_Bps in zip(self.flows, self.rates_Bps(), strict=True):
            flow.left_bytes -= rate_Bps * (to_s - self.now_s)
        self.now_s = to_s
        over = [flow for flow in self.flows if flow.left_bytes <= _NOTHING_BYTES]
        if over:
            self.flows = [flow for flow in self.flows if flow.left_bytes > _NOTHING_BYTES]
        self._changed()
        return over

    def ends_s(self) -> dict[int, float]:
        """When each flow will be over if none is added. Spends this fabric: call it on a copy."""
        found: dict[int, float] = {}
        while self.flows:
            for flow in self.advance(self.next_change_s()):
                found[flow.request] = self.now_s
        return found

    def _changed(self) -> None:
        """Rates are others now; an in-path checksum that reaches its receiver may trip the retransmit timer (§6.5)."""
        self._rates = None
        for flow in self.flows:
            if flow.joined or flow.wire_from_s > self.now_s:
                continue
            flow.joined = True
            if not flow.in_path:
                continue
            together = [
                other for other in self.flows if other.receiver == flow.receiver and other.wire_from_s <= self.now_s
            ]
            trips = IN_PATH_TRIPS if len(together) > 1 else IN_PATH_STALLS
            if self.truth.chance[flow.request][0] < trips:
                for other in together:
                    other.stalled_until_s = self.now_s + freeze_s(self.truth.errors.freeze_exponent)

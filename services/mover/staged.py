"""Moves with placement DEVICE that are staged: engine hosts copy between devices and buffers, movers carry buffers.

To this mover a buffer is a region like any other, so every transport and codec serves. Receipts are over what lies on
the devices: the source's checksums are taken there while it is frozen, the destination's in the slot after the copy
into it. A copy that goes wrong between device and buffer, at either end, is found by that and never installed.
"""

from __future__ import annotations

from dataclasses import replace

from mover.codec.counts import Coding
from mover.hosts import Registered
from mover.messages import Outcome
from mover.move import SourceMove
from mover.peer import Peer
from mover.plane import PlaneJob
from mover.pulled import PulledDestination
from mover.receive import DestinationMove, Inbox
from mover.running import LONGEST_RESERVE_S
from worldline.codec.parts import carried_bytes
from worldline.receipt import Receipt


class StagedSource(SourceMove):
    """One move that leaves a device of this node."""

    def _register(self) -> Registered:
        # The host may have to take and pin a buffer, of a size that nobody here knows yet.
        return self._host.register_state(self._order.fence, LONGEST_RESERVE_S, self._order.plan)

    def _carry(self, job: PlaneJob, peer: Peer) -> Outcome:
        left_s = max(0.001, self._running.remaining_s)
        crcs, parts = self._host.checksum(self._order.fence, self._order.plan, left_s)
        outcome = replace(self._sent(job, peer, parts), crcs=crcs)
        if not parts:
            return outcome
        zeros = sum(not part.size_bytes for part in parts)
        coding = Coding(wire_bytes=carried_bytes(parts), coded_pieces=len(parts) - zeros, zero_pieces=zeros)
        return replace(outcome, coding=coding)


class StagedDestination(PulledDestination):
    """One move that arrives at a device of this node."""

    _run = DestinationMove._run

    def _vouched(self, job: PlaneJob, inbox: Inbox, outcome: Outcome) -> tuple[Receipt, Outcome]:
        receipt, pulled = self._pulled(inbox, job.close)
        return receipt, replace(
            outcome,
            crcs=pulled.crcs,
            retried_chunks=outcome.retried_chunks + pulled.retried_chunks,
            wire_s=outcome.wire_s + pulled.wire_s,
            verify_s=outcome.verify_s + pulled.verify_s,
        )

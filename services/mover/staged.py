"""Moves with placement DEVICE that are staged: engine hosts copy between devices and buffers, movers carry buffers.

To this mover a buffer is a region like any other, so every transport and codec serves. It is filled, carried and
emptied at once: the source's host says how far it has filled its buffer, and the wire carries what is there; what has
landed and was checked goes into the destination's slot behind it. Receipts are over what lies on the devices: the
source's checksums are taken there while it is frozen, the destination's in the slot after the copy into it. A copy that
goes wrong between device and buffer, at either end, is found by that and never installed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from mover.codec.counts import Coding
from mover.hosts import Landing, Registered
from mover.messages import Outcome
from mover.move import SourceMove
from mover.peer import Peer
from mover.plane import PlaneJob
from mover.pulled import PulledDestination
from mover.receive import DestinationMove, Inbox
from mover.running import LONGEST_RESERVE_S
from worldline import telemetry, wire
from worldline.codec.parts import Part, carried_bytes, most_parts, require_parts
from worldline.filling import Filling
from worldline.plan import DEVICE_CODECS
from worldline.receipt import Receipt


@dataclass(slots=True)
class _Buffer:
    """What a source's buffer holds, once it is full."""

    parts: list[Part] = field(default_factory=list)
    crcs: tuple[int, ...] = ()


class StagedSource(SourceMove):
    """One move that leaves a device of this node."""

    def _register(self) -> Registered:
        # The host may have to take and pin a buffer, of a size that nobody here knows yet.
        return self._host.register_state(self._order.fence, LONGEST_RESERVE_S, self._order.plan)

    def _carry(self, job: PlaneJob, peer: Peer) -> Outcome:
        peer.start(self._running.remaining_s)
        buffer = _Buffer()
        with self._running.beside("fill", lambda: self._fill(job, peer, buffer)):
            sent = self._sent(job, flowing=True)
        outcome = replace(sent, crcs=buffer.crcs)
        if not buffer.parts:
            return outcome
        zeros = sum(not part.size_bytes for part in buffer.parts)
        coded = len(buffer.parts) - zeros
        return replace(
            outcome, coding=Coding(wire_bytes=carried_bytes(buffer.parts), coded_pieces=coded, zero_pieces=zeros)
        )

    def _fill(self, job: PlaneJob, peer: Peer, buffer: _Buffer) -> None:
        """Have the host fill its buffer, and both ends know how far it is."""
        coded = self._order.plan.codec in DEVICE_CODECS
        size_bytes = self._said.total_bytes
        # What the host says is refused here, by its own error, before either end acts on it.
        said = Filling(size_bytes, most_parts=most_parts(size_bytes) if coded else 0)
        with telemetry.span("fill"):
            for filled in self._host.fill(self._order.fence, self._order.plan, max(0.001, self._running.remaining_s)):
                said.advance(filled.filled_bytes, filled.parts, last=filled.last)
                buffer.parts.extend(filled.parts)
                if coded and filled.last:
                    require_parts(buffer.parts, size_bytes)
                buffer.crcs = filled.crcs
                if coded:
                    peer.parts(filled.parts, last=filled.last)
                job.filled(filled.filled_bytes, last=filled.last)


class StagedDestination(PulledDestination):
    """One move that arrives at a device of this node."""

    _run = DestinationMove._run

    def _taken(self, job: PlaneJob, inbox: Inbox, remaining_s: float) -> tuple[Receipt, Outcome]:
        order = self._order
        flips, parts = Counter(order.flip_chunks), list[Part]()
        coded = order.plan.codec in DEVICE_CODECS
        with self._host.pulling_landing(order.fence, order.plan, sorted(flips), self._left_s()) as landing:
            if coded:
                with self._running.beside("parts", lambda: self._hear_parts(job, inbox, landing, parts)):
                    wired = self._landed_all(job, remaining_s, flowing=True, landed=landing.landed)
            else:
                wired = self._landed_all(job, remaining_s, landed=landing.landed)
            landing.end()
            receipt, pulled = self._vouched_for(inbox, landing.pulled, flips, parts)
        return receipt, replace(
            wired,
            crcs=pulled.crcs,
            retried_chunks=wired.retried_chunks + pulled.retried_chunks,
            verify_s=wired.verify_s + pulled.verify_s,
        )

    def _hear_parts(self, job: PlaneJob, inbox: Inbox, landing: Landing, parts: list[Part]) -> None:
        """What lands, told to the host as the source tells it; how much it is in all, to the data plane."""
        last = False
        while not last:
            message = inbox.next("parts").parts
            more, last = wire.parts_from(message.parts), message.last
            parts += more
            landing.parts(more)
        require_parts(parts, self._order.layout.region_bytes)
        job.expect(carried_bytes(parts))

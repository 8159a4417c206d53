"""Moves with placement DEVICE: the destination's engine host maps the source's region and pulls; the mover maps none.

The mover coordinates as in any move. It hands the ticket of the source's region on, has both hosts take checksums on
their devices, the source's while the bytes leave and the destination's behind each piece as it lands, compares them,
and asks once more for what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from mover.hosts import Pulled, Registered
from mover.messages import Outcome, Progress
from mover.move import SourceMove
from mover.peer import Peer
from mover.plane import PlaneJob
from mover.receive import WHO, DestinationMove, Inbox
from mover.receiving import WHERE
from mover.running import CALL_S, reserve_s
from worldline import wire
from worldline.codec.parts import Part
from worldline.errors import BadRequest, Mismatch, Unsupported
from worldline.move import FaultKind, RegionRef
from worldline.receipt import Receipt, chunk_mismatch, differing_chunks
from worldline.v1 import mover_service_pb2 as pb

# A chunk is copied once, and once more if it differs.
_ROUNDS = 2


class PulledSource(SourceMove):
    """One move that leaves this node's engine host for another one of this node."""

    def _reserve(self, job: PlaneJob, peer: Peer) -> Registered:
        self._require_injectable()
        registered = self._registered(self._host.register_state(self._order.fence, CALL_S, self._order.plan))
        peer.open(self._opening(registered))
        peer.ready()
        return registered

    def _opening(self, registered: Registered) -> pb.ReceiveOpen:
        opening = super()._opening(registered)
        region = RegionRef(self._order.source.host_id, registered.ticket, registered.device_id)
        opening.source_region.CopyFrom(wire.region_to(region))
        for fault in self._order.faults:
            if fault.kind is FaultKind.FLIP:
                opening.flip_chunks.extend([fault.chunk] * (fault.times or _ROUNDS))
        return opening

    def _require_injectable(self) -> None:
        for fault in self._order.faults:
            if fault.kind not in (FaultKind.FLIP, FaultKind.HOLD):
                raise Unsupported(
                    f"fault {fault.kind.name} is one of a wire; with placement DEVICE there are FLIP and HOLD",
                    reason="FAULT_UNSUPPORTED",
                )
            if fault.kind is FaultKind.FLIP:
                self._fired(fault.kind.name, fault.chunk)

    def _carry(self, job: PlaneJob, peer: Peer) -> Outcome:
        peer.start(self._running.remaining_s)
        crcs = self._host.checksum(self._order.fence, self._order.plan, max(0.001, self._running.remaining_s))
        return Outcome(crcs, 0, 0.0, 0.0)


class PulledDestination(DestinationMove):
    """One move that arrives at an engine host of this node from another one of this node."""

    def _run(self, requests: Iterator[pb.ReceiveRequest]) -> None:
        order, running = self._order, self._running
        if order.source_region is None:
            what = "placement DEVICE needs the source's region"
            raise BadRequest(f"open.source_region: {what}", violations={"open.source_region": what})
        running.watch.expect(WHO, order.plan.no_progress_s)
        inbox = Inbox(running, requests)
        _, prefault_s = self._host.stage(
            order.fence,
            order.layout,
            order.descriptor,
            order.fingerprint,
            reserve_s(order.layout.region_bytes),
            order.plan,
            order.source_region,
        )
        self._say(pb.ReceiveResponse(ready=pb.ReceiveReady(prefault_s=prefault_s)))
        self._started(inbox)
        flips = Counter(order.flip_chunks)
        with self._host.pulling(order.fence, order.plan, (), sorted(flips), self._left_s()) as pulled:
            receipt, outcome = self._vouched_for(inbox, pulled, flips)
        self._landed(outcome.retried_chunks)
        self._received(receipt, outcome)

    def _vouched_for(
        self, inbox: Inbox, pulled: Callable[[], Pulled], flips: Counter[int], parts: Sequence[Part] = ()
    ) -> tuple[Receipt, Outcome]:
        """The host's receipt for the slot that it fills, once `pulled`; what differs is pulled once more."""
        finish = inbox.next("finish").finish
        # The host waits for its own pull, so that the receipt is there as soon as the last checksum is.
        receipt = self._receipt(finish)
        first = pulled()
        outcome = Outcome(first.crcs, 0, first.copy_s, first.verify_s)
        if receipt is None:
            outcome = self._pull_again(outcome, finish.source_chunk_crcs, flips, parts)
            receipt = self._attested(finish, finish.source_chunk_crcs)
        return receipt, outcome

    def _receipt(self, finish: pb.ReceiveFinish) -> Receipt | None:
        """The host's receipt; None if what it has pulled is not what the source has."""
        try:
            return self._attested(finish, finish.source_chunk_crcs)
        except Mismatch as error:
            if error.reason != "PULLED_DIFFERS":
                raise
            return None

    def _pull_again(
        self, before: Outcome, source: Sequence[int], flips: Counter[int], parts: Sequence[Part]
    ) -> Outcome:
        """Once more what differs. Raises DataLoss if it still does."""
        order = self._order
        chunks = order.plan.chunks(order.layout.region_bytes)
        if len(source) != len(chunks):
            what = f"{len(source)} checksums for {len(chunks)} chunks"
            raise BadRequest(f"finish.source_chunk_crcs: {what}", violations={"finish.source_chunk_crcs": what})
        again = differing_chunks(source, before.crcs)
        if not again:
            return before  # the receipt was asked for before the pull had begun
        still = sorted(index for index, times in flips.items() if times > 1)
        with self._host.pulling(order.fence, order.plan, again, still, self._left_s(), parts) as pulled:
            more = pulled()
        crcs = list(before.crcs)
        for index, crc in zip(again, more.crcs, strict=True):
            crcs[index] = crc
        bad = differing_chunks(source, crcs)
        if bad:
            raise chunk_mismatch(bad, source, crcs, chunks, f"{WHERE}, also when sent once more")
        return Outcome(tuple(crcs), len(again), before.wire_s + more.copy_s, before.verify_s + more.verify_s)

    def _left_s(self) -> float:
        return max(0.001, self._running.remaining_s)

    def _attest_s(self) -> float:
        # Until the pull is over, which may be longer than a call may be silent.
        return self._running.remaining_s

    def _landed(self, retried_chunks: int) -> None:
        self._progress = Progress(self._order.layout.region_bytes, retried_chunks)
        self._say(self.message())

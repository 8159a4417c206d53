"""One job of a data plane: one region, mapped here, that is sent or received once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from mover.memory import Region
from mover.messages import Outcome, Progress, WireFault
from mover.receiving import Receiving
from mover.sending import Sending
from mover.verification import Checks, Lane, Unverified, lane_for, require_placement
from worldline.codec.runs import Cutter, Run
from worldline.errors import Cancelled, Internal, TimedOut, Unavailable, Unsupported, WorldlineError
from worldline.filling import Filling
from worldline.plan import RAW, Chunk, Placement, Plan
from worldline.transport import CodedReceiveLink, Listener, ReceiveLink, SendLink, Terms, Transport

if TYPE_CHECKING:
    from mover.codec.behind import Behind


class Job:
    """Verbs come one after another on one thread; `cancel` may come from another at any time.

    Source: `map`, `connect`, `run`, `close`. Destination: `map`, `listen`, `run`, `close`.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        lane_threads: int,
        codec_threads: int = 1,
        *,
        verified: bool = True,
    ) -> None:
        """`verified=False` is for a benchmark's arm without checksums: nothing that serves a mover can ask for it."""
        self._transports = transports
        self._verified = verified
        self._lane_threads = lane_threads
        self._codec_threads = codec_threads
        self._lock = threading.Lock()
        self._cancelled = False
        self._region: Region | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._plan: Plan | None = None
        self._listener: Listener | None = None
        self._links: list[SendLink] = []
        self._incoming: list[ReceiveLink] = []
        self._half: Sending | Receiving | None = None
        self._runs: Sequence[Run] = ()
        self._filling: Filling | None = None
        self._faults = 0

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        """Map and fault in the region; the descriptor is closed. Raises BadRequest."""
        try:
            self._region = Region(descriptor, size_bytes, writable=writable)
        finally:
            os.close(descriptor)
        self._filling = Filling(size_bytes)
        self._region.populate(lambda: self._cancelled)
        self._require_wanted()

    def listen(self, plan: Plan, terms: Terms) -> str:
        """Be ready for streams. Returns the endpoint. Raises Unsupported, BadRequest."""
        require_placement(plan.placement)
        transport, region, terms = self._prepare(plan, terms)
        listener = transport.listen(region.view, self._chunks, terms)
        with self._lock:
            self._listener = listener
        self._require_wanted()
        return listener.endpoint

    def connect(
        self,
        plan: Plan,
        terms: Terms,
        endpoint: str,
        faults: Sequence[WireFault],
        fired: Callable[[str, int], None],
        runs: Sequence[Run] = (),
    ) -> None:
        """Open every stream. `fired(kind, chunk)` is told of each injected fault; `runs` are for a codec."""
        self._runs = runs
        transport, region, terms = self._prepare(plan, terms)
        wrap = self._injector(faults, fired)
        for stream in range(plan.streams):
            link = wrap(transport.connect(region.view, self._chunks, terms, endpoint, stream))
            with self._lock:
                self._links.append(link)
            self._require_wanted()

    def run(
        self,
        remaining_s: float,
        tick: Callable[[Progress], None],
        *,
        flowing: bool = False,
        landed: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Move every byte; `tick` is called about ten times a second.

        `flowing`: the region is being filled at the source. Its end sends what `filled` says is there, and the other
        end knows by `expect` when all has landed. `landed` is told how far the region is landed and checked, from its
        start on without a gap, every `LANDED_BYTES` and at the end.
        """
        filling = self._filling if flowing else None
        try:
            return self._send(tick, filling) if self._links else self._receive(remaining_s, tick, filling, landed)
        except (Unavailable, TimedOut) as error:
            # A peer may have noticed the cancel sooner than our last stream, and be gone.
            with self._lock:
                cancelled = self._cancelled
            if cancelled:
                raise Cancelled("the job was cancelled", reason="CANCELLED") from error
            raise

    def filled(self, filled_bytes: int, *, last: bool) -> None:
        """So much of the source's region is there; with `last`, no more will be. Any thread; a lie ends the run."""
        self._told(lambda filling: filling.advance(filled_bytes, last=last))

    def expect(self, total_bytes: int) -> None:
        """So much will land in all. As `filled`."""
        self._told(lambda filling: filling.expect(total_bytes))

    def _told(self, tell: Callable[[Filling], None]) -> None:
        filling = self._filling
        if filling is None:
            return  # no region, and so no run, to tell anything of
        try:
            tell(filling)
        except WorldlineError as error:
            filling.stop(error)

    def cancel(self) -> None:
        """Make a verb that blocks end soon. Any thread, any number of times."""
        with self._lock:
            self._cancelled = True
            half, listener = self._half, self._listener
            links: list[SendLink | ReceiveLink] = [*self._links, *self._incoming]
        if half is not None:
            half.cancel()
        if listener is not None:
            listener.close()
        for link in links:
            link.close()

    def close(self) -> None:
        """Close what is open and unmap. Raises Internal if the region is still in use."""
        self.cancel()
        if self._region is not None:
            self._region.close()
            self._region = None

    @property
    def mapped(self) -> bool:
        """Whether a region is mapped."""
        return self._region is not None

    def _prepare(self, plan: Plan, terms: Terms) -> tuple[Transport, Region, Terms]:
        region = self._mapped_region()
        if plan.transport not in self._transports:
            raise Unsupported(
                f"transport {plan.transport[:32]!r} is not on this mover; it has {', '.join(self._transports)}",
                reason="TRANSPORT_UNSUPPORTED",
            )
        if plan.codec != RAW:
            # Now, not while the session is frozen: loading the codec's libraries takes a tenth of a second.
            import_module("worldline.codec.zstd")
        self._plan = plan
        self._chunks = plan.chunks(region.size_bytes)
        return self._transports[plan.transport], region, replace(terms, coded=plan.codec != RAW)

    def _mapped_region(self) -> Region:
        if self._region is None:
            raise Internal("a job without a region cannot move one")
        return self._region

    def _require_wanted(self) -> None:
        with self._lock:
            cancelled = self._cancelled
        if cancelled:
            self.cancel()
            raise Cancelled("the job was cancelled", reason="CANCELLED")

    def _injector(
        self, faults: Sequence[WireFault], fired: Callable[[str, int], None]
    ) -> Callable[[SendLink], SendLink]:
        if not faults:
            return lambda link: link
        # Only here: a data plane without faults carries no code that makes them.
        from worldline.move import Fault, FaultKind
        from worldline.testing.faults import Injector

        def count(fault: Fault) -> None:
            self._faults += 1
            fired(fault.kind.name, fault.chunk)

        injector = Injector(
            [Fault(FaultKind[fault.kind], fault.chunk, fault.times, fault.seconds) for fault in faults], count
        )
        return injector.wrap

    def _send(self, tick: Callable[[Progress], None], filling: Filling | None) -> Outcome:
        region, ahead = self._mapped_region().view, None
        if self._codec != RAW:
            from mover.codec.ahead import Ahead  # only here: a data plane without coded moves stays light

            ahead = Ahead(region, Cutter(self._runs), self._codec_threads, len(self._links))
        try:
            sending = Sending(region, self._chunks, self._links, ahead=ahead, checksum=self._verified, filling=filling)
            self._begin(sending)
            sent = sending.run(lambda: tick(Progress(sending.sent_bytes, sending.retried_chunks, self._faults)))
        finally:
            if ahead is not None:
                ahead.close()
        tick(Progress(sending.sent_bytes, sending.retried_chunks, self._faults))
        coding = ahead.counts() if ahead is not None else None
        return Outcome(sent.crcs, sent.retried_chunks, sent.seconds, 0.0, coding=coding)

    def _receive(
        self,
        remaining_s: float,
        tick: Callable[[Progress], None],
        filling: Filling | None,
        landed: Callable[[int], None] | None,
    ) -> Outcome:
        plan, listener, region = self._plan, self._listener, self._mapped_region()
        if plan is None or listener is None:
            raise Internal("a job that neither listens nor is connected cannot run")
        deadline = time.monotonic() + remaining_s
        for _ in range(plan.streams):
            link = listener.accept()
            with self._lock:
                self._incoming.append(link)
            self._require_wanted()
        checks = Checks(region.view, self._chunks, landed)
        lane = lane_for(plan.placement, checks, self._lane_threads) if self._verified else Unverified(checks)
        behind: Behind | None = None
        try:
            behind = self._behind(plan.placement, checks, lane)
            receiving = Receiving(checks, behind or lane, self._incoming, deadline - time.monotonic(), filling)
            self._begin(receiving)
            received = receiving.run(lambda: tick(Progress(receiving.landed_bytes, receiving.retried_chunks)))
        finally:
            (behind or lane).close()
        tick(Progress(receiving.landed_bytes, receiving.retried_chunks))
        return Outcome(
            received.crcs,
            received.retried_chunks,
            received.wire_s,
            received.verify_s,
            tuple(link.traceparent for link in self._incoming),
            checks.checked_bytes,
            checks.busy_s,
            behind.counts() if behind is not None else None,
        )

    def _behind(self, placement: Placement, checks: Checks, lane: Lane) -> Behind | None:
        """What decodes before the lane checks, if this move is coded."""
        if self._codec == RAW:
            return None
        from mover.codec.behind import Behind  # only here, as above

        links = [link for link in self._incoming if isinstance(link, CodedReceiveLink)]
        if len(links) < len(self._incoming):
            raise Internal("this transport carries no coded chunks")
        threads = 0 if placement is Placement.IN_PATH else self._codec_threads
        behind = Behind(self._mapped_region().view, checks, lane, threads)
        for link in links:
            link.decode_with(behind)
        return behind

    @property
    def _codec(self) -> str:
        return self._plan.codec if self._plan is not None else RAW

    def _begin(self, half: Sending | Receiving) -> None:
        with self._lock:
            self._half = half
        self._require_wanted()

"""The receiving half of the pipeline: streams land chunks in the slot, a lane beside them verifies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mover.parallel import Together
from mover.verification import Checks, Lane
from worldline.errors import Cancelled, DataLoss
from worldline.filling import Filling
from worldline.made import fill_crc
from worldline.plan import Chunk
from worldline.receipt import chunk_mismatch
from worldline.transport import Landed, ReceiveLink

_TICK_S = 0.1
WHERE = "on the way or in the landing memory"


@dataclass(frozen=True, slots=True)
class Received:
    """Checksums of the slot by chunk, chunks asked for again, seconds on the wire and from then to the last check."""

    crcs: tuple[int, ...]
    retried_chunks: int
    wire_s: float
    verify_s: float


class Receiving:
    """One move's receiving half. `landed_bytes` and `retried_chunks` may be read while `run` runs."""

    def __init__(
        self,
        checks: Checks,
        lane: Lane,
        links: Sequence[ReceiveLink],
        remaining_s: float,
        filling: Filling | None = None,
    ) -> None:
        """`lane` stays the caller's to close. A second round that cannot fit into `remaining_s` is not asked for.

        `filling` will say how much lands in all, of a region that is not all there at the source yet.
        """
        self.landed_bytes = 0
        self.retried_chunks = 0
        self._checks = checks
        self._lane = lane
        self._links = links
        self._deadline = time.monotonic() + remaining_s
        self._filling = filling
        self._lock = threading.Lock()
        self._ended: set[ReceiveLink] = set()
        self._cancelled = False
        self._last_byte = 0.0

    def run(self, tick: Callable[[], None] = lambda: None) -> Received:
        """Receive and verify everything. `tick` is called about ten times a second.

        Raises:
            DataLoss: chunks that differ or are missing, also when sent once more, or without time for that.
            Cancelled, TimedOut, Unavailable, BadRequest: as the links raise them.
        """
        start = time.monotonic()
        try:
            wanted = self._round(self._links, tick, made=True)
            first_s = self._last_byte - start
            if wanted:
                self._require_time(wanted, first_s)
                self.retried_chunks = len(wanted)
                self.landed_bytes -= sum(self._checks.chunks[bad].size_bytes for bad in self._checks.differing())
                asked = self._ask(wanted)
                wanted = self._round(asked, tick)
                if wanted:
                    raise self._loss(wanted, "also when sent once more")
                self._answer(asked)
            else:
                self._answer(self._links)
            end = time.monotonic()
            return Received(
                tuple(self._checks.slot_crcs()), self.retried_chunks, self._last_byte - start, end - self._last_byte
            )
        except BaseException:
            self._close()
            raise

    def cancel(self) -> None:
        """Make `run` end soon. Any thread."""
        self._close()

    def _close(self) -> None:
        self._cancelled = True
        if self._filling is not None:
            self._filling.stop()
        for link in self._links:
            link.close()

    def _round(self, links: Sequence[ReceiveLink], tick: Callable[[], None], *, made: bool = False) -> list[int]:
        """Receive until every stream has ended its round and all is checked. Returns the chunks that are not good.

        With `made`, what is not sent is checked beside the streams: where it is not what it should be, it is wanted.
        """
        if self._cancelled:
            raise Cancelled("the move was cancelled", reason="LINK_CLOSED")
        self._ended.clear()
        seen = -1

        def beat() -> None:
            # A stream that is through waits for the others and for the lane: as long as these move, tell it so.
            nonlocal seen
            tick()
            moved = self.landed_bytes + self._checks.checked_bytes
            if moved != seen:
                seen = moved
                with self._lock:
                    waiting = tuple(self._ended)
                for link in waiting:
                    link.busy()

        streams: list[Callable[[], None]] = [lambda link=link: self._stream(link) for link in links]  # type: ignore[misc]
        if made:
            streams.append(self._check_made)
        Together(streams, self._close, "receive").wait(_TICK_S, beat)
        self._last_byte = time.monotonic()
        Together([self._lane.drain], self._close, "drain").wait(_TICK_S, beat)
        if self._filling is not None:
            self._checks.keep(self._filling.total_bytes())
        return sorted({*self._checks.missing(), *self._checks.differing()})

    def _stream(self, link: ReceiveLink) -> None:
        while (landed := link.next()) is not None:
            with self._lock:
                self.landed_bytes += landed.chunk.size_bytes
            self._lane.landed(landed)
        with self._lock:
            self._ended.add(link)

    def _check_made(self) -> None:
        for chunk in self._checks.chunks:
            if chunk.fill and not self._cancelled:
                with self._lock:
                    self.landed_bytes += chunk.size_bytes
                self._lane.landed(Landed(chunk, fill_crc(chunk.fill, chunk.size_bytes)))

    def _require_time(self, wanted: Sequence[int], first_s: float) -> None:
        chunks = self._checks.chunks
        sent_bytes = sum(chunk.size_bytes for chunk in chunks if not chunk.fill)
        share = sum(chunks[index].size_bytes for index in wanted) / max(1, sent_bytes)
        if time.monotonic() + share * first_s > self._deadline:
            raise self._loss(wanted, "and the deadline leaves no time to send them again")

    def _ask(self, wanted: Sequence[int]) -> list[ReceiveLink]:
        """Spread what is wanted again over the streams; those that have nothing more to carry are over."""
        asked = []
        for number, link in enumerate(self._links):
            share = wanted[number :: len(self._links)]
            link.answer(share)
            if share:
                asked.append(link)
        return asked

    def _answer(self, links: Sequence[ReceiveLink]) -> None:
        for link in links:
            link.answer(())

    def _loss(self, wanted: Sequence[int], tried: str) -> DataLoss:
        missing = self._checks.missing()
        if missing:
            chunk: Chunk = self._checks.chunks[missing[0]]
            return DataLoss(
                f"{len(missing)} of {len(self._checks.chunks)} chunks never landed, {tried}; the first is chunk "
                f"{chunk.index} at offset {chunk.offset}. Nothing is installed, the source plays on",
                reason="CHUNK_MISSING",
                numbers={"chunk": chunk.index, "offset": chunk.offset, "missing_chunks": len(missing), "where": WHERE},
            )
        return chunk_mismatch(
            wanted, self._checks.source_crcs(), self._checks.slot_crcs(), self._checks.chunks, f"{WHERE}, {tried}"
        )

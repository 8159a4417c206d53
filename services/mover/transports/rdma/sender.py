"""The sending end of a stream: pieces as one-sided writes, each chunk closed by its record with an immediate."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

from mover.transports.order import Order
from mover.transports.rdma import verbs
from mover.transports.rdma.exchange import Offer
from mover.transports.rdma.link import Link
from mover.transports.rdma.records import RECORD, Records
from mover.transports.rdma.regions import Regions, Registered
from mover.transports.rdma.staging import PLACE_BYTES, PLACES, Staging
from worldline.buffers import address_of
from worldline.errors import BadRequest
from worldline.plan import Chunk
from worldline.transport import Piece

# A completion is asked for after this much, so that progress shows on slow paths too.
_SIGNAL_BYTES = 4 << 20


class Source:
    """What one stream reads from: the region, its records, and memory for pieces that are not of the region."""

    def __init__(self, regions: Regions, region: memoryview, chunks: int, *, coded: bool = False) -> None:
        """`coded`: there is a place for each coded piece that may be on its way."""
        self.address = address_of(region)
        self.size_bytes = region.nbytes
        self._regions = regions
        self.records = Records(chunks)
        self.staging = Staging() if coded else None
        self._held: list[Registered] = []
        self._bounce: mmap.mmap | None = None
        self._bounce_registered: Registered | None = None
        try:
            self.region = self._hold(regions.acquire(region, writable=False))
            self.records_registered = self._hold(regions.register_private(self.records.view, verbs.LOCAL_READ))
            if self.staging is not None:
                self.staged = self._hold(regions.register_private(self.staging.view, verbs.LOCAL_READ))
        except BaseException:
            self.close()
            raise

    def bounce(self, piece: memoryview) -> Registered:
        """A registered copy of a piece. Only when no earlier one is being read any more."""
        self._end_bounce()
        self._bounce = mmap.mmap(-1, piece.nbytes)
        self._bounce[:] = piece
        with memoryview(self._bounce) as view:
            self._bounce_registered = self._regions.register_private(view, verbs.LOCAL_READ)
        return self._bounce_registered

    def _end_bounce(self) -> None:
        if self._bounce_registered is not None:
            self._regions.release(self._bounce_registered)
            self._bounce_registered = None
        if self._bounce is not None:
            self._bounce.close()
            self._bounce = None

    def _hold(self, registered: Registered) -> Registered:
        self._held.append(registered)
        return registered

    def close(self) -> None:
        """Release all; no queue pair may be reading any more."""
        for registered in self._held:
            self._regions.release(registered)
        self.records.close()
        if self.staging is not None:
            self.staging.close()
        self._end_bounce()


class Sender:
    """See `worldline.transport.CodedSendLink`."""

    def __init__(
        self, link: Link, source: Source, offer: Offer, chunks: Sequence[Chunk], depth: int, longest: int, beat_s: float
    ) -> None:
        """`depth` writes may be unacknowledged; a message has at most `longest` bytes."""
        self._link = link
        self._source = source
        self._offer = offer
        self._chunks = chunks
        self._depth = depth
        self._longest = longest
        self._beat_s = beat_s
        self._beaten_at = time.monotonic()
        self._posted = self._acknowledged = 0
        self._unsignaled = self._unsignaled_bytes = 0
        self._order = Order(chunks)
        self._staged = 0  # coded pieces until now, each in the next place
        self._staged_as = [0] * PLACES  # the write that brought the last piece of each place

    def begin(self, chunk: Chunk) -> None:
        with self._link.use(f"sending chunk {chunk.index}"):
            self._order.begin(chunk, coded=False)

    def begin_coded(self, chunk: Chunk) -> None:
        with self._link.use(f"sending chunk {chunk.index}"):
            self._order.begin(chunk, coded=True)

    def write(self, piece: memoryview, offset: int) -> None:
        chunk = self._order.next(offset, len(piece))
        self._carry(chunk, piece, offset)
        self._order.wrote(len(piece))

    def write_piece(self, piece: Piece, payload: Sequence[memoryview]) -> None:
        chunk = self._order.next_piece(piece, payload)
        if piece.planes:
            self._stage(chunk, piece, payload)
        else:
            at = piece.offset
            for part in payload:
                self._carry(chunk, part, at)
                at += len(part)
        self._order.wrote(piece.size_bytes)

    def _stage(self, chunk: Chunk, piece: Piece, payload: Sequence[memoryview]) -> None:
        """Write a coded piece into its place at the receiver, once the piece before it there was taken out."""
        source, doing = self._source, f"sending chunk {chunk.index}"
        if source.staging is None:
            raise BadRequest("this move's plan is not coded", reason="BAD_CHUNK")
        place = self._staged % PLACES
        with self._link.use(doing):
            control = self._link.control
            self._link.wait(
                lambda: control.taken > self._staged - PLACES and self._acknowledged >= self._staged_as[place],
                self._take,
                doing,
                self._beat,
            )
            at = place * PLACE_BYTES
            size_bytes = source.staging.put(place, chunk, piece, list(payload))
            pieces = list(source.staged.pieces(at, size_bytes, self._longest))
            for number, (address, key, size) in enumerate(pieces, 1):
                self._make_room(doing)
                to, to_key = self._offer.staging_address + at, self._offer.staging_key
                if number < len(pieces):
                    signaled = self._signal(size)
                    self._link.pair.post_write(self._posted, address, size, key, to, to_key, signaled=signaled)
                else:
                    self._signal(_SIGNAL_BYTES)
                    immediate = len(self._chunks) + 1 + place
                    self._link.pair.post_write_with_immediate(self._posted, address, size, key, to, to_key, immediate)
                at += size
        self._staged += 1
        self._staged_as[place] = self._posted

    def _carry(self, chunk: Chunk, piece: memoryview, offset: int) -> None:
        """Write bytes into the slot as they are."""
        if not len(piece):
            return
        doing = f"sending chunk {chunk.index}"
        with self._link.use(doing):
            source = self._source
            inside = address_of(piece) - source.address
            if 0 <= inside <= source.size_bytes - len(piece):
                self._write(source.region, inside, len(piece), offset, doing)
            else:
                self._drain(doing)
                self._write(source.bounce(piece), 0, len(piece), offset, doing)

    def end(self, crc: int) -> None:
        chunk = self._order.end()
        with self._link.use(f"sending chunk {chunk.index}"):
            self._source.records.write(chunk, crc)
            self._post_record(chunk.index, f"sending chunk {chunk.index}")

    def finish(self) -> Sequence[int]:
        doing = "waiting for the receiver's checks"
        with self._link.use(doing):
            self._post_record(len(self._chunks), doing)
            control = self._link.control
            self._link.wait(
                lambda: control.answer is not None and self._posted == self._acknowledged,
                self._take,
                doing,
                self._beat,
            )
            return control.take_answer()

    def close(self) -> None:
        self._link.close()

    def _write(self, memory: Registered, inside: int, size_bytes: int, offset: int, doing: str) -> None:
        """Post writes of a stretch of `memory` to `offset` of the slot, cut where either side's segments end."""
        step = self._offer.segment_bytes
        for address, key, size in memory.pieces(inside, size_bytes, self._longest):
            end = address + size
            while address < end:
                index, into = divmod(offset, step)
                part = min(end - address, step - into)
                self._make_room(doing)
                signaled = self._signal(part)
                self._link.pair.post_write(
                    self._posted,
                    address,
                    part,
                    key,
                    self._offer.address + offset,
                    self._offer.keys[index],
                    signaled=signaled,
                )
                address, offset = address + part, offset + part

    def _post_record(self, index: int, doing: str) -> None:
        self._make_room(doing)
        at = index * RECORD.size
        ((address, key, size),) = self._source.records_registered.pieces(at, RECORD.size, RECORD.size)
        self._signal(_SIGNAL_BYTES)
        self._link.pair.post_write_with_immediate(
            self._posted, address, size, key, self._offer.records_address + at, self._offer.records_key, index
        )

    def _make_room(self, doing: str) -> None:
        if self._posted - self._acknowledged >= self._depth:
            self._link.wait(lambda: self._posted - self._acknowledged < self._depth, self._take, doing, self._beat)

    def _drain(self, doing: str) -> None:
        """Until all is acknowledged: the end of every stretch but an unfinished chunk's is signaled."""
        if self._unsignaled:
            self._post_nothing(doing)
        self._link.wait(lambda: self._posted == self._acknowledged, self._take, doing, self._beat)

    def _post_nothing(self, doing: str) -> None:
        """A write that asks for a completion of all before it: to the end's record, which nobody reads.

        A chunk's record may be another stream's, whose receiver is about to read what that stream wrote there.
        """
        self._make_room(doing)
        at = len(self._chunks) * RECORD.size
        ((address, key, size),) = self._source.records_registered.pieces(at, RECORD.size, RECORD.size)
        self._signal(_SIGNAL_BYTES)
        self._link.pair.post_write(
            self._posted, address, size, key, self._offer.records_address + at, self._offer.records_key, signaled=True
        )

    def _signal(self, size_bytes: int) -> bool:
        """Count one write that is about to be posted; whether to ask for its completion."""
        self._posted += 1
        self._unsignaled += 1
        self._unsignaled_bytes += size_bytes
        if self._unsignaled < self._depth // 4 and self._unsignaled_bytes < _SIGNAL_BYTES:
            return False
        self._unsignaled = self._unsignaled_bytes = 0
        return True

    def _take(self, completion: verbs.Completion) -> None:
        self._acknowledged = completion.number

    def _beat(self) -> None:
        """Our writes wake the receiver only at a chunk's end: tell it that bytes move."""
        now = time.monotonic()
        if now - self._beaten_at > self._beat_s:
            self._beaten_at = now
            self._link.control.progress()

"""What a transport is: links that carry chunks of one region into another, one link a stream, many streams a move.

The pipeline (in the mover) decides what is sent, when it is checksummed and when it is sent again; a transport only
carries. All calls block their own thread, honour `no_progress_s` and raise our errors:

- `Unavailable` (PEER_GONE): the other end closed or died; the message names the chunk.
- `TimedOut` (NO_PROGRESS): not one byte moved for `no_progress_s`, for instance because the peer is stopped.
- `Unauthenticated` (WRONG_TOKEN): the data connection did not present the token of its move.
- `BadRequest` (BAD_CHUNK, BAD_PIECE): a header that does not belong to the plan.
- `Cancelled`: `close` was called from another thread.

`worldline.testing.transports` is the conformance suite that every transport passes. One that also carries coded chunks
(`CodedSendLink`, `CodedReceiveLink`) passes `worldline.testing.coded` as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from worldline.errors import BadRequest
from worldline.plan import Chunk

MAX_PIECE_BYTES = 1 << 20
PIECE_WIDTHS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Terms:
    """What both ends of one move agree on before its streams are opened.

    `token` is the secret of 32 bytes that every stream presents; `traceparent` is a W3C trace context or empty.
    `coded`: the plan has a codec, so that coded chunks may come.
    """

    move_id: str
    token: bytes
    streams: int
    no_progress_s: float
    traceparent: str = ""
    coded: bool = False


@dataclass(frozen=True, slots=True)
class Landed:
    """A chunk that lies whole in the destination's region, with the CRC-32 its sender took from the source."""

    chunk: Chunk
    source_crc: int


@dataclass(frozen=True, slots=True)
class Piece:
    """How `size_bytes` at `offset` of the region cross the wire in a coded chunk.

    `planes` empty: as they are. Otherwise plane j holds byte j of every element, and there are as many planes as an
    element has bytes; each takes 0 bytes on the wire (all zeros), a whole plane's (as it is), or fewer (one frame of
    the codec).

    Raises:
        BadRequest: BAD_PIECE, for sizes that cannot be.
    """

    offset: int
    size_bytes: int
    planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        width = len(self.planes) or 1
        if (
            not 0 < self.size_bytes <= MAX_PIECE_BYTES
            or width not in PIECE_WIDTHS
            or self.size_bytes % width
            or any(not 0 <= plane <= self.size_bytes // width for plane in self.planes)
        ):
            raise BadRequest(
                f"a piece of {self.size_bytes} bytes in planes of {self.planes} bytes cannot be: it has up to "
                f"{MAX_PIECE_BYTES} bytes in {PIECE_WIDTHS} planes, none longer than its share",
                reason="BAD_PIECE",
                numbers={"offset": self.offset, "size_bytes": self.size_bytes},
            )

    @property
    def wire_bytes(self) -> int:
        """Bytes of its payload."""
        return sum(self.planes) if self.planes else self.size_bytes


class SendLink(Protocol):
    """The sending end of one stream."""

    def begin(self, chunk: Chunk) -> None:
        """Announce the chunk whose pieces follow."""

    def write(self, piece: memoryview, offset: int) -> None:
        """Carry one piece of the announced chunk to `offset` (bytes) of the destination's region.

        Pieces come in order and make up the chunk without gap.
        """

    def end(self, crc: int) -> None:
        """The announced chunk is whole; `crc` is its CRC-32 as taken from the source's region."""

    def finish(self) -> Sequence[int]:
        """End this round: block until the receiver has checked what came.

        Returns the indexes of the chunks that are wanted again on this stream; empty if the stream is over.
        """

    def close(self) -> None:
        """Give up or clean up; wakes every blocked call. Any thread, any number of times."""


class ReceiveLink(Protocol):
    """The receiving end of one stream; `traceparent` is the sender's trace context."""

    traceparent: str

    def next(self) -> Landed | None:
        """The next chunk that lies whole in the region; None when the sender has ended its round."""

    def answer(self, wanted_again: Sequence[int]) -> None:
        """Answer the sender's `finish`."""

    def busy(self) -> None:
        """Tell the sender that waits in `finish` that the receiver is still at work; its no-progress bound restarts."""

    def close(self) -> None:
        """Give up or clean up; wakes every blocked call. Any thread, any number of times."""


@runtime_checkable
class CodedSendLink(SendLink, Protocol):
    """A sending end that also carries coded chunks: `begin_coded`, pieces in order without gap, `end`."""

    def begin_coded(self, chunk: Chunk) -> None:
        """Announce a chunk whose pieces say each how they are coded."""

    def write_piece(self, piece: Piece, payload: Sequence[memoryview]) -> None:
        """Carry one piece; the parts of `payload` make up its `wire_bytes`.

        They are the caller's again when this returns.
        """


class Decoder(Protocol):
    """What takes coded pieces off the receive threads. Safe from any thread."""

    def buffer(self, size_bytes: int) -> memoryview:
        """Memory for a payload; blocks while too many wait to be decoded. Raises Cancelled when it is closed."""

    def decode(self, chunk: Chunk, piece: Piece, payload: memoryview) -> None:
        """Decode into the region, now or later; `payload` is what `buffer` gave."""


@runtime_checkable
class CodedReceiveLink(ReceiveLink, Protocol):
    """A receiving end that also takes coded chunks, once it is told by whom they are decoded."""

    def decode_with(self, decoder: Decoder) -> None:
        """From now on coded chunks may come; before, they are refused. `next` then returns a coded chunk when all of
        its pieces were handed to `decoder`."""


class Listener(Protocol):
    """The receiving end of one move, before its streams are there."""

    endpoint: str

    def accept(self) -> ReceiveLink:
        """The next stream that presented the move's token, within `no_progress_s`. All others are closed."""

    def close(self) -> None:
        """Accept no more; wakes a blocked `accept`. Any thread, any number of times."""


class Transport(Protocol):
    """A way from region to region, for all moves of one data plane."""

    name: str

    def listen(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> Listener:
        """Be ready for the streams of a move, which write into `region` (writable)."""

    def connect(
        self, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str, stream: int
    ) -> SendLink:
        """Open stream number `stream` to `endpoint`; `region` is the source's (read-only)."""

    def close(self) -> None:
        """Give up what is shared by all moves, for instance a listening socket."""

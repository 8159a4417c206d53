"""What a transport is: links that carry chunks of one region into another, one link a stream, many streams a move.

The pipeline (in the mover) decides what is sent, when it is checksummed and when it is sent again; a transport only
carries. All calls block their own thread, honour `no_progress_s` and raise our errors:

- `Unavailable` (PEER_GONE): the other end closed or died; the message names the chunk.
- `TimedOut` (NO_PROGRESS): not one byte moved for `no_progress_s`, for instance because the peer is stopped.
- `Unauthenticated` (WRONG_TOKEN): the data connection did not present the token of its move.
- `BadRequest` (BAD_CHUNK): a header that does not belong to the plan.
- `Cancelled`: `close` was called from another thread.

`worldline.testing.transports` is the conformance suite that every transport passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from worldline.plan import Chunk


@dataclass(frozen=True, slots=True)
class Terms:
    """What both ends of one move agree on before its streams are opened.

    `token` is the secret of 32 bytes that every stream presents; `traceparent` is a W3C trace context or empty.
    """

    move_id: str
    token: bytes
    streams: int
    no_progress_s: float
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Landed:
    """A chunk that lies whole in the destination's region, with the CRC-32 its sender took from the source."""

    chunk: Chunk
    source_crc: int


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

"""One move through a transport under test: its regions and links, and both ends of a round as the pipeline has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worldline.crc import crc32
from worldline.plan import Chunk, Placement, Plan
from worldline.transport import Landed, Listener, ReceiveLink, SendLink, Terms, Transport

PATIENT_S = 20.0
PIECE_BYTES = 1 << 16


def plan_for(transport: str, chunk_bytes: int, streams: int = 1, tail_bytes: tuple[int, ...] = ()) -> Plan:
    """A plan for small regions."""
    return Plan(transport, chunk_bytes, streams, Placement.PIPELINED, 60, 60, PATIENT_S, tail_bytes=tail_bytes)


@dataclass
class Carried:
    """One move through a transport under test: both regions, the links that were opened."""

    transport: Transport
    chunks: tuple[Chunk, ...]
    terms: Terms
    source: memoryview
    slot: memoryview
    listener: Listener
    senders: list[SendLink] = field(default_factory=list)
    receivers: list[ReceiveLink] = field(default_factory=list)

    def open_streams(self) -> None:
        """Connect and accept all of them."""
        for stream in range(self.terms.streams):
            self.senders.append(
                self.transport.connect(self.source, self.chunks, self.terms, self.listener.endpoint, stream)
            )
            self.receivers.append(self.listener.accept())

    def close(self) -> None:
        """Close everything; safe at any point of a test."""
        for sender in self.senders:
            sender.close()
        for receiver in self.receivers:
            receiver.close()
        self.listener.close()

    def differing(self) -> list[int]:
        """Chunks of the slot that are not the source's."""
        return [
            chunk.index
            for chunk in self.chunks
            if self.source[chunk.offset : chunk.offset + chunk.size_bytes]
            != self.slot[chunk.offset : chunk.offset + chunk.size_bytes]
        ]


def send_chunk(link: SendLink, region: memoryview, chunk: Chunk) -> None:
    """Send one chunk as the pipeline does."""
    link.begin(chunk)
    crc = 0
    end = chunk.offset + chunk.size_bytes
    for at in range(chunk.offset, end, PIECE_BYTES):
        with region[at : min(at + PIECE_BYTES, end)] as piece:
            crc = crc32(piece, crc)
            link.write(piece, at)
    link.end(crc)


def send_all(link: SendLink, region: memoryview, chunks: Sequence[Chunk]) -> list[int]:
    """Send chunks and end the round. Returns what is wanted again."""
    for chunk in chunks:
        send_chunk(link, region, chunk)
    return list(link.finish())


def receive_round(link: ReceiveLink) -> list[Landed]:
    """Everything of one round."""
    landed = []
    while (item := link.next()) is not None:
        landed.append(item)
    return landed

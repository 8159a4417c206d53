"""Receipts: what each end of a move vouches for, and when two of them allow a commit."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from worldline.crc import combine_all
from worldline.errors import BadRequest, DataLoss
from worldline.plan import Chunk


class Side(enum.IntEnum):
    """Which end issued a receipt; values are those of the wire."""

    SOURCE = 1
    DESTINATION = 2


@dataclass(frozen=True, slots=True)
class Receipt:
    """Checksums of one side, bound to the move, its epoch and the three digests."""

    side: Side
    move_id: str
    epoch: int
    layout_digest: bytes
    manifest_digest: bytes
    plan_digest: bytes
    size_bytes: int
    chunk_crcs: tuple[int, ...]
    state_crc: int
    host_id: str
    incarnation: int


def whole_crc(chunks: Sequence[Chunk], crcs: Sequence[int]) -> int:
    """CRC-32 of the region from those of its chunks.

    Raises:
        BadRequest: another number of checksums than chunks.
    """
    if len(chunks) != len(crcs):
        raise BadRequest(
            f"{len(crcs)} checksums for {len(chunks)} chunks", violations={"chunk_crcs": "one for each chunk is needed"}
        )
    return combine_all((crc, chunk.size_bytes) for crc, chunk in zip(crcs, chunks, strict=True))


def differing_chunks(source: Sequence[int], destination: Sequence[int]) -> list[int]:
    """Indexes at which two lists of checksums differ; a missing one differs."""
    length = max(len(source), len(destination))
    return [
        index
        for index in range(length)
        if index >= len(source) or index >= len(destination) or source[index] != destination[index]
    ]


def require_match(source: Receipt, destination: Receipt, chunks: Sequence[Chunk]) -> None:
    """Refuse to commit unless both receipts are there and equal in every field that both vouch for.

    Raises:
        DataLoss: with the first chunk that differs, its offset and both CRCs, or the field that differs.
    """
    if (source.side, destination.side) != (Side.SOURCE, Side.DESTINATION):
        raise DataLoss("two receipts of the same side do not confirm a move", reason="RECEIPT_MISMATCH")
    bad = differing_chunks(source.chunk_crcs, destination.chunk_crcs)
    if bad:
        raise chunk_mismatch(bad, source.chunk_crcs, destination.chunk_crcs, chunks, "between the two receipts")
    for name in (
        "move_id",
        "epoch",
        "layout_digest",
        "manifest_digest",
        "plan_digest",
        "size_bytes",
        "state_crc",
    ):
        ours, theirs = getattr(source, name), getattr(destination, name)
        if ours != theirs:
            shown = [value.hex()[:16] if isinstance(value, bytes) else value for value in (ours, theirs)]
            raise DataLoss(
                f"the receipts differ in {name}: source {shown[0]}, destination {shown[1]}; nothing is installed",
                reason="RECEIPT_MISMATCH",
                numbers={"field": name},
            )
    if len(source.chunk_crcs) != len(chunks) or whole_crc(chunks, source.chunk_crcs) != source.state_crc:
        raise DataLoss("the receipts' chunks do not make up their whole", reason="RECEIPT_MISMATCH")


def chunk_mismatch(
    bad: Sequence[int], source: Sequence[int], destination: Sequence[int], chunks: Sequence[Chunk], where: str
) -> DataLoss:
    """The error for chunks whose checksums differ, naming the first and where it was seen."""
    first = bad[0]
    offset = chunks[first].offset if first < len(chunks) else -1
    ours = source[first] if first < len(source) else 0
    theirs = destination[first] if first < len(destination) else 0
    return DataLoss(
        f"{len(bad)} of {len(chunks)} chunks differ {where}; the first is chunk {first} at offset {offset}: "
        f"source CRC {ours:08x}, destination CRC {theirs:08x}. Nothing is installed, the source plays on",
        reason="CHUNK_MISMATCH",
        numbers={
            "chunk": first,
            "offset": offset,
            "source_crc": f"{ours:08x}",
            "destination_crc": f"{theirs:08x}",
            "bad_chunks": len(bad),
            "where": where,
        },
    )

"""How a region is cut into pieces whose checksums tell what a block has written: never across the edge of a leaf."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from worldline.errors import BadRequest
from worldline.layout import Layout
from worldline.plan import Chunk

MIN_PIECE_BYTES = 64
MAX_PIECE_BYTES = 1 << 30
# A host takes, keeps and sends four bytes for each piece and block boundary.
MAX_PIECES = 1 << 17
# More take longer than the checksums themselves.
_WANTED_PIECES = 1 << 12
_FINEST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces in order of their offsets. Piece i stands for `stands_for[i]` bytes: its own and those left out after it.

    `of_leaf[n]` are the indexes of the pieces of leaf n; leaves that share memory share pieces.
    """

    piece_bytes: int
    one_in: int
    chunks: tuple[Chunk, ...]
    stands_for: tuple[int, ...]
    of_leaf: tuple[range, ...]


def default_piece_bytes(region_bytes: int) -> int:
    """The power of two, from 4096 on, that cuts a region into 4096 pieces or fewer (beside what leaves add)."""
    size = _FINEST_BYTES
    while size * _WANTED_PIECES < region_bytes:
        size *= 2
    return size


def cut(layout: Layout, piece_bytes: int, one_in: int = 1) -> Pieces:
    """Cut every leaf into pieces of `piece_bytes`, and keep one in `one_in` of them, the first of each leaf always.

    Raises:
        BadRequest: a size or share out of bounds, or over `MAX_PIECES` pieces.
    """
    if not MIN_PIECE_BYTES <= piece_bytes <= MAX_PIECE_BYTES:
        raise _bad("piece_bytes", f"{piece_bytes} is not between {MIN_PIECE_BYTES} and {MAX_PIECE_BYTES}")
    if not 1 <= one_in <= MAX_PIECES:
        raise _bad("one_in", f"{one_in} is not between 1 and {MAX_PIECES}")
    stretches = list(_stretches(layout))
    step = piece_bytes * one_in
    count = sum(-(-(end - start) // step) for start, end in stretches)
    if count > MAX_PIECES:
        raise _bad(
            "piece_bytes", f"{count} pieces of {piece_bytes} bytes; at most {MAX_PIECES} are taken: ask for larger ones"
        )
    chunks: list[Chunk] = []
    stands_for: list[int] = []
    for start, end in stretches:
        for at in range(start, end, step):
            chunks.append(Chunk(len(chunks), at, min(piece_bytes, end - at)))
            stands_for.append(min(step, end - at))
    offsets = [chunk.offset for chunk in chunks]
    of_leaf = tuple(
        range(bisect_left(offsets, leaf.offset), bisect_left(offsets, leaf.offset + leaf.size_bytes))
        for leaf in layout.leaves
    )
    return Pieces(piece_bytes, one_in, tuple(chunks), tuple(stands_for), of_leaf)


def _stretches(layout: Layout) -> Iterator[tuple[int, int]]:
    """(start, end) between neighbouring edges of leaves, without the space that belongs to none."""
    edges: dict[int, int] = {}
    for leaf in layout.leaves:
        if leaf.size_bytes:
            edges[leaf.offset] = edges.get(leaf.offset, 0) + 1
            edges[leaf.offset + leaf.size_bytes] = edges.get(leaf.offset + leaf.size_bytes, 0) - 1
    start, inside = 0, 0
    for edge, change in sorted(edges.items()):
        if inside:
            yield start, edge
        start, inside = edge, inside + change


def _bad(field: str, what: str) -> BadRequest:
    return BadRequest(f"{field}: {what}", violations={field: what})

"""Where coded pieces of a stream land: a few places beside the slot, each free again once its piece was taken out.

Places are used in turn and given back in turn, so that both ends only count. A piece lies in its place as its head and
its payload; one write with an immediate brings both.
"""

from __future__ import annotations

import mmap
import struct

from worldline.errors import BadRequest
from worldline.plan import Chunk
from worldline.transport import MAX_PIECE_BYTES, Piece

PLACES = 4
# Chunk, number of planes, offset and size in the region, bytes of each plane on the wire.
_HEAD = struct.Struct(">IIQI4I28x")
PLACE_BYTES = _HEAD.size + MAX_PIECE_BYTES


class Staging:
    """Memory of its own for `PLACES` coded pieces of one stream, at one end."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, PLACES * PLACE_BYTES)
        self.view = memoryview(self._map)

    def put(self, place: int, chunk: Chunk, piece: Piece, parts: list[memoryview]) -> int:
        """Lay a piece into a place. Returns the bytes that are to be written."""
        at = place * PLACE_BYTES
        sizes = (*piece.planes, 0, 0, 0, 0)[:4]
        _HEAD.pack_into(self.view, at, chunk.index, len(piece.planes), piece.offset, piece.size_bytes, *sizes)
        at += _HEAD.size
        for part in parts:
            self.view[at : at + len(part)] = part
            at += len(part)
        return at - place * PLACE_BYTES

    def piece(self, place: int) -> tuple[int, Piece]:
        """The index of its chunk and the piece that a peer wrote into a place. Raises BadRequest (BAD_PIECE)."""
        # The head is read once: a peer that goes on writing changes nothing of what was checked.
        index, count, offset, size, *planes = _HEAD.unpack_from(self.view, place * PLACE_BYTES)
        if not 0 < count <= len(planes):
            raise BadRequest(f"the sender announced {count} planes, which is no coded piece", reason="BAD_PIECE")
        return index, Piece(offset, size, tuple(planes[:count]))

    def take(self, place: int, payload: memoryview) -> None:
        """Copy a piece's payload out of its place."""
        at = place * PLACE_BYTES + _HEAD.size
        payload[:] = self.view[at : at + len(payload)]

    def close(self) -> None:
        """Free the memory; the device must not reach it any more."""
        self.view.release()
        self._map.close()

"""The records of a stream: what the sender says of each chunk, 16 bytes each, written with the chunk's immediate.

One record more than chunks: the last one ends a round.
"""

from __future__ import annotations

import mmap
import struct

from worldline.plan import Chunk

RECORD = struct.Struct(">IQ4x")


class Records:
    """Memory of its own for `chunks` records and the end's."""

    def __init__(self, chunks: int) -> None:
        self.end_index = chunks
        self._map = mmap.mmap(-1, (chunks + 1) * RECORD.size)
        self.view = memoryview(self._map)

    def write(self, chunk: Chunk, crc: int) -> None:
        """What the sender says of a chunk."""
        RECORD.pack_into(self.view, chunk.index * RECORD.size, crc, chunk.size_bytes)

    def read(self, index: int) -> tuple[int, int]:
        """CRC-32 and bytes of a chunk, as its sender says."""
        crc, size_bytes = RECORD.unpack_from(self.view, index * RECORD.size)
        return crc, size_bytes

    def close(self) -> None:
        """Free the memory; the device must not reach it any more."""
        self.view.release()
        self._map.close()

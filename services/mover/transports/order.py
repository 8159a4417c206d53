"""The order in which a sending half is given its bytes: chunk by chunk of the plan, each from its start to its end."""

from __future__ import annotations

from collections.abc import Sequence

from worldline.errors import BadRequest
from worldline.plan import Chunk
from worldline.transport import Piece


class Order:
    """Where one sending half is in its chunk. All methods raise BadRequest for what is not next."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._chunk: Chunk | None = None
        self._coded = False
        self._written = 0

    def begin(self, chunk: Chunk, *, coded: bool) -> None:
        """A chunk, which must be one of the plan."""
        if chunk.index >= len(self._chunks) or self._chunks[chunk.index] != chunk:
            raise BadRequest(
                f"chunk {chunk.index} of {chunk.size_bytes} bytes at {chunk.offset} is not the plan's",
                reason="BAD_CHUNK",
                numbers={"chunk": chunk.index, "size_bytes": chunk.size_bytes},
            )
        self._chunk, self._coded, self._written = chunk, coded, 0

    def next(self, offset: int, size_bytes: int) -> Chunk:
        """The chunk that these bytes are next in; it goes as it is."""
        return self._next(offset, size_bytes, coded=False)

    def next_piece(self, piece: Piece, payload: Sequence[memoryview]) -> Chunk:
        """The coded chunk that `piece` is next in."""
        chunk = self._next(piece.offset, piece.size_bytes, coded=True)
        if sum(len(part) for part in payload) != piece.wire_bytes:
            raise BadRequest(f"a piece's payload is not of {piece.wire_bytes} bytes", reason="BAD_PIECE")
        return chunk

    def _next(self, offset: int, size_bytes: int, *, coded: bool) -> Chunk:
        chunk = self._chunk
        if (
            chunk is None
            or coded is not self._coded
            or offset != chunk.offset + self._written
            or self._written + size_bytes > chunk.size_bytes
        ):
            raise BadRequest(f"{size_bytes} bytes at {offset} are not next in the chunk", reason="BAD_CHUNK")
        return chunk

    def wrote(self, size_bytes: int) -> None:
        """What was next is on its way."""
        self._written += size_bytes

    def end(self) -> Chunk:
        """The chunk that is over, whole."""
        chunk, self._chunk = self._chunk, None
        if chunk is None or self._written != chunk.size_bytes:
            raise BadRequest(f"a chunk was ended after {self._written} bytes", reason="BAD_CHUNK")
        return chunk

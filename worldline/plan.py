"""The plan of a move (admission's choice) and the chunks that follow from it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from worldline.canonical import digest
from worldline.errors import BadRequest

PAGE_BYTES = 4096
MAX_CHUNK_BYTES = 1 << 30
MAX_CHUNKS = 1 << 20
MAX_STREAMS = 16


class Placement(enum.IntEnum):
    """Where verification runs (paper §6.5); values are those of the wire."""

    SEQUENTIAL = 1
    PIPELINED = 2
    IN_PATH = 3
    DEVICE = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a region: `offset` and `size_bytes` in bytes."""

    index: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """How a state is moved.

    Raises:
        BadRequest: a field out of bounds.
    """

    transport: str
    chunk_bytes: int
    streams: int
    placement: Placement
    deadline_s: float
    max_freeze_s: float
    no_progress_s: float
    codec: str = "raw"
    tail_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        violations: dict[str, str] = {}
        if not 0 < len(self.transport) <= 32:
            violations["plan.transport"] = f"{self.transport[:32]!r} is no transport's name"
        if not PAGE_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES or self.chunk_bytes % PAGE_BYTES:
            violations["plan.chunk_bytes"] = (
                f"{self.chunk_bytes} is not a multiple of {PAGE_BYTES} up to {MAX_CHUNK_BYTES}"
            )
        if len(self.tail_bytes) > 64 or any(not 0 < size <= self.chunk_bytes for size in self.tail_bytes):
            violations["plan.tail_bytes"] = "at most 64 sizes, each above 0 and at most chunk_bytes"
        if not 1 <= self.streams <= MAX_STREAMS:
            violations["plan.streams"] = f"{self.streams} is not between 1 and {MAX_STREAMS}"
        if self.codec != "raw":
            violations["plan.codec"] = f"{self.codec[:32]!r} is not built in; use 'raw'"
        for name in ("deadline_s", "max_freeze_s", "no_progress_s"):
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                violations[f"plan.{name}"] = f"{value} is not above 0 and at most 86400 s"
            else:
                # Whole seconds given as int make the same plan, and the same digest, as they do after the wire.
                object.__setattr__(self, name, float(value))
        if violations:
            raise BadRequest("the plan was refused: " + "; ".join(violations.values()), violations=violations)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over every field."""
        return digest(
            "plan",
            [
                self.transport,
                self.chunk_bytes,
                self.tail_bytes,
                self.streams,
                self.codec,
                int(self.placement),
                self.deadline_s,
                self.max_freeze_s,
                self.no_progress_s,
            ],
        )

    def chunks(self, region_bytes: int) -> tuple[Chunk, ...]:
        """The chunks of a region, in order, without gap or overlap.

        Chunks of `chunk_bytes` come first, what is left of them next, and `tail_bytes` last; a region smaller than
        the tail has no tail.

        Raises:
            BadRequest: more than `MAX_CHUNKS` chunks.
        """
        tail = self.tail_bytes if sum(self.tail_bytes) < region_bytes else ()
        body = region_bytes - sum(tail)
        if body // self.chunk_bytes + len(tail) > MAX_CHUNKS:
            raise BadRequest(
                f"{region_bytes} bytes in chunks of {self.chunk_bytes} make over {MAX_CHUNKS} chunks: use larger ones",
                violations={"plan.chunk_bytes": "too small for this region"},
            )
        return tuple(self._cut(body, tail))

    def _cut(self, body: int, tail: tuple[int, ...]) -> Iterator[Chunk]:
        index = offset = 0
        while offset < body:
            size = min(self.chunk_bytes, body - offset)
            yield Chunk(index, offset, size)
            index, offset = index + 1, offset + size
        for size in tail:
            yield Chunk(index, offset, size)
            index, offset = index + 1, offset + size

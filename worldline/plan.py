"""The plan of a move (admission's choice) and the chunks that follow from it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from worldline.canonical import digest
from worldline.errors import BadRequest

PAGE_BYTES = 4096
MAX_CHUNK_BYTES = 1 << 30
MAX_CHUNKS = 1 << 20
MAX_STREAMS = 16
MAX_TAIL_CHUNKS = 64
RAW = "raw"
CODECS = (RAW, "zstd")


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
    codec: str = RAW
    tail_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        violations: dict[str, str] = {}
        if not 0 < len(self.transport) <= 32:
            violations["plan.transport"] = f"{self.transport[:32]!r} is no transport's name"
        if not PAGE_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES or self.chunk_bytes % PAGE_BYTES:
            violations["plan.chunk_bytes"] = (
                f"{self.chunk_bytes} is not a multiple of {PAGE_BYTES} up to {MAX_CHUNK_BYTES}"
            )
        if len(self.tail_bytes) > MAX_TAIL_CHUNKS or any(not 0 < size <= self.chunk_bytes for size in self.tail_bytes):
            violations["plan.tail_bytes"] = f"at most {MAX_TAIL_CHUNKS} sizes, each above 0 and at most chunk_bytes"
        if not 1 <= self.streams <= MAX_STREAMS:
            violations["plan.streams"] = f"{self.streams} is not between 1 and {MAX_STREAMS}"
        if self.codec not in CODECS:
            violations["plan.codec"] = f"{self.codec[:32]!r} is not built in; use one of {', '.join(CODECS)}"
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
        return _cut(self.chunk_bytes, body, tail)


# Both ends of a move ask for the same chunks several times while a session is frozen.
@lru_cache(maxsize=16)
def _cut(chunk_bytes: int, body: int, tail: tuple[int, ...]) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    offset = 0
    while offset < body:
        size = min(chunk_bytes, body - offset)
        chunks.append(Chunk(len(chunks), offset, size))
        offset += size
    for size in tail:
        chunks.append(Chunk(len(chunks), offset, size))
        offset += size
    return tuple(chunks)


# A smaller chunk costs more in calls and wake-ups than its verification takes.
MIN_TAIL_BYTES = 64 << 10
# Shrinking faster gains nothing: what is left is one small chunk either way.
_FASTEST_SHRINK = 0.25


def tail_schedule(chunk_bytes: int, wire_Bps: float, verify_Bps: float) -> tuple[int, ...]:
    """Sizes in bytes of a plan's last chunks, so that the verification left after the last byte is one small chunk's.

    Each chunk must arrive no faster than the one before it is checked: size k+1 >= size k * wire_Bps / verify_Bps, the
    whole lane's rate. Sizes shrink by that ratio down to `MIN_TAIL_BYTES`, as far as a plan may have sizes, and are
    multiples of `PAGE_BYTES`. Empty where none helps: chunks that are small already, or a lane slower than the wire.

    Raises:
        BadRequest: `chunk_bytes` is not a plan's, or a rate is not above 0.
    """
    if not PAGE_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES or chunk_bytes % PAGE_BYTES:
        raise BadRequest(f"chunks of {chunk_bytes} bytes are not a multiple of {PAGE_BYTES} up to {MAX_CHUNK_BYTES}")
    if not (wire_Bps > 0 and verify_Bps > 0):
        raise BadRequest(f"a wire of {wire_Bps} and a lane of {verify_Bps} bytes/s have no tail schedule")
    ratio = max(wire_Bps / verify_Bps, _FASTEST_SHRINK)
    sizes: list[int] = []
    before = chunk_bytes
    while len(sizes) < MAX_TAIL_CHUNKS:
        size = max(math.ceil(before * ratio / PAGE_BYTES) * PAGE_BYTES, MIN_TAIL_BYTES)
        if size >= before:
            break
        sizes.append(size)
        before = size
    return tuple(sizes)

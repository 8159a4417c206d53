"""The plan of a move (admission's choice) and the chunks that follow from it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from worldline.canonical import digest
from worldline.errors import BadRequest
from worldline.made import Made, faults_of

PAGE_BYTES = 4096
MAX_CHUNK_BYTES = 1 << 30
MAX_CHUNKS = 1 << 20
MAX_STREAMS = 16
MAX_TAIL_CHUNKS = 64
RAW = "raw"
CODECS = (RAW, "zstd")
# At work on the device itself, in the engine hosts: what movers carry is coded already.
DEVICE_CODECS = ("ans",)
ALL_CODECS = (*CODECS, *DEVICE_CODECS)


class Placement(enum.IntEnum):
    """Where verification runs (paper §6.5); values are those of the wire."""

    SEQUENTIAL = 1
    PIPELINED = 2
    IN_PATH = 3
    DEVICE = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a region: `offset` and `size_bytes` in bytes.

    `fill` is what it holds over and over if the destination makes it; empty: it is sent.
    """

    index: int
    offset: int
    size_bytes: int
    fill: bytes = b""


@dataclass(frozen=True)
class Plan:
    """How a state is moved.

    `staged`: it lies on devices (placement DEVICE) and goes through host memory at both ends. Without it, placement
    DEVICE means that the destination's device reads the source's. `made` is not sent, but made at the destination.

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
    staged: bool = False
    made: tuple[Made, ...] = ()

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
        if self.codec not in ALL_CODECS:
            violations["plan.codec"] = f"{self.codec[:32]!r} is not built in; use one of {', '.join(ALL_CODECS)}"
        elif self.codec in DEVICE_CODECS and not self.staged:
            violations["plan.codec"] = f"{self.codec} codes on a device: the plan must be staged"
        if self.staged and self.placement is not Placement.DEVICE:
            violations["plan.staged"] = f"only state on devices is staged, and placement is {self.placement.name}"
        if self.made and self.codec in DEVICE_CODECS:
            violations["plan.made"] = f"{self.codec} codes a state whole: what holds a constant costs it nothing"
        elif what := faults_of(self.made):
            violations["plan.made"] = what
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
                self.staged,
                # Not there at all where nothing is made.
                *([[[item.offset, item.size_bytes, item.fill] for item in self.made]] if self.made else ()),
            ],
        )

    @cached_property
    def made_bytes(self) -> int:
        """Bytes that are not sent."""
        return sum(item.size_bytes for item in self.made)

    def chunks(self, region_bytes: int) -> tuple[Chunk, ...]:
        """The chunks of a region, in order, without gap or overlap.

        No chunk is partly made and partly sent. Chunks of `chunk_bytes` come first, what is left of each stretch next,
        and `tail_bytes` last of what is sent; a last sent stretch that is no larger than the tail has none.

        Raises:
            BadRequest: more than `MAX_CHUNKS` chunks, or a made stretch that leaves the region.
        """
        if self.made and self.made[-1].end > region_bytes:
            what = f"a stretch that ends at {self.made[-1].end} leaves the region of {region_bytes} bytes"
            raise BadRequest(f"plan.made: {what}", violations={"plan.made": what})
        if region_bytes // self.chunk_bytes + 2 * len(self.made) + len(self.tail_bytes) > MAX_CHUNKS:
            raise BadRequest(
                f"{region_bytes} bytes in chunks of {self.chunk_bytes} make over {MAX_CHUNKS} chunks: use larger ones",
                violations={"plan.chunk_bytes": "too small for this region"},
            )
        return _cut(self.chunk_bytes, region_bytes, self.tail_bytes, self.made)


# Both ends of a move ask for the same chunks several times while a session is frozen.
@lru_cache(maxsize=16)
def _cut(chunk_bytes: int, region_bytes: int, tail_bytes: tuple[int, ...], made: tuple[Made, ...]) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    stretches = _stretches(region_bytes, made)
    last_sent = max((start for start, _, fill in stretches if not fill), default=-1)
    for start, end, fill in stretches:
        tail = tail_bytes if start == last_sent and sum(tail_bytes) < end - start else ()
        offset, body_end = start, end - sum(tail)
        while offset < body_end:
            size = min(chunk_bytes, body_end - offset)
            chunks.append(Chunk(len(chunks), offset, size, fill))
            offset += size
        for size in tail:
            chunks.append(Chunk(len(chunks), offset, size, fill))
            offset += size
    return tuple(chunks)


def _stretches(region_bytes: int, made: tuple[Made, ...]) -> list[tuple[int, int, bytes]]:
    """Start, end and fill of what is sent (without fill) and what is made, in order."""
    stretches: list[tuple[int, int, bytes]] = []
    at = 0
    for item in made:
        if item.offset > at:
            stretches.append((at, item.offset, b""))
        stretches.append((item.offset, item.end, item.fill))
        at = item.end
    if at < region_bytes:
        stretches.append((at, region_bytes, b""))
    return stretches


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

"""A state as its device has coded it: the two byte planes of each segment, one after another in a buffer.

Plane 0 holds the even bytes of a segment, plane 1 the odd ones: of bf16, the mantissa, and sign and exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worldline.errors import BadRequest

# A codec of a device is at its full rate from some tens of MB on; a segment is also what it takes memory for.
SEGMENT_BYTES = 128 << 20
PLANES = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One plane as it lies in the buffer: nothing (all zeros), all of it as it is, or fewer bytes (one frame).

    `crc` is the CRC-32 of these bytes, taken on the source's device.
    """

    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the region, in bytes."""

    offset: int
    size_bytes: int

    @property
    def planes(self) -> tuple[int, int]:
        """Bytes of its planes."""
        return (self.size_bytes + 1) // 2, self.size_bytes // 2


def segments(region_bytes: int) -> tuple[Segment, ...]:
    """The segments of a region, in order."""
    return tuple(Segment(at, min(SEGMENT_BYTES, region_bytes - at)) for at in range(0, region_bytes, SEGMENT_BYTES))


def carried_bytes(parts: Sequence[Part]) -> int:
    """Bytes of the buffer that they take, from its start."""
    return sum(part.size_bytes for part in parts)


def require_planes(parts: Sequence[Part], segment: Segment) -> None:
    """Refuse parts that cannot be of this segment. Raises BadRequest."""
    if len(parts) != PLANES or any(
        not 0 <= part.size_bytes <= plane for part, plane in zip(parts, segment.planes, strict=True)
    ):
        what = f"those of a segment are its {PLANES} planes, none longer than {max(segment.planes)} bytes"
        raise BadRequest(f"{len(parts)} coded parts: {what}", reason="BAD_PARTS", violations={"parts": what})


def most_parts(region_bytes: int) -> int:
    """How many parts a region has."""
    return PLANES * len(segments(region_bytes))


def require_parts(parts: Sequence[Part], region_bytes: int) -> None:
    """Refuse parts that cannot be of such a region, before any of them is looked at. Raises BadRequest."""
    if len(parts) != most_parts(region_bytes):
        what = f"a region of {region_bytes} bytes has {most_parts(region_bytes)} planes"
        raise BadRequest(f"{len(parts)} coded parts: {what}", reason="BAD_PARTS", violations={"parts": what})
    for number, segment in enumerate(segments(region_bytes)):
        require_planes(parts[PLANES * number : PLANES * (number + 1)], segment)

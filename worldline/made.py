"""What of a region is made at the destination instead of sent: stretches that hold nothing but a constant.

The motion set of a move (paper §3.3) is the rest of the region. Both receipts bind made bytes like all others: the
source's checksum is taken over what lies there, the destination's over what lies in the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from worldline.crc import crc32_repeated

MAX_MADE = 1024
# Bytes of an element: no tensor's is larger.
FILL_BYTES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Made:
    """A stretch of a region, `offset` and `size_bytes` in bytes, that holds `fill` over and over."""

    offset: int
    size_bytes: int
    fill: bytes = b"\0"

    @property
    def end(self) -> int:
        """Past its last byte."""
        return self.offset + self.size_bytes


def faults_of(made: Sequence[Made]) -> str:
    """What is wrong with stretches that one plan is to have; empty if nothing is."""
    if len(made) > MAX_MADE:
        return f"{len(made)} made stretches; at most {MAX_MADE} are allowed"
    at = 0
    for item in made:
        if len(item.fill) not in FILL_BYTES:
            return f"a fill of {len(item.fill)} bytes; one of {', '.join(map(str, FILL_BYTES))} is needed"
        if item.offset < at or item.size_bytes <= 0:
            return f"{item.size_bytes} bytes at {item.offset} are empty, out of order or overlap what ends at {at}"
        if item.size_bytes % len(item.fill):
            return f"{item.size_bytes} bytes are no whole number of fills of {len(item.fill)}"
        at = item.end
    return ""


@lru_cache(maxsize=256)
def fill_crc(fill: bytes, size_bytes: int) -> int:
    """CRC-32 of `size_bytes` of `fill` over and over, by algebra: no byte is read."""
    return crc32_repeated(fill, size_bytes // len(fill))

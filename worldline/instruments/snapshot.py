"""What an engine host tells of a session that is inspected. Plain values: no numpy, no codec."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from worldline.layout import Layout


@dataclass(frozen=True, slots=True)
class Subject:
    """What is inspected: its layout, and what its engine declares. `block_s` is 0 where it was not measured."""

    name: str
    engine: str
    preset: str
    layout: Layout
    piece_bytes: int
    cold_paths: frozenset[str]
    dirty_bytes_per_block: int
    block_s: float


@dataclass(frozen=True, slots=True)
class Boundary:
    """CRC-32 of each piece at the boundary before block `next_block`; taking them held the session up for `still_s`."""

    next_block: int
    crcs: array[int]
    still_s: float


@dataclass(frozen=True, slots=True)
class Coded:
    """What the codec makes of the sampled bytes of a leaf.

    `planes` are the coded bytes of each byte plane, least significant first, one for a leaf that is not split;
    `wire_bytes` is what would be sent: planes and pieces that do not pay go as they are.
    """

    path: str
    sampled_bytes: int
    wire_bytes: int
    planes: tuple[int, ...]

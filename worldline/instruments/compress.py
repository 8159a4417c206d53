"""What the codec of coded moves makes of each leaf, from a sample, with its own cuts, planes and choices.

Samples are smaller than the codec's pieces of 1 MiB, which code a little better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldline.codec.runs import Cutter, runs_of
from worldline.codec.zstd import Coder
from worldline.instruments.snapshot import Coded
from worldline.layout import Layout, Leaf
from worldline.plan import Chunk

SAMPLE_BYTES = 16 << 20
_PLACES = 4
_LEAST_PLACE_BYTES = 4096
_STEP_BYTES = 16  # a multiple of every element


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of leaf `leaf` (its index) that is sampled, in bytes of the region."""

    leaf: int
    offset: int
    size_bytes: int


def places(layout: Layout, sample_bytes: int = SAMPLE_BYTES) -> list[Place]:
    """What to sample: all of small leaves, four stretches of each large one; `sample_bytes` in all, more or less."""
    found: list[Place] = []
    left, leaves = sample_bytes, sorted((leaf.size_bytes, index) for index, leaf in enumerate(layout.leaves))
    leaves = [item for item in leaves if item[0]]
    for number, (_, index) in enumerate(leaves):
        # What small leaves do not need is left for the larger ones.
        taken = _places_of(layout.leaves[index], index, max(_STEP_BYTES, left // (len(leaves) - number)))
        left = max(0, left - sum(place.size_bytes for place in taken))
        found += taken
    return sorted(found, key=lambda place: (place.leaf, place.offset))


def _places_of(leaf: Leaf, index: int, share_bytes: int) -> list[Place]:
    if leaf.size_bytes <= share_bytes:
        return [Place(index, leaf.offset, leaf.size_bytes)]
    count = _PLACES if share_bytes >= _PLACES * _LEAST_PLACE_BYTES else 1
    size = share_bytes // count // _STEP_BYTES * _STEP_BYTES
    last = leaf.size_bytes - size
    starts = (last * number // max(1, count - 1) // _STEP_BYTES * _STEP_BYTES for number in range(count))
    return [Place(index, leaf.offset + start, size) for start in starts]


def code(layout: Layout, samples: Mapping[Place, bytes]) -> list[Coded]:
    """Code what was sampled of each leaf; in the order of leaves, those without a sample left out."""
    cutter, coder = Cutter(runs_of(layout)), Coder()
    by_leaf: dict[int, list[tuple[Place, bytes]]] = {}
    for place, data in samples.items():
        by_leaf.setdefault(place.leaf, []).append((place, data))
    return [_coded(cutter, coder, layout.leaves[index].path, parts) for index, parts in sorted(by_leaf.items())]


def _coded(cutter: Cutter, coder: Coder, path: str, parts: Sequence[tuple[Place, bytes]]) -> Coded:
    planes: list[int] = []
    sampled = wire = 0
    for place, data in parts:
        for offset, size, width in cutter.pieces(Chunk(0, place.offset, place.size_bytes)):
            at = offset - place.offset
            piece, _ = coder.encode(memoryview(data)[at : at + size], offset, width)
            sizes = piece.planes or (size // width,) * width
            planes += [0] * (width - len(planes))
            for number, coded in enumerate(sizes):
                planes[number] += coded
            sampled += size
            wire += sum(sizes)
    return Coded(path, sampled, wire, tuple(planes))

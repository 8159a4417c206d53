"""Which part of a leaf a block reads, and which it overwrites first: found by negating halves and playing on.

The paper's windows are overwritten in one half before anything reads it, and read in the other (§3.3). Where the halves
lie is the engine's own affair, so every dimension of one leaf of each class is tried. What comes out is the geometry's
prediction, which single flipped bits then test.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from worldline.engine import StateLeaf
from worldline.instruments.bits import FORMATS
from worldline.instruments.leaf_class import class_name
from worldline.instruments.twin import Continuation, Reference


class Fate(enum.Enum):
    """What the next block does with a part of a leaf: nothing else depends on one that is unread, and it is kept."""

    READ = "read"
    OVERWRITTEN = "overwritten first"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class Half:
    """Elements `start` .. `end` - 1 along `dimension` of every leaf of a class, and their fate."""

    dimension: int
    start: int
    end: int
    fate: Fate

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of a leaf that this is; all of one without dimensions."""
        return tensor if not tensor.dim() else tensor.narrow(self.dimension, self.start, self.end - self.start)


@dataclass(frozen=True, slots=True)
class LeafClass:
    """Leaves alike but for numbers in their paths. One half means that both have the same fate."""

    name: str
    cold: bool
    paths: tuple[str, ...]
    halves: tuple[Half, ...]


def classes(found: Mapping[str, StateLeaf], cold: Iterable[str]) -> dict[tuple[str, bool], list[str]]:
    """(class, declared cold) -> paths of its floating-point tensors, those that have elements."""
    declared = set(cold)
    groups: dict[tuple[str, bool], list[str]] = {}
    for path, leaf in sorted(found.items()):
        if isinstance(leaf, torch.Tensor) and leaf.dtype in FORMATS and leaf.numel():
            shape = "x".join(map(str, leaf.shape))
            groups.setdefault((f"{class_name(path)} {shape}", path in declared), []).append(path)
    return groups


def find(reference: Reference, cold: Iterable[str]) -> list[LeafClass]:
    """The geometry of every class of floating-point leaves: one block for each half and dimension that is tried."""
    found = []
    for (name, is_cold), paths in classes(reference.leaves, cold).items():
        found.append(LeafClass(name, is_cold, tuple(paths), _halves(reference, paths[0])))
    return found


def _halves(reference: Reference, path: str) -> tuple[Half, ...]:
    leaf = reference.leaves[path]
    assert isinstance(leaf, torch.Tensor)
    tried: list[tuple[Half, Half]] = []
    for dimension in sorted(range(leaf.dim()), key=lambda number: -leaf.shape[number]):
        size = leaf.shape[dimension]
        if size < 2:
            continue
        parts = ((0, size // 2), (size // 2, size))
        older, newer = (
            Half(dimension, start, end, _fate(reference, path, Half(dimension, start, end, Fate.READ)))
            for start, end in parts
        )
        if older.fate is not newer.fate:
            return older, newer
        tried.append((older, newer))
    if tried:
        dimension, fate = tried[0][0].dimension, tried[0][0].fate
        return (Half(dimension, 0, leaf.shape[dimension], fate),)
    size = leaf.shape[0] if leaf.dim() else 1
    return (Half(0, 0, size, _fate(reference, path, Half(0, 0, size, Fate.READ))),)


def _fate(reference: Reference, path: str, half: Half) -> Fate:
    tree, changed = reference.changed()
    leaf = changed[path]
    assert isinstance(leaf, torch.Tensor)
    negate(half.of(leaf))
    return fate_of(reference.play_on(tree, 1), path)


def negate(part: torch.Tensor) -> None:
    """Change every element that is a number, in place: zeros become ones, all others the same with the other sign."""
    plain = part.float()
    part.copy_(torch.where(plain == 0, torch.ones_like(plain), -plain).to(part.dtype))


def fate_of(continuation: Continuation, path: str) -> Fate:
    """What became of a changed part of the leaf at `path`, by the block after it."""
    if continuation.failed:
        return Fate.READ
    block = continuation.blocks[0]
    if block.shows or {*block.differing} - {path}:
        return Fate.READ
    return Fate.UNREAD if block.differing else Fate.OVERWRITTEN

"""The battery of single flipped bits (paper §3.3): one bit of one element is flipped, the twin plays on, what changes?

Strata: class of leaves x half x sign, exponent or mantissa. What the geometry predicts: a flip in a half that is
overwritten first is erased within one block and never shows; one in a half that is read changes the next block, if it
is of the sign or the exponent (a bit of the mantissa may be too small to); one in a cold leaf stays where it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worldline.instruments.bits import BitClass, bits_of, flip_bit
from worldline.instruments.geometry import Fate, Half, LeafClass
from worldline.instruments.twin import Continuation, Reference

# Draws of an element until one is not zero: what a cache has not filled yet is not read either.
_DRAWS = 256


@dataclass(frozen=True, slots=True)
class Stratum:
    """Where bits are flipped. `half` is one of its class's; `older` says which, None if both have the same fate."""

    leaf_class: LeafClass
    half: Half
    older: bool | None
    bit_class: BitClass

    @property
    def where(self) -> str:
        """For people."""
        if self.leaf_class.cold:
            return "declared cold"
        return {True: "first half", False: "second half", None: "whole"}[self.older]


@dataclass(frozen=True, slots=True)
class Flip:
    """One flipped bit (`bit` counts from the least significant) of element `index` of a leaf, and what came of it."""

    stratum: Stratum
    path: str
    index: tuple[int, ...]
    bit: int
    went_on: Continuation

    @property
    def shown_at(self) -> int:
        """Which block shows it first, counted from 1; 0: none."""
        return self.went_on.shown_at

    @property
    def erased(self) -> bool:
        """Whether the first block left no trace of it."""
        return not self.went_on.failed and not self.went_on.blocks[0].differing and not self.shown_at

    @property
    def reached(self) -> bool:
        """Whether the first block showed it, or carried it into another leaf."""
        first = self.went_on.blocks[0] if self.went_on.blocks else None
        return first is None or first.shows or bool({*first.differing} - {self.path})

    @property
    def as_predicted(self) -> bool | None:
        """Whether the geometry's prediction holds; None where it makes none."""
        if self.stratum.half.fate is Fate.OVERWRITTEN:
            return self.erased
        if self.stratum.leaf_class.cold or self.stratum.half.fate is Fate.UNREAD:
            return self.hidden
        return None if self.stratum.bit_class is BitClass.MANTISSA else self.reached

    @property
    def hidden(self) -> bool:
        """Whether it never left its own leaf, nor showed."""
        blocks = self.went_on.blocks
        return not self.went_on.failed and not any(b.shows or {*b.differing} - {self.path} for b in blocks)

    @property
    def escaped(self) -> bool:
        """Whether something depends on a leaf that is declared cold."""
        return self.stratum.leaf_class.cold and not self.hidden


def strata(classes: Sequence[LeafClass]) -> list[Stratum]:
    """Every stratum of these classes."""
    return [
        Stratum(leaf_class, half, None if len(leaf_class.halves) == 1 else number == 0, bit_class)
        for leaf_class in classes
        for number, half in enumerate(leaf_class.halves)
        for bit_class in BitClass
    ]


def run(reference: Reference, wanted: Sequence[Stratum], flips: int, seed: int) -> Iterator[Flip]:
    """`flips` flips, the strata taken in turns; leaf, element (not a zero, where that can be) and bit are drawn."""
    dice = random.Random(seed)
    for number in range(flips if wanted else 0):
        yield _flip(reference, wanted[number % len(wanted)], dice)


def _flip(reference: Reference, stratum: Stratum, dice: random.Random) -> Flip:
    path = dice.choice(stratum.leaf_class.paths)
    tree, changed = reference.changed()
    leaf = changed[path]
    assert isinstance(leaf, torch.Tensor)
    half = stratum.half
    ranges = [range(half.start, half.end) if n == half.dimension else range(size) for n, size in enumerate(leaf.shape)]
    index = tuple(dice.choice(places) for places in ranges)
    for _ in range(_DRAWS):
        if float(leaf[index]):
            break
        index = tuple(dice.choice(places) for places in ranges)
    bit = dice.choice(bits_of(leaf.dtype, stratum.bit_class))
    flip_bit(leaf, index, bit)
    return Flip(stratum, path, index, bit, reference.play_on(tree))

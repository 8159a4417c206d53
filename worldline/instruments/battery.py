"""The whole battery on one engine and preset: declarations, geometry, flipped bits, the kill family; and it as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from worldline.instruments import declared, flips, geometry, lossy
from worldline.instruments.bits import BitClass
from worldline.instruments.declared import Declared
from worldline.instruments.flips import Flip
from worldline.instruments.geometry import LeafClass
from worldline.instruments.lossy import Loss
from worldline.instruments.twin import Continuation, Reference, Twin


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is tried: blocks before it begins, blocks that each changed state goes on for, and flipped bits."""

    warm_up_blocks: int
    blocks: int
    flips: int
    seed: int


@dataclass(frozen=True, slots=True)
class Cell:
    """All flips of one stratum: how many the next block showed (`shown`), showed or carried into another leaf
    (`reached`), erased, or left where they were (`kept`). `as_predicted` is None where the geometry predicts nothing.
    """

    leaf_class: str
    where: str
    fate: str
    bit_class: str
    flips: int
    shown: int
    reached: int
    erased: int
    kept: int
    as_predicted: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """What the battery found. `blocks` are those that each continuation was compared over."""

    engine: str
    preset: str
    seed: int
    blocks: int
    declared: Declared
    classes: tuple[LeafClass, ...]
    flips: tuple[Flip, ...]
    losses: tuple[Loss, ...]

    @property
    def good(self) -> bool:
        """The engine's declarations hold, also against every bit that was flipped in a cold leaf."""
        return self.declared.holds and not any(flip.escaped for flip in self.flips)

    @property
    def cells(self) -> list[Cell]:
        """The flips by stratum, in order of class, half and bits."""
        groups: dict[tuple[str, str, str, str], list[Flip]] = {}
        for flip in self.flips:
            stratum = flip.stratum
            key = (stratum.leaf_class.name, stratum.where, stratum.half.fate.value, stratum.bit_class.value)
            groups.setdefault(key, []).append(flip)
        order = {kind.value: number for number, kind in enumerate(BitClass)}
        return [
            Cell(
                *key,
                flips=len(members),
                shown=sum(flip.shown_at == 1 for flip in members),
                reached=sum(flip.reached for flip in members),
                erased=sum(flip.erased for flip in members),
                kept=sum(flip.hidden and not flip.erased for flip in members),
                as_predicted=_all([flip.as_predicted for flip in members]),
            )
            for key, members in sorted(groups.items(), key=lambda item: (*item[0][:3], order[item[0][3]]))
        ]


def _all(found: list[bool | None]) -> bool | None:
    known = [one for one in found if one is not None]
    return all(known) if known else None


def run(twin: Twin, wanted: Wanted, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Run everything. `tell` gets a line for each thing that is tried.

    Keeps `wanted.blocks` + 3 copies of the state.
    """
    twin.play(wanted.warm_up_blocks)
    tell("declarations")
    checked = declared.check(twin, wanted.blocks)
    tell("which halves a block reads")
    reference = Reference(twin, wanted.blocks)
    classes = geometry.find(reference, twin.session.cold_paths())
    found = []
    for number, flip in enumerate(flips.run(reference, flips.strata(classes), wanted.flips, wanted.seed)):
        tell(f"flipped bit {number + 1} of {wanted.flips}")
        found.append(flip)
    losses = []
    for loss in lossy.run(reference, classes):
        tell(loss.name)
        losses.append(loss)
    return Report(
        engine=twin.engine.name,
        preset=twin.preset.name,
        seed=wanted.seed,
        blocks=wanted.blocks,
        declared=checked,
        classes=tuple(classes),
        flips=tuple(found),
        losses=tuple(losses),
    )


def as_dict(found: Report) -> dict[str, object]:
    """For JSON. A PSNR that is null means that the frames are equal."""
    checked = found.declared
    return {
        "engine": found.engine,
        "preset": found.preset,
        "seed": found.seed,
        "blocks": found.blocks,
        "good": found.good,
        "declared": {**asdict(checked), "dirty_holds": checked.dirty_holds, "cold_holds": checked.cold_holds},
        "geometry": [
            {
                "class": item.name,
                "declared_cold": item.cold,
                "leaves": len(item.paths),
                "halves": [
                    {"dimension": half.dimension, "start": half.start, "end": half.end, "fate": half.fate.name}
                    for half in item.halves
                ],
            }
            for item in found.classes
        ],
        "strata": [asdict(cell) for cell in found.cells],
        "flips": [
            {
                "path": flip.path,
                "index": list(flip.index),
                "bit": flip.bit,
                "bit_class": flip.stratum.bit_class.value,
                "where": flip.stratum.where,
                "fate": flip.stratum.half.fate.name,
                "as_predicted": flip.as_predicted,
                **_went_on(flip.went_on),
            }
            for flip in found.flips
        ],
        "kill_family": [
            {
                "handle": loss.name,
                "what": loss.what,
                "leaves": loss.leaves,
                "changed_share": loss.changed_share,
                "relative_error": loss.relative_error,
                "exact": loss.went_on.exact,
                **_went_on(loss.went_on),
            }
            for loss in found.losses
        ],
    }


def _went_on(continuation: Continuation) -> dict[str, object]:
    return {
        "shown_at": continuation.shown_at,
        "psnr_db": [None if math.isinf(block.psnr_db) else block.psnr_db for block in continuation.blocks],
        "differing_bytes": [sum(block.differing.values()) for block in continuation.blocks],
        "differing_leaves": [len(block.differing) for block in continuation.blocks],
        "failed": continuation.failed,
    }

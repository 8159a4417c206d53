"""A battery's findings for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from worldline.cli import render
from worldline.instruments.bits import BitClass

if TYPE_CHECKING:
    from worldline.instruments.battery import Cell, Report
    from worldline.instruments.geometry import LeafClass
    from worldline.instruments.lossy import Loss


def show(found: Report) -> None:
    """Print it."""
    out = render.console()
    out.print(f"{found.engine}/{found.preset}, seed {found.seed}: {found.blocks} blocks compared after each change\n")
    out.print(render.table("what the engine declares", ("", "declared", "found", "holds"), _declared(found)))
    out.print()
    halves = ("class of leaves", "leaves", "dimension", "first half", "second half")
    out.print(render.table("what the next block does with them", halves, [_geometry(item) for item in found.classes]))
    out.print()
    strata = ("class of leaves", "part", *(kind.value for kind in BitClass), "as predicted")
    out.print(render.table("one flipped bit, and the block after it", strata, _strata(found)))
    out.print()
    losses = ("handle", "what it does", "elements changed", "error", "exact", "first seen", "PSNR of the readout")
    out.print(render.table("the kill family", losses, [_loss(loss) for loss in found.losses]))
    for flip in found.flips:
        if flip.as_predicted is False:
            where = f"{flip.path}{list(flip.index)}"
            out.print(
                f"not as predicted: bit {flip.bit} of {where}, {flip.stratum.where}: {flip.stratum.half.fate.value}"
            )
    out.print(f"\nall as declared: {'yes' if found.good else 'NO'}")


def _declared(found: Report) -> list[tuple[str, str, str, str]]:
    checked = found.declared
    wrong = [f"{path}: {what}" for path, what in checked.cold_faults.items()]
    return [
        (
            "dirty bytes a block",
            str(checked.dirty_bytes_per_block),
            f"at most {max(checked.dirty_bytes, default=0)} changed",
            _yes(checked.dirty_holds),
        ),
        (
            "cold leaves",
            render.human_bytes(checked.cold_bytes),
            "; ".join(wrong[:4]) or "neither written nor read",
            _yes(checked.cold_holds),
        ),
    ]


def _geometry(item: LeafClass) -> tuple[str, ...]:
    fates = [half.fate.value for half in item.halves]
    name = f"{item.name} (declared cold)" if item.cold else item.name
    return (name, str(len(item.paths)), str(item.halves[0].dimension), fates[0], fates[-1])


def _strata(found: Report) -> list[tuple[str, ...]]:
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in found.cells:
        rows.setdefault((cell.leaf_class, cell.where, cell.fate), {})[cell.bit_class] = cell
    return [
        (
            leaf_class,
            f"{where}: {fate}",
            *(_cell(cells.get(kind.value)) for kind in BitClass),
            "NO" if any(cell.as_predicted is False for cell in cells.values()) else "yes",
        )
        for (leaf_class, where, fate), cells in rows.items()
    ]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    counts = (("changed it", cell.reached), ("erased", cell.erased), ("kept", cell.kept))
    others = cell.flips - sum(count for _, count in counts)
    return ", ".join(f"{count} {what}" for what, count in (*counts, ("later", others)) if count)


def _loss(loss: Loss) -> tuple[str, ...]:
    if not loss.leaves:
        return (loss.name, loss.what, "no leaf for it", "", "", "", "")
    blocks = loss.went_on.blocks
    seen = loss.went_on.shown_at
    psnr = ", ".join("equal" if math.isinf(block.psnr_db) else f"{block.psnr_db:.1f} dB" for block in blocks)
    return (
        loss.name,
        f"{loss.what}; {loss.leaves} leaves",
        f"{loss.changed_share:.1%}",
        f"{loss.relative_error:.1%}",
        "yes" if loss.went_on.exact else "no",
        f"block {seen}" if seen else "never",
        psnr + (f"; {loss.went_on.failed}" if loss.went_on.failed else ""),
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"

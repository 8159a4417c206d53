"""An inspection for people: what was written and where, the law it follows, what compresses, what is cold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worldline.cli import render
from worldline.instruments.inspection import LeafFound, Report

_COLUMNS = 96
_SHADES = "·░▒▓█"
_SOME = 8


def show(found: Report, *, leaves: bool) -> None:
    """Print it; one row for each leaf, or for each class."""
    out = render.console()
    subject = found.subject
    one_in = f", one in {found.pieces.one_in} of them" if found.pieces.one_in > 1 else ""
    out.print(
        f"{subject.name}: {subject.engine}/{subject.preset}, {render.human_bytes(found.state_bytes)} in "
        f"{len(found.leaves)} leaves, pieces of {render.human_bytes(found.pieces.piece_bytes)}{one_in}\n"
    )
    out.print(render.table("", ("blocks", "written", "share of S", "held up"), _blocks(found)))
    out.print(
        f"\nmap of the state, first to last byte; {_SHADES[0]} never written, {_SHADES[-1]} written in every block"
    )
    out.print(dirty_map(found) + "\n")
    rows = found.leaves if leaves else found.classes
    columns = (
        "leaf" if leaves else "class",
        "leaves",
        "size",
        "written a block",
        "codec leaves",
        "byte planes, low to high",
        "",
    )
    out.print(render.table("", columns, [_row(row) for row in rows if row.size_bytes]))
    out.print("\n" + "\n".join(_sentences(found)))


def _blocks(found: Report) -> list[tuple[str, str, str, str]]:
    return [
        (
            f"{step.first_block}"
            if step.blocks == 1
            else f"{step.first_block} to {step.first_block + step.blocks - 1}",
            render.human_bytes(step.dirty_bytes),
            f"{step.dirty_bytes / found.state_bytes:.1%}",
            f"{step.still_s * 1e3:.1f} ms",
        )
        for step in found.dirty.steps
    ]


def dirty_map(found: Report) -> str:
    """One line: the state from its first to its last byte, darker where more blocks write."""
    weights = np.array(found.pieces.stands_for, np.float64)
    written = found.dirty.changed.mean(0) * weights
    ends = np.cumsum(weights)
    column = np.minimum(((ends - weights / 2) / ends[-1] * _COLUMNS).astype(np.int64), _COLUMNS - 1)
    sizes = np.bincount(column, weights, _COLUMNS)
    shares = np.bincount(column, written, _COLUMNS) / np.maximum(sizes, 1.0)
    return "".join(_shade(share) for share, size in zip(shares, sizes, strict=True) if size)


def _shade(share: float) -> str:
    return _SHADES[0] if share <= 0 else _SHADES[max(1, round(share * (len(_SHADES) - 1)))]


def _row(leaf: LeafFound) -> tuple[str, ...]:
    note = ""
    if leaf.written_cold:
        note = "DECLARED COLD, AND WRITTEN"
    elif leaf.cold_bytes:
        note = "cold, as declared"
    elif not leaf.written:
        note = "not written"
    return (
        leaf.name,
        str(leaf.leaves),
        render.human_bytes(leaf.size_bytes),
        f"{leaf.dirty_share:.1%}",
        "" if leaf.wire_share is None else f"{leaf.wire_share:.1%}",
        "  ".join(f"{plane:.1%}" for plane in leaf.planes),
        note,
    )


def _sentences(found: Report) -> list[str]:
    subject, fit = found.subject, found.fit
    measured = found.dirty_bytes_per_block
    over = ": pieces are counted whole" if measured > subject.dirty_bytes_per_block else ""
    lines = [
        f"dirty: {render.human_bytes(round(measured))} a block ({measured / found.state_bytes:.1%} of S); declared "
        f"{render.human_bytes(subject.dirty_bytes_per_block)}{over}"
    ]
    if subject.block_s > 0:
        lines[0] += f"; D = {measured / subject.block_s / 1e9:.3g} GB/s at {subject.block_s * 1e3:.0f} ms a block"
    if fit.hot_bytes <= 0:
        lines.append("coupon law: nothing was written")
    elif fit.saturated:
        lines.append(
            f"coupon law: one block writes all of the {render.human_bytes(round(fit.hot_bytes))} "
            f"({fit.hot_bytes / found.state_bytes:.1%} of S) that any {fit.points[-1][0]} blocks write"
        )
    else:
        lines.append(
            f"coupon law: distinct = H (1 - e^(-w/H)), H {render.human_bytes(round(fit.hot_bytes))} "
            f"({fit.hot_bytes / found.state_bytes:.1%} of S), w {render.human_bytes(round(fit.written_bytes))} "
            f"a block; within {fit.worst_error:.1%} over 1 to {fit.points[-1][0]} blocks"
        )
    if found.wire_share is not None:
        lines.append(f"codec: leaves {found.wire_share:.1%} of the state (from a sample)")
    cold = sum(leaf.cold_bytes for leaf in found.leaves)
    if found.written_cold:
        lines.append(f"cold: NOT AS DECLARED, written were {_some(found.written_cold)}")
    else:
        share = cold / found.state_bytes if found.state_bytes else 0.0
        lines.append(f"cold: {render.human_bytes(cold)} declared ({share:.1%} of S), none of it was written")
    also = [item for item in found.classes if item.size_bytes and not item.written and not item.cold_bytes]
    if also:
        size = render.human_bytes(sum(item.size_bytes for item in also))
        lines.append(
            f"      {size} more was not written in these blocks ({_some([item.name for item in also])}); whether it is "
            "read, `worldline battery` tells"
        )
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return ", ".join(names[:_SOME]) + more

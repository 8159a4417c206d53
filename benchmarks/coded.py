"""Suite `codec`: a coded move beside a raw one, with the bytes of a session, on a link slow enough for a codec to pay.

`wire_ratio` is bytes of the state over bytes on the wire, as measured. Arms take turns.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import torch

from benchmarks.namespaces import link
from benchmarks.report import Row
from benchmarks.suite import ENGINE, Figures, Setup, plan
from benchmarks.wire import Arms
from worldline import engine
from worldline.codec.runs import Run
from worldline.engine import StateTree
from worldline.errors import Internal

LINK_GBIT = 2.5


def run(setup: Setup) -> Figures:
    """Run both arms, and the ceiling."""
    gbit = LINK_GBIT if setup.link_gbit is None else setup.link_gbit
    tree = engine.installed()[ENGINE].create(setup.preset, 1)
    tensors = tensors_of(tree)
    size_bytes = sum(tensor.nbytes for tensor in tensors)
    raw_plan = plan()
    zstd = dataclasses.replace(raw_plan, codec="zstd")
    bare = Row("raw socket", size_bytes)
    raw, coded = Row("verified, raw", size_bytes, "raw socket"), Row("verified, zstd", size_bytes, "verified, raw")
    ratios, late, rates = [], [], []

    def fill(view: memoryview) -> Sequence[Run]:
        return lay_down(view, tensors)

    with link(["receiver"], gbit) as made:
        there = made.places["receiver"]
        with Arms(size_bytes, raw_plan, host=there.address, within=there.within, fill=fill) as arms:
            del tree, tensors[:]
            for number in range(setup.runs + 1):
                bare_s, raw_s = arms.bare(), arms.job(verified=True)
                coded_s, outcome = arms.outcome(verified=True, plan=zstd)
                if outcome.coding is None:
                    raise Internal("a coded move says nothing of its codec")
                if number:
                    bare.seconds.append(bare_s)
                    raw.seconds.append(raw_s)
                    coded.seconds.append(coded_s)
                    ratios.append(size_bytes / outcome.coding.wire_bytes)
                    late.append(outcome.coding.late_pieces)
                    rates.append(outcome.coding.rate_Bps)
    ratio, faster = statistics.median(ratios), raw.median_s / coded.median_s
    facts: dict[str, str | int | float] = {
        "link_gbit": gbit,
        "wire_ratio": round(ratio, 4),
        "faster": round(faster, 4),
        "faster_over_wire_ratio": round(faster / ratio, 4),
        "late_pieces": str(late),
        "encode_Bps_a_thread": round(statistics.median(rates)),
    }
    notes = [f"{ratio:.3f} bytes of the state for one on the wire; the coded move is {faster:.3f} times as fast"]
    return Figures([bare, raw, coded], facts, notes)


def tensors_of(tree: StateTree) -> list[torch.Tensor]:
    """The tensors of a state of nested mappings."""
    found: list[torch.Tensor] = []
    waiting: list[object] = [tree]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, torch.Tensor):
            found.append(item)
    return found


def lay_down(view: memoryview, tensors: Sequence[torch.Tensor]) -> Sequence[Run]:
    """Lay the tensors down one after another; their runs."""
    runs = []
    at = 0
    for tensor in tensors:
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        with view[at : at + tensor.nbytes] as piece:
            torch.frombuffer(piece, dtype=torch.uint8).copy_(flat)
        at += tensor.nbytes
        runs.append(Run(at, tensor.element_size() if tensor.is_floating_point() else 1))
    return runs

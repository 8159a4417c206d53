"""Whether what an engine declares is so: the dirty bytes of a block, and the leaves that no block writes or reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worldline.errors import Mismatch
from worldline.instruments.cold import prove_cold
from worldline.instruments.region import lay
from worldline.instruments.twin import Twin


@dataclass(frozen=True, slots=True)
class Declared:
    """What was declared and what was found.

    `dirty_bytes`: what each block changed. `cold_faults`: leaf or "readout" -> what is wrong with the cold leaves.
    """

    dirty_bytes_per_block: int
    dirty_bytes: tuple[int, ...]
    cold_bytes: int
    cold_faults: Mapping[str, str]

    @property
    def dirty_holds(self) -> bool:
        """No block changed more than was declared."""
        return max(self.dirty_bytes, default=0) <= self.dirty_bytes_per_block

    @property
    def cold_holds(self) -> bool:
        """No cold leaf was written, and none read."""
        return not self.cold_faults

    @property
    def holds(self) -> bool:
        """Both."""
        return self.dirty_holds and self.cold_holds


def check(twin: Twin, blocks: int) -> Declared:
    """Plays `blocks` blocks of the twin's own session, and as many of two others for the cold leaves (`cold`).

    Raises:
        Mismatch: the state changes its layout.
    """
    cold = {*twin.session.cold_paths()}
    dirty: list[int] = []
    faults: dict[str, str] = {}
    region = lay(twin.session.state_tree())
    for _ in range(blocks):
        before = region
        twin.play()
        region = lay(twin.session.state_tree())
        if region.layout != before.layout:
            raise Mismatch(f"block {twin.next_block - 1} has changed the state's layout", reason="LAYOUT_DRIFT")
        dirty.append(int((region.content != before.content).sum()))
        faults |= {
            leaf.path: f"block {twin.next_block - 1} has written it"
            for leaf in region.layout.leaves
            if leaf.path in cold and not torch.equal(region.of(leaf), before.of(leaf))
        }
    if cold:
        faults = {
            **prove_cold(twin.engine, twin.preset.name, blocks=blocks, seed=twin.seed % (1 << 31)).faults,
            **faults,
        }
    return Declared(
        dirty_bytes_per_block=twin.session.dirty_bytes_per_block(),
        dirty_bytes=tuple(dirty),
        cold_bytes=sum(leaf.size_bytes for leaf in region.layout.leaves if leaf.path in cold),
        cold_faults=faults,
    )

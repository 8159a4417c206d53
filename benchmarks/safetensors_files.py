"""Suite `safetensors`: the same state through safetensors, beside one copy; see `save_load` for the arms.

Loading a file only maps it, so that loaded tensors are copied into warm memory, where an engine would need them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file

from benchmarks.coded import tensors_of
from benchmarks.save_load import SHARED_MEMORY, timed
from benchmarks.suite import ENGINE, Figures, Setup
from worldline import engine


def run(setup: Setup) -> Figures:
    """Run all arms."""
    # The format takes no tensors that share memory.
    made = [tensor.clone() for tensor in tensors_of(engine.installed()[ENGINE].create(setup.preset, 1))]
    named = {f"{number:06}": tensor for number, tensor in enumerate(made)}
    warm = [torch.empty_like(tensor) for tensor in made]

    def installed(loaded: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        for into, name in zip(warm, named, strict=True):
            into.copy_(loaded[name])
        return warm

    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="worldline-bench-") as directory:
        path = Path(directory, "state.safetensors")

        def through_file() -> Sequence[torch.Tensor]:
            save_file(named, path)
            return installed(load_file(path))

        def through_memory() -> Sequence[torch.Tensor]:
            return installed(load(save(named)))

        rows = timed(
            setup.runs,
            made,
            {"save_file + load_file, in memory": through_file, "save + load, bytes": through_memory},
        )
    return Figures(rows)

"""Suite `save-load`: what people do today, `torch.save` of a session's tree and `torch.load` of it, beside one copy.

The file lies in memory, so that no disk is measured, and as bytes in this process. With checksums: both ends check all
bytes once more, since neither file nor load does it in a way that tells which bytes are wrong.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.coded import tensors_of
from benchmarks.report import Row
from benchmarks.suite import ENGINE, Figures, Setup
from benchmarks.wire import checksum_together
from worldline import engine
from worldline.errors import DataLoss, Exhausted

# Memory that has a path.
SHARED_MEMORY = Path("/dev/shm")


def run(setup: Setup) -> Figures:
    """Run all arms."""
    tree = engine.installed()[ENGINE].create(setup.preset, 1)
    tensors = tensors_of(tree)

    def through_memory() -> Sequence[torch.Tensor]:
        file = io.BytesIO()
        torch.save(tree, file)
        file.seek(0)
        return tensors_of(torch.load(file, weights_only=False))  # our own bytes, made a line above

    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="worldline-bench-") as directory:
        path = Path(directory, "state.pt")

        def through_file() -> Sequence[torch.Tensor]:
            torch.save(tree, path)
            return tensors_of(torch.load(path, weights_only=False, mmap=False))

        rows = timed(
            setup.runs,
            tensors,
            {"torch.save + load, a file in memory": through_file, "torch.save + load, bytes": through_memory},
        )
    return Figures(rows)


def timed(
    runs: int, tensors: Sequence[torch.Tensor], arms: dict[str, Callable[[], Sequence[torch.Tensor]]]
) -> list[Row]:
    """Each arm beside one copy into warm memory, bare and with the checksums of both ends; arms take turns.

    Raises:
        DataLoss: an arm gave other bytes back than it was given.
        Exhausted: no room for the file.
    """
    size_bytes = sum(tensor.nbytes for tensor in tensors)
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    if free_bytes < 1.1 * size_bytes:
        raise Exhausted(
            f"{SHARED_MEMORY} has {free_bytes} bytes free, and a file of {size_bytes} is written there: make it larger "
            "or use a smaller --preset",
            numbers={"free_bytes": free_bytes, "size_bytes": size_bytes},
        )
    copies = Row("copy into warm memory", size_bytes)
    bare = {name: Row(name, size_bytes, copies.name) for name in arms}
    checked = {name: Row(f"{name}, with checksums", size_bytes, copies.name) for name in arms}
    warm = [tensor.clone() for tensor in tensors]
    for number in range(runs + 1):
        start = time.perf_counter()
        for into, tensor in zip(warm, tensors, strict=True):
            into.copy_(tensor)
        copied_s = time.perf_counter() - start
        if number:
            copies.seconds.append(copied_s)
        for name, arm in arms.items():
            start = time.perf_counter()
            loaded = arm()
            taken_s = time.perf_counter() - start
            before, after = checksum_together([bytes_of(tensors), bytes_of(loaded)])
            both_s = time.perf_counter() - start
            if before != after:
                raise DataLoss(f"{name} gave back other bytes than it was given")
            if number:
                bare[name].seconds.append(taken_s)
                checked[name].seconds.append(both_s)
            del loaded
    return [copies, *(row for name in arms for row in (bare[name], checked[name]))]


def bytes_of(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    """The memory of tensors that are contiguous."""
    return [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for tensor in tensors if tensor.nbytes]

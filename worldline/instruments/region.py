"""A state tree of this process, laid into a region as a host would: leaves that share memory are stored once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worldline.engine import StateLeaf, StateTree
from worldline.layout import ALIGN_BYTES, Layout, Leaf, LeafKind, aligned, span_bytes
from worldline.testing.trees import leaves, raw


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A layout, and a copy of the state's bytes that lie as it says."""

    layout: Layout
    content: torch.Tensor

    def of(self, leaf: Leaf) -> torch.Tensor:
        """The bytes of one leaf."""
        return self.content[leaf.offset : leaf.offset + leaf.size_bytes]


def lay(tree: StateTree) -> Region:
    """Copy a tree on the CPU. Raises BadRequest if it has no layout."""
    found = leaves(tree)
    made: list[Leaf] = []
    parts: list[tuple[int, torch.Tensor]] = []
    end = 0
    for number, paths in enumerate(_groups(found)):
        if len(paths) == 1:
            data = raw(found[paths[0]])
            start = aligned(end)
            kind, dtype, shape = _kind_of(found[paths[0]])
            made.append(Leaf(paths[0], kind, dtype, shape, (), start, data.numel(), number))
        else:
            tensors = {path: tensor for path in paths if isinstance(tensor := found[path], torch.Tensor)}
            low = min(tensor.data_ptr() for tensor in tensors.values())
            size = max(tensor.data_ptr() + _span(tensor) for tensor in tensors.values()) - low
            data = torch.frombuffer(bytearray(ctypes.string_at(low, size)), dtype=torch.uint8)
            # The alignment that the memory had is kept, so that every member stays aligned to its element.
            start = aligned(end) + low % ALIGN_BYTES
            made += [_shared(path, tensor, start + tensor.data_ptr() - low, number) for path, tensor in tensors.items()]
        parts.append((start, data))
        end = start + data.numel()
    layout = Layout(tuple(sorted(made, key=lambda leaf: leaf.path)), max(aligned(end), ALIGN_BYTES))
    content = torch.zeros(layout.region_bytes, dtype=torch.uint8)
    for start, data in parts:
        content[start : start + data.numel()] = data
    return Region(layout, content)


def _shared(path: str, tensor: torch.Tensor, offset: int, group: int) -> Leaf:
    _, dtype, shape = _kind_of(tensor)
    return Leaf(path, LeafKind.TENSOR, dtype, shape, _stride(tensor), offset, _span(tensor), group)


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_contiguous() else tuple(tensor.stride())


def _span(tensor: torch.Tensor) -> int:
    return span_bytes(_kind_of(tensor)[1], tuple(tensor.shape), _stride(tensor))


def _groups(found: Mapping[str, StateLeaf]) -> list[list[str]]:
    """Paths of leaves that share memory, each alone that shares none; in order of their first paths."""
    spans = sorted(
        (leaf.data_ptr(), leaf.data_ptr() + _span(leaf), path)
        for path, leaf in found.items()
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    )
    groups: list[list[str]] = []
    end = 0
    for low, high, path in spans:
        if low < end:
            groups[-1].append(path)
        else:
            groups.append([path])
        end = max(end, high)
    placed = {path for paths in groups for path in paths}
    groups += [[path] for path in found if path not in placed]
    return sorted(sorted(paths) for paths in groups)


def _kind_of(leaf: StateLeaf) -> tuple[LeafKind, str, tuple[int, ...]]:
    if isinstance(leaf, torch.Tensor):
        return LeafKind.TENSOR, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)
    if isinstance(leaf, torch.Generator):
        return LeafKind.GENERATOR, f"generator.{leaf.device.type}", ()
    return LeafKind.SCALAR, "py.none" if leaf is None else f"py.{type(leaf).__name__}", ()

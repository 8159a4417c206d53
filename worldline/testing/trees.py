"""State trees in tests: leaves by path, copies of a tree in other memory, differences byte for byte."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from worldline.engine import StateLeaf, StateTree
from worldline.layout import ALIGN_BYTES, aligned


def leaves(tree: StateTree) -> dict[str, StateLeaf]:
    """Leaves by path; an item of a list is `[n]`, one of a tuple `(n)`."""
    return dict(_walk(tree, ""))


def _walk(tree: StateTree, path: str) -> Iterator[tuple[str, StateLeaf]]:
    children: list[tuple[str, StateTree]]
    if isinstance(tree, Mapping):
        children = list(tree.items())
    elif isinstance(tree, Sequence) and not isinstance(tree, str | bytes):
        mark = "({})" if isinstance(tree, tuple) else "[{}]"
        children = [(mark.format(index), child) for index, child in enumerate(tree)]
    else:
        yield path, tree
        return
    for name, child in children:
        yield from _walk(child, f"{path}/{name}" if path else name)


def raw(leaf: StateLeaf) -> torch.Tensor:
    """A leaf's bytes, as a flat uint8 tensor: of a tensor, a generator's state or a scalar in its region form."""
    if isinstance(leaf, torch.Tensor):
        plain = leaf.detach().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8)
    if isinstance(leaf, torch.Generator):
        return leaf.get_state()
    if leaf is None:
        encoded = b""
    elif isinstance(leaf, bool | int):
        encoded = struct.pack("<?" if isinstance(leaf, bool) else "<q", leaf)
    elif isinstance(leaf, float):
        encoded = struct.pack("<d", leaf)
    else:
        encoded = leaf.encode() if isinstance(leaf, str) else leaf
    return torch.tensor(list(encoded), dtype=torch.uint8)


def describe(leaf: StateLeaf) -> str:
    """Kind, dtype and shape of a leaf: what stays the same at every block boundary."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    return type(leaf).__name__


def region_bytes(tree: StateTree) -> int:
    """Bytes of a region that holds the tree, each group of leaves aligned."""
    found = leaves(tree)
    others = sum(aligned(raw(leaf).numel()) for leaf in found.values() if not isinstance(leaf, torch.Tensor))
    return others + sum(aligned(high - low) for low, high, _ in _groups(found))


def differing_bytes(before: StateTree, after: StateTree) -> dict[str, int]:
    """Path -> number of bytes that differ, for every leaf that does. The trees have the same paths and kinds."""
    mine, theirs = leaves(before), leaves(after)
    if {path: describe(leaf) for path, leaf in mine.items()} != {path: describe(leaf) for path, leaf in theirs.items()}:
        raise AssertionError(f"the trees have other leaves: {sorted(mine.keys() ^ theirs.keys())[:8] or 'other kinds'}")
    counts: dict[str, int] = {}
    for path, leaf in mine.items():
        one, other = raw(leaf), raw(theirs[path])
        if one.numel() != other.numel():
            counts[path] = max(one.numel(), other.numel())
        elif not torch.equal(one, other):
            counts[path] = int((one != other).sum())
    return counts


def copied(tree: StateTree, *, together: bool = False, misaligned: bool = False) -> StateTree:
    """The same state in memory of its own; leaves that share memory share it again.

    `together` lays all tensors into one stretch of memory, in the reverse of their order; `misaligned` starts each
    tensor one element past a 64-byte boundary, the least that its dtype allows.
    """
    found = leaves(tree)
    moved: dict[int, StateLeaf] = {}
    groups = _groups(found)
    room = sum(aligned(high - low) + 2 * ALIGN_BYTES for low, high, _ in groups)
    arena = torch.empty(room if together else 0, dtype=torch.uint8)
    end = 0
    for low, high, paths in reversed(groups):
        tensors = [tensor for path in paths if isinstance(tensor := found[path], torch.Tensor)]
        buffer = arena if together else torch.empty(high - low + 2 * ALIGN_BYTES, dtype=torch.uint8)
        shift = max(tensor.element_size() for tensor in tensors) if misaligned else 0
        start = (aligned(buffer.data_ptr() + (end if together else 0)) - buffer.data_ptr()) + shift
        if len(tensors) > 1:
            start += (low - shift) % ALIGN_BYTES  # members keep their alignment, so that each can be viewed again
            ctypes.memmove(buffer.data_ptr() + start, low, high - low)
        end = start + high - low
        for tensor in tensors:
            moved[id(tensor)] = _viewed(tensor, buffer, start, low if len(tensors) > 1 else None)
    return _rebuilt(tree, lambda leaf: moved[id(leaf)] if id(leaf) in moved else _fresh(leaf))


def _viewed(tensor: torch.Tensor, buffer: torch.Tensor, start: int, low: int | None) -> torch.Tensor:
    """`tensor` over `buffer`: with its strides where `low` is the address its group had, else copied, contiguous."""
    stride = tensor.stride() if low is not None else torch.empty(tensor.shape, device="meta").stride()
    offset = (start + (tensor.data_ptr() - low if low is not None else 0)) // tensor.element_size()
    view = torch.empty(0, dtype=tensor.dtype).set_(buffer.untyped_storage(), offset, tensor.shape, stride)
    return view if low is not None else view.copy_(tensor.detach())


def _fresh(leaf: StateLeaf) -> StateLeaf:
    if isinstance(leaf, torch.Generator):
        generator = torch.Generator(device=leaf.device)
        generator.set_state(leaf.get_state())
        return generator
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()  # an empty one: it has no memory to place
    return leaf


def _rebuilt(tree: StateTree, leaf_of: Callable[[StateLeaf], StateLeaf]) -> StateTree:
    if isinstance(tree, Mapping):
        return {name: _rebuilt(child, leaf_of) for name, child in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str | bytes):
        items = [_rebuilt(child, leaf_of) for child in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return leaf_of(tree)


def _groups(found: Mapping[str, StateLeaf]) -> list[tuple[int, int, list[str]]]:
    """(first address, past the last, paths) of each stretch of memory that tensors lie in."""
    spans = []
    for path, leaf in found.items():
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            steps = zip(leaf.shape, leaf.stride(), strict=True)
            bytes_ = (sum((n - 1) * step for n, step in steps) + 1) * leaf.element_size()
            spans.append((leaf.data_ptr(), leaf.data_ptr() + bytes_, path))
    groups: list[tuple[int, int, list[str]]] = []
    for low, high, path in sorted(spans):
        if groups and low < groups[-1][1]:
            first, end, paths = groups[-1]
            groups[-1] = (first, max(end, high), [*paths, path])
        else:
            groups.append((low, high, [path]))
    return groups

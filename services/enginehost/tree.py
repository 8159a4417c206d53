"""State tree <-> layout: where leaves will lie in a region, and the tree of views over a region.

Leaves whose memory overlaps another's (by byte range: views of one arena share a storage without sharing memory) make
one group: their union is stored once and each keeps its strides. Every other leaf is stored contiguous.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from enginehost.leaves import EMPTY, GENERATOR, INDEX, Found, find_leaves, unmovable
from worldline.engine import StateLeaf, StateTree
from worldline.errors import BadRequest, Mismatch
from worldline.layout import ALIGN_BYTES, DTYPE_BYTES, Layout, Leaf, LeafKind, aligned


@dataclass(frozen=True, slots=True)
class Captured:
    """A tree as it lies in memory now: leaf i of `layout` is `found[i]`."""

    layout: Layout
    found: tuple[Found, ...]


def capture(tree: StateTree) -> Captured:
    """The layout of a tree, and where its bytes are. Copies nothing.

    Raises:
        Unmovable: with the path and reason of every leaf that cannot be moved as bytes.
    """
    found = find_leaves(tree)
    leaves: dict[int, Leaf] = {}
    end = 0
    for group, members in enumerate(_groups(found)):
        first = found[members[0]]
        if len(members) == 1:
            start, size = aligned(end), first.size_bytes
            leaves[members[0]] = _placed(first, (), start, size, group)
        else:
            low = min(found[index].address for index in members)
            # The alignment that the memory had is kept, so that every member stays aligned to its element.
            start = aligned(end) + low % ALIGN_BYTES
            size = max(found[index].address + found[index].span_bytes for index in members) - low
            for index in members:
                leaf = found[index]
                leaves[index] = _placed(leaf, leaf.stride, start + leaf.address - low, leaf.span_bytes, group)
        end = start + size
    layout = Layout(tuple(leaves[index] for index in range(len(found))), max(aligned(end), ALIGN_BYTES))
    return Captured(layout, tuple(found))


def _placed(leaf: Found, stride: tuple[int, ...], offset: int, size_bytes: int, group: int) -> Leaf:
    return Leaf(leaf.path, leaf.kind, leaf.dtype, leaf.shape, stride, offset, size_bytes, group)


def _groups(found: Sequence[Found]) -> list[list[int]]:
    """Indexes of leaves that share memory, each list in path order, lists in order of their first leaf."""
    groups = [[index] for index, leaf in enumerate(found) if not leaf.span_bytes]
    end = 0
    for index in sorted(
        (index for index, leaf in enumerate(found) if leaf.span_bytes), key=lambda index: found[index].address
    ):
        leaf = found[index]
        if leaf.address < end:
            groups[-1].append(index)
        else:
            groups.append([index])
        end = max(end, leaf.address + leaf.span_bytes)
    refused = {}
    for members in groups:
        members.sort()
        for index in members if len(members) > 1 else ():
            leaf = found[index]
            if leaf.tensor is not None and (leaf.tensor.is_conj() or leaf.tensor.is_neg()):
                refused[leaf.path] = "it shares memory with another leaf, and is lazily conjugated or negated"
            elif leaf.address % DTYPE_BYTES[leaf.dtype]:
                refused[leaf.path] = f"it shares memory with another leaf, and is not aligned to its {leaf.dtype}"
    if refused:
        raise unmovable(refused)
    groups.sort()
    return groups


def require_same(registered: Layout, now: Layout) -> None:
    """Refuse a tree that has changed its shape since it was registered.

    Raises:
        Mismatch: LAYOUT_DRIFT, with each difference.
    """
    before = {leaf.path: leaf for leaf in registered.leaves}
    after = {leaf.path: leaf for leaf in now.leaves}
    starts = (_starts(registered), _starts(now))
    differences: dict[str, str] = {}
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            differences[path] = "it is new" if old is None else "it is gone"
            continue
        shapes = [
            (leaf.dtype, leaf.shape, leaf.stride, leaf.size_bytes, leaf.group, leaf.offset - start[leaf.group])
            for leaf, start in zip((old, new), starts, strict=True)
        ]
        for name, was, is_now in zip(
            ("dtype", "shape", "stride", "size_bytes", "sharing", "place in its group"), *shapes, strict=True
        ):
            if was != is_now:
                differences[path] = f"{name} was {was}, is {is_now}"
                break
    if differences:
        listed = "; ".join(f"{path}: {what}" for path, what in list(differences.items())[:8])
        raise Mismatch(
            f"{len(differences)} leaves are not as they were registered: {listed}",
            reason="LAYOUT_DRIFT",
            violations=dict(list(differences.items())[:256]),
            numbers={"leaves": len(differences)},
        )


def _starts(layout: Layout) -> dict[int, int]:
    starts: dict[int, int] = {}
    for leaf in layout.leaves:
        starts[leaf.group] = min(starts.get(leaf.group, leaf.offset), leaf.offset)
    return starts


# --- from a region back to a tree

Skeleton = dict[str, "Skeleton | int"]


def skeleton(layout: Layout) -> Skeleton:
    """The tree's shape: path segments down to indexes of leaves. Costs no memory per byte.

    Raises:
        BadRequest: paths that make no tree, or a leaf that this host cannot rebuild.
    """
    root: Skeleton = {}
    for index, leaf in enumerate(layout.leaves):
        if leaf.kind is LeafKind.TENSOR and not hasattr(torch, leaf.dtype):
            raise _bad(leaf.path, f"this host's torch {torch.__version__} has no {leaf.dtype}")
        if leaf.kind is LeafKind.GENERATOR and leaf.dtype != GENERATOR:
            raise _bad(leaf.path, f"{leaf.dtype} cannot be rebuilt here")
        *above, name = leaf.path.split("/")
        node = root
        for segment in above:
            below = node.setdefault(segment, {})
            if isinstance(below, int):
                raise _bad(leaf.path, "it goes through another leaf")
            node = below
        if not name or "" in above or name in node:
            raise _bad(leaf.path, "an empty or repeated key")
        if name in EMPTY and leaf.dtype != "py.none":
            raise _bad(leaf.path, "something in an empty container")
        node[name] = index
    _check_sequences(root, "")
    return root


def _check_sequences(node: Skeleton, path: str) -> None:
    _sequence(node, path)
    for name, below in node.items():
        if not isinstance(below, int):
            _check_sequences(below, f"{path}/{name}")


def _sequence(node: Skeleton, path: str) -> tuple[Callable[..., StateTree], list[str]] | None:
    """list or tuple and the segments in order, if the node is one; None for a mapping with keys."""
    if len(node) == 1 and (kind := EMPTY.get(next(iter(node)))):
        return kind, []
    if not any(INDEX.fullmatch(name) or name in EMPTY for name in node):
        return None
    for kind, brackets in ((list, "[]"), (tuple, "()")):
        ordered = [f"{brackets[0]}{index}{brackets[1]}" for index in range(len(node))]
        if set(ordered) == set(node):
            return kind, ordered
    raise _bad(path.removeprefix("/") or ".", "items of a sequence are missing, or mixed with keys")


def rehydrate(layout: Layout, base: torch.Tensor) -> StateTree:
    """The tree of views over `base` (uint8, `layout.region_bytes` long). Scalars and generators are made anew.

    Raises:
        BadRequest: paths that make no tree, or bytes that are no value of their scalar.
    """
    return _build(skeleton(layout), "", views(layout, base))


def _build(node: Skeleton, path: str, leaves: Sequence[StateLeaf]) -> StateTree:
    built: dict[str, StateTree] = {
        name: leaves[below] if isinstance(below, int) else _build(below, f"{path}/{name}", leaves)
        for name, below in node.items()
    }
    sequence = _sequence(node, path)
    if sequence is None:
        return built
    kind, ordered = sequence
    return kind(built[name] for name in ordered)


def views(layout: Layout, base: torch.Tensor) -> list[StateLeaf]:
    """Leaf i of the layout over `base`: tensors as views, scalars and generators as new values."""
    typed: dict[str, torch.Tensor] = {}
    return [_view(leaf, base, typed) for leaf in layout.leaves]


def _view(leaf: Leaf, base: torch.Tensor, typed: dict[str, torch.Tensor]) -> StateLeaf:
    if leaf.kind is LeafKind.TENSOR:
        dtype: torch.dtype = getattr(torch, leaf.dtype)
        if not leaf.size_bytes:
            return base[:0].view(dtype).reshape(leaf.shape)
        if leaf.dtype not in typed:
            typed[leaf.dtype] = base.view(dtype)
        stride = leaf.stride or contiguous_stride(leaf.shape)
        return typed[leaf.dtype].as_strided(leaf.shape, stride, leaf.offset // DTYPE_BYTES[leaf.dtype])
    data = base[leaf.offset : leaf.offset + leaf.size_bytes]
    if leaf.kind is LeafKind.GENERATOR:
        generator = torch.Generator()
        try:
            generator.set_state(data.clone())
        except RuntimeError as error:
            raise _bad(leaf.path, f"no state of a generator: {error}") from None
        return generator
    return _decode(leaf, data.numpy().tobytes())


def _decode(leaf: Leaf, data: bytes) -> StateLeaf:
    decode: Mapping[str, Callable[[bytes], StateLeaf]] = {
        "py.none": lambda _: None,
        "py.bool": lambda data: (False, True)[data[0]],
        "py.int": lambda data: int.from_bytes(data, "little", signed=True),
        "py.float": lambda data: float(struct.unpack("<d", data)[0]),
        "py.str": lambda data: data.decode(),
        "py.bytes": lambda data: data,
    }
    try:
        return decode[leaf.dtype](data)
    except (IndexError, UnicodeDecodeError):
        raise _bad(leaf.path, f"bytes that are no {leaf.dtype}") from None


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))


def _bad(path: str, what: str) -> BadRequest:
    return BadRequest(f"the layout was refused: {path}: {what}", reason="BAD_LAYOUT", violations={path: what})

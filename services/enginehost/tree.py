"""State tree <-> layout: where leaves will lie in a region, and the tree of views over a region.

Leaves whose memory overlaps another's (by byte range: views of one arena share a storage without sharing memory) make
one group: their union is stored once and each keeps its strides. Every other leaf is stored contiguous.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from enginehost.leaves import EMPTY, GENERATOR, INDEX, Found, Refused, find_leaves, leaf_of, unmovable
from worldline.engine import StateLeaf, StateTree
from worldline.errors import BadRequest, Mismatch
from worldline.layout import ALIGN_BYTES, DTYPE_BYTES, Layout, Leaf, LeafKind, aligned

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Captured:
    """A tree as it lies in memory now: leaf i of `layout` is `found[i]`."""

    layout: Layout
    found: tuple[Found, ...]


def capture(tree: StateTree, device: torch.device = _CPU) -> Captured:
    """The layout of a tree whose tensors lie on `device`, and where its bytes are. Copies nothing.

    Raises:
        Unmovable: with the path and reason of every leaf that cannot be moved as bytes.
    """
    found = find_leaves(tree, device)
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


def _sequence(node: Skeleton, path: str) -> tuple[type, list[str]] | None:
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


class Frame:
    """A layout over `base` (uint8, `layout.region_bytes` long): its views are made once, before they are needed.

    Raises:
        BadRequest: paths that make no tree.
    """

    def __init__(self, layout: Layout, base: torch.Tensor) -> None:
        self._layout = layout
        self._base = base
        self._skeleton = skeleton(layout)
        # By identity: the skeleton is this frame's own.
        self._sequences: dict[int, tuple[type, list[str]]] = {}
        self._find_sequences(self._skeleton, "")
        self._handed_out = False
        self._tensors = self._views()
        # Never handed out: what a view was when it was.
        self._twins = [self._base if view is None else view for view in self._views()]

    def _views(self) -> list[torch.Tensor | None]:
        typed: dict[str, torch.Tensor] = {}
        return [
            _view(leaf, self._base, typed) if leaf.kind is LeafKind.TENSOR else None for leaf in self._layout.leaves
        ]

    def _find_sequences(self, node: Skeleton, path: str) -> None:
        if (sequence := _sequence(node, path)) is not None:
            self._sequences[id(node)] = sequence
        for name, below in node.items():
            if not isinstance(below, int):
                self._find_sequences(below, f"{path}/{name}")

    def values_in(self, tree: StateTree) -> list[tuple[Leaf, Found]] | None:
        """What a tree's scalars and generators are now, if all its tensors are the views that were handed out.

        None if anything is otherwise: then `capture` says what, and costs more.
        """
        values: list[tuple[int, StateLeaf]] = []
        if not self._matches(self._skeleton, tree, values):
            return None
        found = []
        for index, value in values:
            leaf = self._layout.leaves[index]
            try:
                now = leaf_of(leaf.path, value, self._base.device)
            except Refused:
                return None
            if (now.kind, now.dtype, now.size_bytes) != (leaf.kind, leaf.dtype, leaf.size_bytes):
                return None
            found.append((leaf, now))
        return found

    def _matches(self, node: Skeleton, tree: StateTree, values: list[tuple[int, StateLeaf]]) -> bool:
        """Whether a tree is the one that was registered, its tensors in place; `values` gets all other leaves."""
        sequence = self._sequences.get(id(node))
        if sequence is None:
            if not (type(tree) is dict or isinstance(tree, Mapping)) or len(tree) != len(node):
                return False
            pairs = [(below, tree[name]) for name, below in node.items() if name in tree]
            if len(pairs) != len(node):
                return False
        else:
            kind, ordered = sequence
            if not isinstance(tree, list | tuple | dict) or type(tree) is not kind or len(tree) != len(ordered):
                return False
            pairs = [(node[name], item) for name, item in zip(ordered, tree, strict=True)]
        for below, value in pairs:
            if not isinstance(below, int):
                if not self._matches(below, value, values):
                    return False
            elif (view := self._tensors[below]) is None:
                values.append((below, value))  # type: ignore[arg-type]  # `leaf_of` refuses what is no leaf
            elif value is not view or not view.is_set_to(self._twins[below]):
                return False  # replaced, or given other memory or another shape in place
        return True

    def rehydrate(self) -> StateTree:
        """The tree of views. Scalars and generators are made anew.

        Raises:
            BadRequest: bytes that are no value of their scalar.
        """
        if self._handed_out:
            # Whoever has the first ones may have changed their shape in place.
            self._tensors = self._views()
        self._handed_out = True
        values = _values(self._layout, self._base)
        leaves: list[StateLeaf] = [
            _value(leaf, next(values)) if tensor is None else tensor
            for leaf, tensor in zip(self._layout.leaves, self._tensors, strict=True)
        ]
        return self._build(self._skeleton, leaves)

    def _build(self, node: Skeleton, leaves: Sequence[StateLeaf]) -> StateTree:
        built: dict[str, StateTree] = {
            name: leaves[below] if isinstance(below, int) else self._build(below, leaves)
            for name, below in node.items()
        }
        sequence = self._sequences.get(id(node))
        if sequence is None:
            return built
        kind, ordered = sequence
        made: StateTree = kind(built[name] for name in ordered)
        return made


def rehydrate(layout: Layout, base: torch.Tensor) -> StateTree:
    """The tree of views over `base`; see `Frame`."""
    return Frame(layout, base).rehydrate()


def _values(layout: Layout, base: torch.Tensor) -> Iterator[torch.Tensor]:
    """The bytes of every leaf that is no tensor, fetched from the device at once."""
    leaves = [leaf for leaf in layout.leaves if leaf.kind is not LeafKind.TENSOR]
    parts = [base[leaf.offset : leaf.offset + leaf.size_bytes] for leaf in leaves]
    fetched = torch.cat([base[:0], *parts]).cpu()
    return iter(torch.split(fetched, [leaf.size_bytes for leaf in leaves]))


def _view(leaf: Leaf, base: torch.Tensor, typed: dict[str, torch.Tensor]) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, leaf.dtype)
    if not leaf.size_bytes:
        return base[:0].view(dtype).reshape(leaf.shape)
    if leaf.dtype not in typed:
        typed[leaf.dtype] = base.view(dtype)
    stride = leaf.stride or contiguous_stride(leaf.shape)
    return typed[leaf.dtype].as_strided(leaf.shape, stride, leaf.offset // DTYPE_BYTES[leaf.dtype])


def _value(leaf: Leaf, data: torch.Tensor) -> StateLeaf:
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

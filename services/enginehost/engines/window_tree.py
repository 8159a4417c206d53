"""The state tree of the window-rewrite engine: nested mappings to and from leaves by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from enginehost.engines.window_geometry import Geometry
from worldline.engine import StateLeaf, StateTree
from worldline.errors import Mismatch

L = TypeVar("L", torch.Generator, int, float)


def nested(leaves: Mapping[str, StateLeaf]) -> dict[str, StateTree]:
    """A tree of mappings from leaves by path."""
    tree: dict[str, StateTree] = {}
    groups: dict[str, dict[str, StateTree]] = {"": tree}
    for path, leaf in leaves.items():
        _group(groups, path.rpartition("/")[0])[path.rpartition("/")[2]] = leaf
    return tree


def _group(groups: dict[str, dict[str, StateTree]], path: str) -> dict[str, StateTree]:
    if path not in groups:
        parent, _, name = path.rpartition("/")
        groups[path] = {}
        _group(groups, parent)[name] = groups[path]
    return groups[path]


def checked(geometry: Geometry, tree: StateTree, device: torch.device) -> dict[str, StateLeaf]:
    """Leaves by path. Raises Mismatch, with every difference, if this is not a tree of the preset on `device`."""
    leaves = _flat(tree)
    tensors = {spec.path: spec for spec in geometry.tensors()}
    expected = {*tensors, *geometry.control_bytes()}
    wrong = dict.fromkeys(expected - leaves.keys(), "missing")
    wrong.update(dict.fromkeys(leaves.keys() - expected, "not a leaf of this preset"))
    for path in tensors.keys() & leaves.keys():
        leaf, spec = leaves[path], tensors[path]
        if not isinstance(leaf, torch.Tensor):
            wrong[path] = f"a {type(leaf).__name__}, not a tensor"
        elif leaf.shape != spec.shape or leaf.dtype != spec.dtype or not leaf.is_contiguous():
            found = f"{leaf.dtype} {list(leaf.shape)} with strides {list(leaf.stride())}"
            wrong[path] = f"{found}, not contiguous {spec.dtype} {list(spec.shape)}"
        elif leaf.device != device:
            wrong[path] = f"on {leaf.device}, not on {device}"
    if wrong:
        raise Mismatch(
            f"not a state of preset {geometry.name!r}: "
            + "; ".join(f"{path}: {what}" for path, what in sorted(wrong.items())[:8]),
            reason="LAYOUT_MISMATCH",
            numbers={"differences": len(wrong)},
            violations=wrong,
        )
    return leaves


def of_kind(leaves: Mapping[str, StateLeaf], path: str, kind: type[L]) -> L:
    """A control leaf. Raises Mismatch if it is not exactly of that kind."""
    leaf = leaves[path]
    if type(leaf) is not kind:
        what = f"a {type(leaf).__name__}, not a {kind.__name__}"
        raise Mismatch(f"{path}: {what}", reason="LAYOUT_MISMATCH", violations={path: what})
    return leaf


def _flat(tree: StateTree, prefix: str = "") -> dict[str, StateLeaf]:
    """Leaves by path; a sequence counts as a leaf here, and no path of this engine's has one."""
    leaves: dict[str, StateLeaf] = {}
    if not isinstance(tree, Mapping):
        raise Mismatch(f"{prefix or 'the tree'}: a {type(tree).__name__}, not a mapping", reason="LAYOUT_MISMATCH")
    for name, child in tree.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(child, torch.Tensor):
            leaves[path] = child
        elif isinstance(child, Mapping):
            leaves.update(_flat(child, path))
        elif isinstance(child, list | tuple):
            raise Mismatch(f"{path}: a sequence; this engine's tree has none", reason="LAYOUT_MISMATCH")
        else:
            leaves[path] = child  # type: ignore[assignment]  # a leaf: neither mapping nor sequence
    return leaves

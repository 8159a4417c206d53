"""From a state tree to its leaves: what each one is, where its bytes are, and which ones cannot be moved.

A path names mappings by key and sequences by index: `layers/[3]/k` is key "k" of item 3 of the list at "layers", and
`(3)` an item of a tuple. Empty ones are leaves of no bytes, at `[]`, `()` and `{}` below their own path. So the tree
can be built again from the paths alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from worldline.engine import StateTree
from worldline.errors import Unmovable
from worldline.layout import DTYPE_BYTES, MAX_LEAVES, MAX_PATH_BYTES, MAX_PATH_DEPTH, LeafKind, span_bytes

INDEX = re.compile(r"\[(\d+)\]|\((\d+)\)")
EMPTY = {"[]": list, "()": tuple, "{}": dict}
GENERATOR = "generator.cpu"
_TENSORS = (torch.Tensor, torch.nn.Parameter)

# Any dtype of so many bytes as an integer type: copies of integers keep every bit.
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One leaf as it lies in memory now.

    `address` and `span_bytes` cover a tensor's elements (0 for other kinds and for empty tensors), `size_bytes` is what
    it takes in a region of its own. `plain`: its memory, in row-major order, is its value. `encoded` are the bytes of
    a scalar; `tensor` is the tensor, or the state of a generator.
    """

    path: str
    kind: LeafKind
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    size_bytes: int
    address: int
    span_bytes: int
    plain: bool
    tensor: torch.Tensor | None
    encoded: bytes


def find_leaves(tree: StateTree, device: torch.device) -> list[Found]:
    """Every leaf, ordered by path. Tensors lie on `device`.

    Raises:
        Unmovable: with the path and reason of every leaf that cannot be moved as bytes.
    """
    refused: dict[str, str] = {}
    found: list[Found] = []
    generators: dict[int, str] = {}
    for path, value in walk(tree, "", 0, refused):
        if len(found) + len(refused) >= MAX_LEAVES:
            refused[path] = f"over {MAX_LEAVES} leaves"
            break
        try:
            if isinstance(value, torch.Generator) and generators.setdefault(id(value), path) != path:
                raise Refused(f"the same generator is already at {generators[id(value)]}")
            found.append(leaf_of(path, value, device))
        except Refused as error:
            refused[path] = str(error)
    if refused:
        raise unmovable(refused)
    found.sort(key=lambda leaf: leaf.path)
    return found


def unmovable(refused: Mapping[str, str]) -> Unmovable:
    """The error for refused leaves, all of them listed."""
    listed = "; ".join(f"{path}: {why}" for path, why in list(refused.items())[:8])
    more = f"; and {len(refused) - 8} more" if len(refused) > 8 else ""
    return Unmovable(
        f"{len(refused)} leaves cannot be moved as bytes: {listed}{more}",
        violations=dict(list(refused.items())[:256]),
        numbers={"leaves": len(refused)},
    )


def contiguous_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's value in fresh, contiguous memory, bit by bit."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex() and tensor.element_size() == 16:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_AS_INTEGER[tensor.element_size()]).clone(memory_format=torch.contiguous_format)


class Refused(Exception):
    """A leaf that cannot be moved as bytes, and why."""


def walk(tree: object, path: str, depth: int, refused: dict[str, str]) -> Iterator[tuple[str, object]]:
    """Path and value of every leaf below `path`; what cannot be a leaf goes to `refused`, with the reason."""
    items: list[tuple[str | _BadKey, object]]
    if isinstance(tree, Mapping):
        items = [(_key(key), value) for key, value in tree.items()] or [("{}", None)]
    elif type(tree) is list:
        items = [(f"[{index}]", value) for index, value in enumerate(tree)] or [("[]", None)]
    elif type(tree) is tuple:
        items = [(f"({index})", value) for index, value in enumerate(tree)] or [("()", None)]
    elif depth:
        yield path, tree
        return
    else:
        refused["."] = f"the root is a {type(tree).__name__}, not a mapping, list or tuple"
        return
    if depth >= MAX_PATH_DEPTH:
        refused[path[:64]] = f"deeper than {MAX_PATH_DEPTH}"
        return
    for name, value in items:
        if not isinstance(name, str):
            refused[path or "."] = f"key {name.key!r:.64} is not a plain name: {name.why}"
            continue
        below = f"{path}/{name}" if path else name
        if len(below.encode()) > MAX_PATH_BYTES:
            refused[below[:64]] = f"its path is over {MAX_PATH_BYTES} bytes"
            continue
        yield from walk(value, below, depth + 1, refused)


@dataclass(frozen=True, slots=True)
class _BadKey:
    key: object
    why: str


def _key(key: object) -> str | _BadKey:
    if not isinstance(key, str) or not key:
        return _BadKey(key, "a string of at least one character is needed")
    if "/" in key or key in EMPTY or INDEX.fullmatch(key):
        return _BadKey(key, "'/' separates keys, and names like [0], (0) and [] stand for sequences")
    try:
        key.encode()
    except UnicodeEncodeError:
        return _BadKey(key, "it has no UTF-8 form")
    return key


def leaf_of(path: str, value: object, device: torch.device) -> Found:
    """One leaf as it lies in memory now. Raises Refused."""
    if isinstance(value, torch.Tensor):
        return _tensor(path, value, device)
    if isinstance(value, torch.Generator):
        if value.device.type != "cpu":
            raise Refused(f"a generator on {value.device}; only CPU generators are moved")
        state = value.get_state()
        return Found(path, LeafKind.GENERATOR, GENERATOR, (), (), state.numel(), 0, 0, True, state, b"")
    dtype, encoded = _scalar(value)
    return Found(path, LeafKind.SCALAR, dtype, (), (), len(encoded), 0, 0, True, None, encoded)


def _scalar(value: object) -> tuple[str, bytes]:
    kind = type(value)
    if value is None:
        return "py.none", b""
    if kind is bool:
        return "py.bool", b"\x01" if value else b"\x00"
    if kind is int and isinstance(value, int):
        try:
            return "py.int", value.to_bytes(8, "little", signed=True)
        except OverflowError:
            raise Refused(f"int {value.bit_length()} bits wide; signed 64 bits are moved") from None
    if kind is float:
        return "py.float", struct.pack("<d", value)
    if kind is str and isinstance(value, str):
        try:
            return "py.str", value.encode()
        except UnicodeEncodeError:
            raise Refused("a str that has no UTF-8 form") from None
    if kind is bytes and isinstance(value, bytes):
        return "py.bytes", value
    raise Refused(f"a {kind.__module__}.{kind.__qualname__} is no tensor, generator or plain scalar")


def _tensor(path: str, tensor: torch.Tensor, device: torch.device) -> Found:
    # Before data_ptr or a view as bytes: on some of these they are wrong or end the process.
    if type(tensor) not in _TENSORS:
        raise Refused(f"a tensor subclass, {type(tensor).__name__}")
    if tensor.is_nested:
        raise Refused("a nested tensor")
    if tensor.layout is not torch.strided:
        raise Refused(f"a {str(tensor.layout).removeprefix('torch.')} tensor; only strided ones are moved")
    if tensor.is_quantized:
        raise Refused("a quantized tensor")
    if tensor.device != device:
        raise Refused(f"a tensor on device {tensor.device}; only memory of {device} is moved")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise Refused(f"dtype {dtype}")
    shape = tuple(tensor.shape)
    size_bytes = span_bytes(dtype, shape, ())
    if not size_bytes:
        return Found(path, LeafKind.TENSOR, dtype, shape, (), 0, 0, 0, True, tensor, b"")
    plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    stride = () if tensor.is_contiguous() else tuple(tensor.stride())
    spanned = span_bytes(dtype, shape, stride)
    storage = tensor.untyped_storage()
    if storage.nbytes() < tensor.storage_offset() * DTYPE_BYTES[dtype] + spanned:
        raise Refused(f"its storage has {storage.nbytes()} bytes, fewer than its shape needs")
    return Found(
        path, LeafKind.TENSOR, dtype, shape, stride, size_bytes, tensor.data_ptr(), spanned, plain, tensor, b""
    )

"""An engine that is not ours: a random state tree of every kind of leaf, each of which the next block depends on.

It is found through its own `dist-info` on the path, as a third party's would be.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence

import torch

from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Preset, Readout, StateTree
from worldline.errors import BadRequest
from worldline.layout import DTYPE_BYTES

DTYPES = [getattr(torch, name) for name in sorted(DTYPE_BYTES) if hasattr(torch, name)]


class RandomTreeEngine:
    """Presets differ only in size."""

    name = "random-tree"
    version = "1.0"

    def presets(self) -> Mapping[str, Preset]:
        contract = Contract(ContractClass.C1, 20.0, Tier.T0)
        return {name: Preset(name, 1 << 21, 0, 2, contract) for name in ("tiny", "wide")}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": "none"}

    def create(self, preset: str, seed: int) -> StateTree:
        rng = random.Random(seed)
        leaves = rng.randint(3, 12) if preset == "tiny" else 60
        tree: dict[str, StateTree] = {"block": 0, "generator": torch.Generator().manual_seed(seed % 2**31)}
        for number in range(leaves):
            tree[f"n{number:03}"] = self._node(rng, depth=0)
        base = torch.arange(256, dtype=torch.int32)
        tree["shared"] = {"whole": base, "part": base[32:96], "grid": base.view(16, 16).t(), "again": base}
        return tree

    def _node(self, rng: random.Random, depth: int) -> StateTree:
        kind = rng.random()
        if kind < 0.15 and depth < 4:
            return [self._node(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        if kind < 0.3 and depth < 4:
            return {f"k{n}": self._node(rng, depth + 1) for n in range(rng.randint(1, 3))}
        if kind < 0.4:
            return rng.choice([None, True, rng.randint(-(2**63), 2**63 - 1), rng.random(), "text \u00e9", b"\x00\xff"])
        shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 4))]
        size = DTYPE_BYTES[str(dtype := rng.choice(DTYPES)).removeprefix("torch.")]
        count = 1
        for n in shape:
            count *= n
        raw = torch.tensor([rng.randrange(2) for _ in range(count * size)], dtype=torch.uint8)
        tensor = raw.view(dtype).reshape(shape)
        return tensor.transpose(0, -1) if len(shape) > 1 and rng.random() < 0.5 else tensor

    def load(self, preset: str, tree: StateTree) -> RandomTreeSession:
        return RandomTreeSession(tree)


class RandomTreeSession:
    """The next state is a hash chain over all of the last one, written into some leaves and replacing others."""

    def __init__(self, tree: StateTree) -> None:
        if not isinstance(tree, dict):
            raise BadRequest("a mapping is needed")
        self._tree = tree
        self._action = b""

    def begin_block(self, action: bytes) -> None:
        if len(action) > 64:
            raise BadRequest(f"an action has at most 64 bytes, not {len(action)}")
        self._action = action

    def step(self, quantum: int) -> None:
        state = hashlib.sha256(bytes([quantum]) + self._action)
        for path, leaf in walk("", self._tree):
            state.update(path.encode() + leaf_bytes(leaf))
        noise = torch.randint(0, 256, (8,), generator=self._tree["generator"], dtype=torch.int64)
        state.update(noise.numpy().tobytes())
        digest = state.digest()
        shared = self._tree["shared"]["whole"]
        shared.copy_((shared * 31 + int.from_bytes(digest[:2], "big")) % 65_521)
        for number, (_, leaf) in enumerate(walk("", self._tree)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.uint8, torch.int64) and leaf.is_contiguous():
                leaf.add_(digest[number % 32] % 2)

    def end_block(self) -> None:
        self._tree["block"] += 1

    def readout(self) -> Readout:
        state = hashlib.sha256()
        for path, leaf in walk("", self._tree):
            state.update(path.encode() + leaf_bytes(leaf))
        return Readout(1, 4, 8, 1, state.digest())

    def state_tree(self) -> StateTree:
        return self._tree

    def dirty_bytes_per_block(self) -> int:
        return 1024

    def cold_paths(self) -> Sequence[str]:
        return ()


def walk(path: str, node: StateTree) -> Iterator[tuple[str, object]]:
    """Leaves in a fixed order."""
    if isinstance(node, Mapping):
        for key in sorted(node):
            yield from walk(f"{path}/{key}", node[key])
    elif isinstance(node, list | tuple):
        for index, item in enumerate(node):
            yield from walk(f"{path}/{index}", item)
    else:
        yield path, node


def leaf_bytes(leaf: object) -> bytes:
    """The leaf's value as bytes, in logical order."""
    if isinstance(leaf, torch.Tensor):
        plain = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    if isinstance(leaf, torch.Generator):
        return leaf.get_state().numpy().tobytes()
    return repr(leaf).encode()

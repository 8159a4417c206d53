"""Sizes of the window-rewrite model: which leaves a preset has, how large they are, which are cold."""

# ruff: noqa: B019 - the geometries live as long as the process, and so may what is remembered of them
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Preset
from worldline.layout import aligned

DENOISE_QUANTA = 3
QUANTA_PER_BLOCK = DENOISE_QUANTA + 1  # the last one is the context pass
WINDOW_FRAMES = 6
BLOCK_FRAMES = 3  # latent frames of one block: half the window
FRAMES_PER_LATENT = 4
COLOURS = 3
CHANNELS = 16  # of one latent token
ACTION_BYTES = 8
GENERATOR_BYTES = 5056  # torch's CPU generator state

INDEX_NAMES = ("global_end", "local_end")
WINDOW_NAMES = ("self", "mouse", "keyboard")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor leaf of the state tree."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor, without padding."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Geometry:
    """Dimensions of one preset.

    `rows` x `columns` tokens make a latent frame. Layers below `wired_layers` attend to the action; the others have
    action caches too, which nothing reads or writes: they are the cold part. `patch` is the pixels of a token's side.
    """

    name: str
    layers: int
    wired_layers: int
    rows: int
    columns: int
    heads: int
    head_dim: int
    action_heads: int
    action_head_dim: int
    cross_tokens: int
    patch: int
    horizon_s: float

    @property
    def tokens(self) -> int:
        """Tokens of one latent frame."""
        return self.rows * self.columns

    @property
    def gained_layers(self) -> range:
        """Layers with a gain that follows the action: all but the first and the last."""
        return range(1, self.layers - 1)

    def layer_path(self, layer: int) -> str:
        """Path of a layer in the state tree."""
        return f"layers/{layer:02d}"

    def gain_path(self, layer: int) -> str:
        """Path of a layer's gain in the state tree."""
        return f"control/gain/{layer:02d}"

    def cache_shape(self, window: str) -> tuple[int, int, int, int]:
        """Shape of the keys, and of the values, of one window cache; the window lies along dimension 1."""
        if window == "self":
            return (1, WINDOW_FRAMES * self.tokens, self.heads, self.head_dim)
        return (self.tokens if window == "mouse" else 1, WINDOW_FRAMES, self.action_heads, self.action_head_dim)

    def is_cold(self, layer: int, window: str) -> bool:
        """Whether no block reads or writes this window cache."""
        return window != "self" and layer >= self.wired_layers

    def window_tensors(self, layer: int, window: str) -> Iterator[TensorSpec]:
        """Keys, values and the two index tensors of one window cache."""
        root = f"{self.layer_path(layer)}/{window}"
        for name in ("k", "v"):
            yield TensorSpec(f"{root}/{name}", self.cache_shape(window), torch.bfloat16)
        for name in INDEX_NAMES:
            yield TensorSpec(f"{root}/{name}", (1,), torch.int64)

    @cache
    def tensors(self) -> Sequence[TensorSpec]:
        """Every tensor leaf: 14 a layer."""
        return tuple(self._tensors())

    def _tensors(self) -> Iterator[TensorSpec]:
        for layer in range(self.layers):
            for window in WINDOW_NAMES:
                yield from self.window_tensors(layer, window)
            for name in ("k", "v"):
                shape = (1, self.cross_tokens, self.heads, self.head_dim)
                yield TensorSpec(f"{self.layer_path(layer)}/cross/{name}", shape, torch.bfloat16)

    @cache
    def control_bytes(self) -> Mapping[str, int]:
        """Path -> bytes of every leaf that is no tensor: as many as there are layers."""
        return {
            "control/block": 8,
            "control/noise": GENERATOR_BYTES,
            **{self.gain_path(layer): 8 for layer in self.gained_layers},
        }

    @cache
    def cold_tensors(self) -> Sequence[TensorSpec]:
        """The tensors that no block reads or writes."""
        return [
            spec
            for layer in range(self.layers)
            for window in WINDOW_NAMES
            if self.is_cold(layer, window)
            for spec in self.window_tensors(layer, window)
        ]

    @cache
    def dirty_bytes(self) -> int:
        """Bytes that one block rewrites: every window cache that is not cold, and the control leaves."""
        windows = sum(
            spec.size_bytes
            for layer in range(self.layers)
            for window in WINDOW_NAMES
            if not self.is_cold(layer, window)
            for spec in self.window_tensors(layer, window)
        )
        return windows + sum(self.control_bytes().values())

    def region_bytes(self) -> int:
        """Bytes of a region that holds the whole state, each leaf aligned."""
        sizes = [*(spec.size_bytes for spec in self.tensors()), *self.control_bytes().values()]
        return sum(aligned(size) for size in sizes)

    @cache
    def preset(self) -> Preset:
        """What is offered to players."""
        return Preset(
            name=self.name,
            state_bytes=self.region_bytes(),
            action_bytes=ACTION_BYTES,
            quanta_per_block=QUANTA_PER_BLOCK,
            contract=Contract(ContractClass.C1, self.horizon_s, Tier.T0),
        )


# `mg2` has the shapes of Matrix-Game 2.0's caches: 30 layers of 55 670 832 bytes, half of them wired to the action.
GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        Geometry(
            name="tiny",
            layers=4,
            wired_layers=2,
            rows=4,
            columns=4,
            heads=6,
            head_dim=64,
            action_heads=4,
            action_head_dim=64,
            cross_tokens=6,
            patch=4,
            horizon_s=5.0,
        ),
        Geometry(
            name="small",
            layers=8,
            wired_layers=4,
            rows=16,
            columns=16,
            heads=12,
            head_dim=64,
            action_heads=8,
            action_head_dim=64,
            cross_tokens=75,
            patch=8,
            horizon_s=10.0,
        ),
        Geometry(
            name="mg2",
            layers=30,
            wired_layers=15,
            rows=22,
            columns=40,
            heads=12,
            head_dim=128,
            action_heads=16,
            action_head_dim=64,
            cross_tokens=257,
            patch=8,
            horizon_s=30.0,
        ),
    )
}

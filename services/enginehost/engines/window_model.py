"""The window-rewrite model: its weights, a window cache that is rewritten in place, attention, the forward pass.

Results must not depend on where the state lies. So state tensors are only copied from, copied to and counted up; all
arithmetic happens in float32 buffers that torch allocates, which are always aligned alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from enginehost.engines.window_geometry import BLOCK_FRAMES, CHANNELS, QUANTA_PER_BLOCK, WINDOW_NAMES, Geometry

TILE_ELEMENTS = 1 << 19  # two MiB of float32: stays in cache between the passes over it
GPU_TILE_ELEMENTS = 1 << 23  # any cache of any preset at once: a GPU wants few and large kernels
POSITIONS = 61
KEYS = 32

_SLOPE = 0.75  # of a layer, times the 4 of `fold`: differences grow, so no flipped bit can die out


def fold(u: torch.Tensor) -> torch.Tensor:
    """`u` folded into -1 .. 1 by a triangle wave of slope 4 and period 1, in place. Every operation rounds exactly."""
    return u.sub_(torch.round(u)).abs_().mul_(4).sub_(1)


def uniform(shape: Sequence[int], generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    """float32 in -scale .. scale from the generator; the same values on every machine."""
    return torch.rand(*shape, generator=generator).mul_(2).sub_(1).mul_(scale)


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of one attention: `q`, `k`, `v` are channels x width, `o` is width x channels; float32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    heads: int

    @staticmethod
    def drawn(heads: int, head_dim: int, generator: torch.Generator) -> Attention:
        """Random projections under which queries, keys and values have about unit variance."""
        width = heads * head_dim
        q, k, v = (uniform((CHANNELS, width), generator, 3 / math.sqrt(CHANNELS)) for _ in range(3))
        return Attention(q, k, v, uniform((width, CHANNELS), generator, math.sqrt(3 / width)), heads)

    def to(self, device: torch.device) -> Attention:
        """The same on a device."""
        q, k, v, o = (part.to(device) for part in (self.q, self.k, self.v, self.o))
        return Attention(q, k, v, o, self.heads)


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a preset; `layers[n]` has "self" and "cross", and the action windows where they are wired."""

    layers: tuple[Mapping[str, Attention], ...]
    level: torch.Tensor
    position: torch.Tensor
    keys: torch.Tensor
    mouse: torch.Tensor

    @staticmethod
    def drawn(geometry: Geometry) -> Weights:
        """The weights of a preset: always the same ones."""
        generator = torch.Generator().manual_seed(int.from_bytes(geometry.name.encode()[:7], "big"))
        layers = []
        for layer in range(geometry.layers):
            kinds = ["cross", *(window for window in WINDOW_NAMES if not geometry.is_cold(layer, window))]
            layers.append({kind: Attention.drawn(*_heads(geometry, kind), generator) for kind in kinds})
        tables = (uniform((n, CHANNELS), generator) for n in (QUANTA_PER_BLOCK, POSITIONS, KEYS, 2))
        return Weights(tuple(layers), *tables)

    def to(self, device: torch.device) -> Weights:
        """The same on a device."""
        layers = tuple({kind: part.to(device) for kind, part in layer.items()} for layer in self.layers)
        return Weights(layers, *(part.to(device) for part in (self.level, self.position, self.keys, self.mouse)))

    def digest(self) -> str:
        """SHA-256 over every weight, as hex."""
        sha = hashlib.sha256()
        for attentions in self.layers:
            for _, attention in sorted(attentions.items()):
                for tensor in (attention.q, attention.k, attention.v, attention.o):
                    sha.update(tensor.cpu().numpy().tobytes())
        for tensor in (self.level, self.position, self.keys, self.mouse):
            sha.update(tensor.cpu().numpy().tobytes())
        return sha.hexdigest()


def _heads(geometry: Geometry, kind: str) -> tuple[int, int]:
    if kind in ("self", "cross"):
        return geometry.heads, geometry.head_dim
    return geometry.action_heads, geometry.action_head_dim


class WindowCache:
    """Keys and values of a sliding window along dimension 1 of state tensors, rewritten in place.

    The newer half is the last block's. `roll` moves it onto the older half, before anything has read that; `write`
    fills the newer half, once a quantum.
    """

    def __init__(self, k: torch.Tensor, v: torch.Tensor, global_end: torch.Tensor, local_end: torch.Tensor) -> None:
        self.k = k
        self.v = v
        self._global_end = global_end
        self._local_end = local_end
        self._half = k.shape[1] // 2
        self._ends = (0, 0)

    @staticmethod
    def read_ends(windows: Sequence[WindowCache]) -> None:
        """Read where each window ends, before a block: all at once, since a GPU is waited for each time."""
        if windows:
            found = torch.cat([end for window in windows for end in (window._global_end, window._local_end)]).tolist()
            for window, ends in zip(windows, zip(found[::2], found[1::2], strict=True), strict=True):
                window._ends = ends

    def position(self) -> int:
        """Which row of the position table the next block has."""
        return self._ends[0] // self._half % POSITIONS

    def roll(self) -> None:
        """The last block's keys and values become the context."""
        end = self._ends[1]
        for cache in (self.k, self.v):
            cache[:, : self._half].copy_(cache[:, end - self._half : end])

    def write(self, hidden: torch.Tensor, weights: Attention, buffer: torch.Tensor) -> None:
        """Rewrite the newer half from `hidden` (latent frames x tokens x channels)."""
        frames, tokens, _ = hidden.shape
        width = weights.k.shape[1]
        rows = max(1, buffer.numel() // (frames * width))
        for cache, projection in ((self.k, weights.k), (self.v, weights.v)):
            newer = self._by_frame(cache, tokens)[frames:]
            for start in range(0, tokens, rows):
                source = hidden[:, start : start + rows].reshape(-1, CHANNELS)
                made = buffer[: source.shape[0] * width].view(source.shape[0], width)
                torch.mm(source, projection, out=made)
                newer[:, start : start + rows].copy_(made.view(frames, -1, *cache.shape[2:]))

    def advance(self) -> None:
        """Count the block."""
        self._global_end.add_(self._half)
        self._local_end.fill_(self.k.shape[1])

    @staticmethod
    def _by_frame(cache: torch.Tensor, tokens: int) -> torch.Tensor:
        """The cache as frames x tokens x heads x dim: the window's frames lie outside or inside the tokens."""
        return cache.view(-1, tokens, *cache.shape[2:]) if cache.shape[0] == 1 else cache.transpose(0, 1)


def attend(
    query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: Attention, buffer: torch.Tensor
) -> torch.Tensor:
    """Softmax attention of one query (channels) over every key of a cache: what it adds to each token (channels)."""
    heads, head_dim = k.shape[-2:]
    keys, values = k.view(-1, heads, head_dim), v.view(-1, heads, head_dim)
    count = keys.shape[0]
    rows = min(count, max(1, buffer.numel() // (heads * head_dim)))
    tile = buffer[: rows * heads * head_dim].view(rows, heads, head_dim)
    q = torch.mm(query.view(1, -1), weights.q).view(heads, head_dim).div_(math.sqrt(head_dim))
    share = torch.empty(count, heads, device=buffer.device)
    for start in range(0, count, rows):
        part = tile[: count - start]
        torch.sum(part.copy_(keys[start : start + rows]).mul_(q), -1, out=share[start : start + rows])
    share.sub_(share.amax(0)).exp_()
    # A mean of independent values shrinks by the root of their number: undone, so that every key still counts.
    share.div_(share.sum(0)).mul_(math.sqrt(count))
    gathered = torch.zeros(rows, heads, head_dim, device=buffer.device)
    for start in range(0, count, rows):
        part = tile[: count - start]
        gathered[: part.shape[0]].addcmul_(
            part.copy_(values[start : start + rows]), share[start : start + rows, :, None]
        )
    return torch.mm(gathered.sum(0).view(1, -1), weights.o).view(-1)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's caches: the windows it is wired to, in order, and the cross-attention keys and values."""

    windows: Mapping[str, WindowCache]
    cross_k: torch.Tensor
    cross_v: torch.Tensor


def forward(
    weights: Weights,
    layers: Sequence[Layer],
    gains: Mapping[int, float],
    latent: torch.Tensor,
    action: Mapping[str, torch.Tensor],
    quantum: int,
    buffer: torch.Tensor,
) -> torch.Tensor:
    """One quantum: rewrites the newer half of every window, reads every window whole, answers the new latent.

    `latent` is latent frames x tokens x channels in -1 .. 1, `action` a vector of channels for "mouse" and "keyboard".
    The first quantum rolls the windows.
    """
    hidden = fold(latent * _SLOPE + weights.level[quantum])
    for index, layer in enumerate(layers):
        attentions = weights.layers[index]
        pooled = hidden.sum((0, 1)).div_(math.sqrt(hidden.shape[0] * hidden.shape[1]))
        query = fold(pooled * _SLOPE + weights.position[layer.windows["self"].position()])
        added = attend(query, layer.cross_k, layer.cross_v, attentions["cross"], buffer)
        for name, window in layer.windows.items():
            if quantum == 0:
                window.roll()
            window.write(_input(name, hidden, action), attentions[name], buffer)
            query = fold(query + weights.position[window.position()])
            added.add_(attend(query, window.k, window.v, attentions[name], buffer))
        hidden = fold((hidden * (_SLOPE * gains.get(index, 1.0))).add_(added))
    return hidden


def _input(window: str, hidden: torch.Tensor, action: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What a window's new keys and values are made from."""
    if window == "self":
        return hidden
    if window == "mouse":
        return hidden + action["mouse"]
    return action["keyboard"].expand(BLOCK_FRAMES, 1, CHANNELS)


def new_buffer(device: torch.device) -> torch.Tensor:
    """The float32 scratch that one session's passes share."""
    return torch.empty(TILE_ELEMENTS if device.type == "cpu" else GPU_TILE_ELEMENTS, device=device)

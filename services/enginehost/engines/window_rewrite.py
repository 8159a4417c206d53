"""The first engine: a causal, action-conditioned block model that rewrites its attention window in place.

The update rule is that of Matrix-Game 2.0: a block of 12 frames takes three denoise quanta and one context pass, each
of which rewrites the newer half of every layer's window and reads the window whole; the older half is overwritten by
the last block before anything reads it. The weights are random: what matters here is which bytes a block reads and
writes, and that every byte it reads decides what comes next.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence

import torch

from enginehost.engines.window_geometry import (
    ACTION_BYTES,
    BLOCK_FRAMES,
    CHANNELS,
    COLOURS,
    DENOISE_QUANTA,
    FRAMES_PER_LATENT,
    GEOMETRIES,
    QUANTA_PER_BLOCK,
    WINDOW_NAMES,
    Geometry,
)
from enginehost.engines.window_model import KEYS, Layer, Weights, WindowCache, forward, new_buffer, uniform
from enginehost.engines.window_tree import checked, nested, of_kind
from worldline.engine import Preset, Readout, StateLeaf, StateTree, preset_of
from worldline.errors import BadRequest, WrongState

# Not a power of two, so that no two chunks of a fresh state are equal by accident.
_BANK_ELEMENTS = 1_048_573


class WindowRewriteEngine:
    """The `window-rewrite` engine, on the CPU or a GPU. Weights are drawn when a preset is first used."""

    name = "window-rewrite"
    version = "1"

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._weights: dict[str, Weights] = {}
        self._drawing = threading.Lock()

    def use_device(self, device: torch.device) -> None:
        """Tensors of sessions and weights lie there from now on; random numbers are drawn on the CPU all the same."""
        self._device = device

    def presets(self) -> Mapping[str, Preset]:
        """`tiny` (about 1 MB), `small` (64 MB) and `mg2` (1.67 GB in 450 leaves)."""
        return {name: geometry.preset() for name, geometry in GEOMETRIES.items()}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        """The digest of the weights."""
        return {"weights": self._weights_of(preset).digest()}

    def create(self, preset: str, seed: int) -> StateTree:
        """A session whose window is full of noise. Raises BadRequest if `seed` is not of 64 bits."""
        geometry = self._geometry(preset)
        if not -(1 << 63) <= seed < 1 << 64:
            raise BadRequest(f"seed {seed} is not of 64 bits", violations={"seed": "not of 64 bits"})
        noise = torch.Generator().manual_seed(seed)
        bank = uniform((_BANK_ELEMENTS,), noise, 1.5).to(self._device, torch.bfloat16)
        cold = {spec.path for spec in geometry.cold_tensors()}
        leaves: dict[str, StateLeaf] = {"control/block": 0, "control/noise": noise}
        leaves.update({geometry.gain_path(layer): 1.0 for layer in geometry.gained_layers})
        for index, spec in enumerate(geometry.tensors()):
            if spec.path in cold:
                # Zeros, as an allocation is that nobody ever fills.
                leaves[spec.path] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
                continue
            tensor = torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
            leaves[spec.path] = tensor
            if spec.dtype is torch.int64:
                tensor.fill_(geometry.cache_shape(spec.path.split("/")[-2])[1])
            else:
                _fill(tensor.view(-1), bank, index * 104_729)
        return nested(leaves)

    def load(self, preset: str, tree: StateTree) -> WindowRewriteSession:
        """A session that lives in `tree`. Raises Mismatch, with each difference, if it is not a tree of the preset."""
        geometry = self._geometry(preset)
        return WindowRewriteSession(geometry, self._weights_of(preset), checked(geometry, tree, self._device))

    def _geometry(self, preset: str) -> Geometry:
        return GEOMETRIES[preset_of(self, preset).name]

    def _weights_of(self, preset: str) -> Weights:
        geometry = self._geometry(preset)
        with self._drawing:
            if preset not in self._weights:
                self._weights[preset] = Weights.drawn(geometry).to(self._device)
            return self._weights[preset]


class WindowRewriteSession:
    """One session. Its tensors stay where `load` found them; everything else here is scratch or a control leaf."""

    def __init__(self, geometry: Geometry, weights: Weights, leaves: dict[str, StateLeaf]) -> None:
        self._geometry = geometry
        self._weights = weights
        self._leaves = leaves
        self._noise = of_kind(leaves, "control/noise", torch.Generator)
        self._block = of_kind(leaves, "control/block", int)
        self._gains = {layer: of_kind(leaves, geometry.gain_path(layer), float) for layer in geometry.gained_layers}
        tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
        self._layers = [self._layer(layer, tensors) for layer in range(geometry.layers)]
        self._device = weights.level.device
        self._buffer = new_buffer(self._device)
        self._latent = torch.empty(BLOCK_FRAMES, geometry.tokens, CHANNELS, device=self._device)
        self._keys = 0
        self._action: dict[str, torch.Tensor] = {}
        self._next_quantum: int | None = None

    def _layer(self, layer: int, tensors: Mapping[str, torch.Tensor]) -> Layer:
        root = self._geometry.layer_path(layer)
        windows = {
            name: WindowCache(*(tensors[f"{root}/{name}/{part}"] for part in ("k", "v", "global_end", "local_end")))
            for name in WINDOW_NAMES
            if not self._geometry.is_cold(layer, name)
        }
        return Layer(windows, tensors[f"{root}/cross/k"], tensors[f"{root}/cross/v"])

    def begin_block(self, action: bytes) -> None:
        """`action`: 32 keys as bits, then how far the mouse went to the right and down, signed 16 bit; little-endian.

        Raises:
            BadRequest: not 8 bytes.
            WrongState: a block is open.
        """
        if len(action) != ACTION_BYTES:
            raise BadRequest(
                f"an action of {len(action)} bytes; this engine's are {ACTION_BYTES}",
                violations={"action": f"not {ACTION_BYTES} bytes"},
            )
        self._require_quantum(None)
        keys, right, down = struct.unpack("<Ihh", action)
        pressed = torch.tensor([float(keys >> key & 1) for key in range(KEYS)]).to(self._device)
        moved = torch.tensor([right / 32768, down / 32768]).to(self._device)
        WindowCache.read_ends([window for layer in self._layers for window in layer.windows.values()])
        self._keys = keys
        self._action = {
            "keyboard": (self._weights.keys * pressed[:, None]).sum(0),
            "mouse": (self._weights.mouse * moved[:, None]).sum(0),
        }
        self._next_quantum = 0

    def step(self, quantum: int) -> None:
        """A denoise quantum, or the context pass. Raises WrongState if it is not the next one."""
        self._require_quantum(quantum)
        if quantum < DENOISE_QUANTA:
            # From pure noise in the first quantum, with less of it in each that follows.
            share = 1 - quantum / DENOISE_QUANTA
            noise = uniform(self._latent.shape, self._noise, share).to(self._device)
            self._latent = noise if quantum == 0 else self._latent.mul_(1 - share).add_(noise)
        made = forward(self._weights, self._layers, self._gains, self._latent, self._action, quantum, self._buffer)
        if quantum < DENOISE_QUANTA:
            self._latent = made
        self._next_quantum = quantum + 1

    def end_block(self) -> None:
        """Raises WrongState unless every quantum has run."""
        self._require_quantum(QUANTA_PER_BLOCK)
        for layer in self._layers:
            for window in layer.windows.values():
                window.advance()
        for index, gain in self._gains.items():
            held = 1 + (self._keys >> index % KEYS & 1) / 8
            self._gains[index] = gain + (held - gain) / 8
        self._block += 1
        self._next_quantum = None

    def readout(self) -> Readout:
        """The last block's 12 frames: each pixel is one of the first layer's newest values, both of its bytes mixed.

        Raises:
            WrongState: before the first block, or inside a block.
        """
        self._require_quantum(None)
        if self._block == 0:
            raise WrongState("no block has been played yet: there is nothing to read out")
        geometry = self._geometry
        rows, columns, patch = geometry.rows, geometry.columns, geometry.patch
        values = self._layers[0].windows["self"].v.view(-1, geometry.heads * geometry.head_dim)
        shown = values[values.shape[0] // 2 :, : FRAMES_PER_LATENT * patch * patch * COLOURS].contiguous()
        bits = shown.view(torch.int16)
        pixels = bits.bitwise_xor(bits >> 8).bitwise_and_(0xFF).to(torch.uint8)
        tokens = pixels.view(BLOCK_FRAMES, rows, columns, FRAMES_PER_LATENT, patch, patch, COLOURS)
        frames = tokens.permute(0, 3, 1, 4, 2, 5, 6).contiguous()
        return Readout(
            frames=BLOCK_FRAMES * FRAMES_PER_LATENT,
            height=rows * patch,
            width=columns * patch,
            channels=COLOURS,
            data=frames.cpu().numpy().tobytes(),
        )

    def state_tree(self) -> StateTree:
        """The tree that `load` was given, with the control leaves as they are now. Raises WrongState inside a block."""
        self._require_quantum(None)
        self._leaves["control/block"] = self._block
        self._leaves.update({self._geometry.gain_path(layer): gain for layer, gain in self._gains.items()})
        return nested(self._leaves)

    def dirty_bytes_per_block(self) -> int:
        """Every window cache that is not cold, and the control leaves."""
        return self._geometry.dirty_bytes()

    def cold_paths(self) -> Sequence[str]:
        """The action caches of the layers that are not wired to the action."""
        return [spec.path for spec in self._geometry.cold_tensors()]

    def _require_quantum(self, expected: int | None) -> None:
        if self._next_quantum != expected:
            at = "at a block boundary" if self._next_quantum is None else f"before quantum {self._next_quantum}"
            asked = "needs a block boundary" if expected is None else f"comes before quantum {expected}"
            raise WrongState(f"the session is {at}; this call {asked}")


def _fill(flat: torch.Tensor, bank: torch.Tensor, start: int) -> None:
    """Fill with the bank, over and over, from element `start` of it on."""
    at, start = 0, start % bank.numel()
    while at < flat.numel():
        run = min(flat.numel() - at, bank.numel() - start)
        flat[at : at + run].copy_(bank[start : start + run])
        at, start = at + run, 0

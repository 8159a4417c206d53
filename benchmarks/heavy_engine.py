"""An engine for the benchmark on GPUs: blocks of one quantum that keeps the GPU busy for about a tenth of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Preset, Readout, StateTree

_SIDE = 8192
_PRODUCTS = 70  # of two matrices of that side: about 1.5 ms each on an H200


class HeavyEngine:
    """See `worldline.engine.DeviceEngine`."""

    name = "heavy"
    version = "1"

    def __init__(self) -> None:
        self._device = torch.device("cpu")

    def use_device(self, device: torch.device) -> None:
        """Compute there."""
        self._device = device

    def presets(self) -> Mapping[str, Preset]:
        """One."""
        contract = Contract(ContractClass.C1, 30.0, Tier.T0)
        return {"matmul": Preset("matmul", 3 * _SIDE * _SIDE * 2, 1, 1, contract)}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        """It has no weights."""
        return {"weights": "none"}

    def create(self, preset: str, seed: int) -> StateTree:
        """Two matrices."""
        noise = torch.Generator(self._device).manual_seed(seed)
        made = torch.randn(2, _SIDE, _SIDE, generator=noise, device=self._device).div_(_SIDE**0.5).to(torch.bfloat16)
        return {"a": made[0].clone(), "b": made[1].clone()}

    def load(self, preset: str, tree: StateTree) -> HeavySession:
        """Lives in `tree`."""
        return HeavySession(tree)


class HeavySession:
    """See `worldline.engine.EngineSession`."""

    def __init__(self, tree: StateTree) -> None:
        if not isinstance(tree, Mapping):
            raise TypeError("not a state of this engine")
        self._tree = tree
        self._a, self._b = tree["a"], tree["b"]

    def begin_block(self, action: bytes) -> None:
        """Any action will do."""

    def step(self, quantum: int) -> None:
        """Queue all products; they are waited for at the readout."""
        a, b = self._a, self._b
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            raise TypeError("not a state of this engine")
        made = a
        for _ in range(_PRODUCTS):
            made = torch.mm(made, b)
        a.copy_(made.clamp_(-1, 1))

    def end_block(self) -> None:
        """Nothing is left to do."""

    def readout(self) -> Readout:
        """A few elements."""
        if not isinstance(self._a, torch.Tensor):
            raise TypeError("not a state of this engine")
        return Readout(1, 1, 64, 2, self._a[0, :64].contiguous().view(torch.uint8).cpu().numpy().tobytes())

    def state_tree(self) -> StateTree:
        """The tree that was loaded."""
        return self._tree

    def dirty_bytes_per_block(self) -> int:
        """One matrix."""
        return _SIDE * _SIDE * 2

    def cold_paths(self) -> Sequence[str]:
        """None."""
        return ()

"""What results depend on here: the machine and torch, and for each engine and preset its version and weights."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import torch

from worldline.engine import Engine
from worldline.manifest import Fingerprint


def device_fields() -> dict[str, str]:
    """The device and software of this process, as far as results depend on them."""
    return {
        "arch": platform.machine(),
        "byteorder": sys.byteorder,
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "device": "cpu",
        "flush_denormal": str(not bool(torch.tensor([1e-40]).mul(1.0)[0] > 0)).lower(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": str(torch._C._has_mkldnn and torch.backends.mkldnn.enabled).lower(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


class Fingerprints:
    """The host's own fingerprint and those of its engines' presets."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self.host = Fingerprint(device_fields())
        self._known: dict[tuple[str, str], Fingerprint] = {}
        self._lock = threading.Lock()

    def of(self, engine: str, preset: str) -> Fingerprint:
        """The fingerprint of a preset. The first time may draw or load its weights."""
        with self._lock:
            if (engine, preset) not in self._known:
                served = self._engines[engine]
                fields = {
                    **self.host.fields,
                    **{f"engine.{name}": value for name, value in served.fingerprint(preset).items()},
                    "engine": engine,
                    "engine_version": served.version,
                    "preset": preset,
                }
                self._known[engine, preset] = Fingerprint(fields)
            return self._known[engine, preset]

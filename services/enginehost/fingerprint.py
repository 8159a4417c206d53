"""What results depend on here: the machine and torch, and for each engine and preset its version and weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from enginehost.device import Device
from worldline.engine import Engine
from worldline.manifest import Fingerprint


class Fingerprints:
    """The host's own fingerprint and those of its engines' presets."""

    def __init__(self, engines: Mapping[str, Engine], device: Device) -> None:
        self._engines = engines
        self.host = Fingerprint(dict(device.fields()))
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

"""What this process has touched once: presets whose weights, kernels and workspaces are there, and what that took."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstTouch:
    """Seconds of loading weights, of allocating and faulting in one slot, and of the first block."""

    load_s: float
    slot_s: float
    first_block_s: float

    @property
    def total_s(self) -> float:
        """What a session of a cold preset waits longer for."""
        return self.load_s + self.slot_s + self.first_block_s


class Warmth:
    """By preset, "engine/preset"."""

    def __init__(self) -> None:
        self._played: set[str] = set()
        self._first: dict[str, FirstTouch] = {}
        self._lock = threading.Lock()

    def played(self, preset: str) -> None:
        """A block of it was played here."""
        with self._lock:
            self._played.add(preset)

    def touched(self, preset: str, took: FirstTouch) -> None:
        """It was prewarmed. What the very first touch took counts, if no session had touched the preset before."""
        with self._lock:
            if preset not in self._played:
                self._first[preset] = took
            self._played.add(preset)

    def is_warm(self, preset: str) -> bool:
        """Whether a block of it was played here."""
        with self._lock:
            return preset in self._played

    def first_touch_s(self, preset: str) -> float:
        """Seconds its first touch took; 0: not measured."""
        with self._lock:
            return self._first[preset].total_s if preset in self._first else 0.0

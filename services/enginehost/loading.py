"""From the bytes of a slot to a session that can play, ahead of the moment that it is needed for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from enginehost.slots import Slot
from worldline import telemetry
from worldline.engine import Engine, EngineSession, Preset
from worldline.errors import WorldlineError

_log = telemetry.log("loading")


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine's session in a slot, and what it says of itself, in bytes."""

    runner: EngineSession
    dirty_bytes_per_block: int
    cold_bytes: int


def load(engine: Engine, preset: Preset, slot: Slot) -> Loaded:
    """Rehydrate, and have the engine live there. Raises what the engine does."""
    slot.device.serve()
    runner = engine.load(preset.name, slot.rehydrate())
    cold = set(runner.cold_paths())
    cold_bytes = sum(leaf.size_bytes for leaf in slot.layout.leaves if leaf.path in cold)
    return Loaded(runner, runner.dirty_bytes_per_block(), cold_bytes)


class Ahead:
    """A thread for what may be done before it is asked for. What fails is done again, and told, when it is."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._lock = threading.Lock()
        self._closed = False

    def do(self, work: Callable[[], None]) -> None:
        """Soon, on the thread."""
        with self._lock:
            if not self._closed:
                self._pool.submit(self._tried, work)

    @staticmethod
    def _tried(work: Callable[[], None]) -> None:
        try:
            work()
        except WorldlineError:
            return  # a verb was faster
        except Exception as error:
            _log.warning("not done ahead", error=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Do no more; what is being done is waited for."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

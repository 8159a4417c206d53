"""Slot memory that is allocated ahead: a session that comes takes it at once, instead of allocating and faulting in.

It is spare: whoever needs bytes of the budget for something else gets them, and it comes back once they are free again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from enginehost.charge import Budget, Charge
from enginehost.device import Device, Memory
from worldline import telemetry
from worldline.errors import WorldlineError

# How often it is tried again where the budget had no room.
RETRY_S = 1.0
_log = telemetry.log("warm_slots")


class WarmSlots:
    """A thread keeps as many as were asked for. Any thread may take one."""

    def __init__(self, device: Device, budget: Budget) -> None:
        self._device = device
        self._budget = budget
        self._wanted: dict[str, tuple[int, int]] = {}  # by preset: bytes and count
        self._ready: list[Memory] = []
        self._changed = threading.Condition()
        self._filling = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="warm-slots", daemon=True)
        budget.spare = self._spare

    def start(self) -> None:
        """Keep what is asked for."""
        self._thread.start()

    def stop(self) -> None:
        """Keep nothing any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with self._filling:
            self._spare(self.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated ahead."""
        with self._changed:
            return sum(memory.size_bytes for memory in self._ready)

    def count(self, preset: str) -> int:
        """Slots allocated ahead that sessions of a preset ("engine/preset") can take."""
        with self._changed:
            wanted_bytes, _ = self._wanted.get(preset, (0, 0))
            return sum(memory.size_bytes == wanted_bytes for memory in self._ready)

    def keep(self, preset: str, size_bytes: int, count: int) -> None:
        """Allocate `count` slots of a preset now, as far as the budget has room, and keep them from now on."""
        with self._changed:
            self._wanted[preset] = (size_bytes, count)
        self._fill()

    def memory(self, name: str, size_bytes: int, charge: Callable[[], Charge]) -> Memory:
        """A slot's memory, zeroed and faulted in: one allocated ahead, or else one allocated now, charged to `charge`.

        Raises:
            Exhausted: there is no memory for it; nothing stays charged.
        """
        with self._changed:
            fitting = next((memory for memory in self._ready if memory.size_bytes == size_bytes), None)
            if fitting is not None:
                self._ready.remove(fitting)
                self._changed.notify_all()
                return fitting
        return self._device.allocate(name, size_bytes, charge())

    def _missing(self) -> int:
        """Bytes of a slot that is wanted and not there; 0 if none is."""
        with self._changed:
            if self._stopped:
                return 0
            wanted: Counter[int] = Counter()
            for size_bytes, count in self._wanted.values():
                wanted[size_bytes] += count
            wanted.subtract(memory.size_bytes for memory in self._ready)
            return next((size_bytes for size_bytes, count in wanted.items() if count > 0), 0)

    def _fill(self) -> None:
        with self._filling:
            while size_bytes := self._missing():
                charge = self._budget.take_free(size_bytes)
                if charge is None:
                    return
                memory = self._device.allocate("warm", size_bytes, charge)
                with self._changed:
                    self._ready.append(memory)

    def _spare(self, size_bytes: int) -> bool:
        """Give back at least so many bytes, or all there are. Returns whether there were any."""
        spared: list[Memory] = []
        with self._changed:
            while self._ready and sum(memory.size_bytes for memory in spared) < size_bytes:
                spared.append(self._ready.pop())
        for memory in spared:
            memory.close()
        return bool(spared)

    def _run(self) -> None:
        self._device.serve()
        while True:
            try:
                self._fill()
            except WorldlineError as error:
                _log.warning("no slot could be allocated ahead", error=error.message)
            with self._changed:
                if self._stopped:
                    return
                self._changed.wait(RETRY_S if self._wanted else None)

"""Keeps the journal small beside the work: lets go what is old, and checkpoints a journal file's log."""

from __future__ import annotations

import threading
import time

from admission.journal import Journal
from worldline import telemetry
from worldline.errors import Unavailable

_IDLE_S = 1.0
# Of the time in which nobody else can write, at most this part is ours while there is much to let go.
_SHARE = 0.1


class Upkeep:
    """A thread that keeps a journal small."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End. The transaction in progress is finished."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            began_s = time.monotonic()
            try:
                more = self._journal.compact()
                if not more:
                    self._journal.checkpoint()
            except Unavailable as error:
                more = 0
                telemetry.log("upkeep").warning("not done", error=error.message, reason=error.reason)
            wait_s = (time.monotonic() - began_s) / _SHARE if more else _IDLE_S

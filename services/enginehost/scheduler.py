"""The serving loop: one thread that runs quanta of ready sessions, round-robin, never stopping inside a quantum."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from enginehost.session import Session


class Scheduler:
    """Turns of sessions, each one quantum long."""

    def __init__(
        self, torch_threads: int, on_broken: Callable[[Session], None], begin: Callable[[], None] = lambda: None
    ) -> None:
        """`on_broken` is told of a session whose engine failed, after it has ended; the thread calls `begin` first."""
        self._begin = begin
        self._torch_threads = torch_threads
        self._on_broken = on_broken
        self._ready: deque[Session] = deque()
        self._cond = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def wake(self, session: Session) -> None:
        """Something changed: the session may have a turn."""
        with self._cond:
            if session not in self._ready:
                self._ready.append(session)
                self._cond.notify()

    def stop(self) -> None:
        """Run no more quanta; returns when the one in progress is over."""
        with self._cond:
            self._stopped = True
            self._cond.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._torch_threads)
        self._begin()
        with torch.inference_mode(False), torch.no_grad():
            while True:
                with self._cond:
                    self._cond.wait_for(lambda: self._ready or self._stopped)
                    if self._stopped:
                        return
                    session = self._ready.popleft()
                try:
                    more = session.turn()
                except Exception as error:
                    session.broken(error)
                    self._on_broken(session)
                    continue
                if more:
                    self.wake(session)

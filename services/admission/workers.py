"""Threads for moves, kept warm: a move that begins wakes one that waits, and does not pay for a new one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


class Workers:
    """As many threads as there are tasks at once; `warm` of them from the start. A thread that is done waits."""

    def __init__(self, name: str, warm: int = 4) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        with self._lock:
            for _ in range(warm):
                self._add()

    def run(self, task: Callable[[], None]) -> None:
        """Run `task` on a thread of its own, at once. It must not raise."""
        with self._lock:
            if not self._idle:
                self._add()
            self._idle -= 1
            self._tasks.put(task)
        # Python lets the woken thread wait until this one pauses.
        time.sleep(0)

    def _add(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._idle += 1
        thread.start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            task()
            with self._lock:
                self._idle += 1

    def stop(self, grace_s: float) -> None:
        """Let the threads end, and wait at most `grace_s` in all for those that have a task."""
        ends_s = time.monotonic() + grace_s
        with self._lock:
            threads = list(self._threads)
            for _ in threads:
                self._tasks.put(None)
        for thread in threads:
            thread.join(max(ends_s - time.monotonic(), 0.0))

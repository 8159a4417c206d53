"""What processes hold of their own while something runs: regions are shared, libraries are files'."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is its own."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[dict[int, int]]:
    """The most that each process has held meanwhile, beyond what it held at first."""
    before = {pid: anonymous_bytes(pid) for pid in pids}
    most = dict.fromkeys(pids, 0)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.001):
            for pid in pids:
                most[pid] = max(most[pid], anonymous_bytes(pid) - before[pid])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()

"""A pytest fixture that fails a test which leaves something behind: put it into a `conftest.py` by importing it.

from worldline.testing.leaks import no_leaks
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SETTLE_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds now, each as text that a person understands."""

    descriptors: frozenset[str]
    shared_memory: frozenset[str]
    mappings: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]

    def beyond(self, before: Held) -> list[str]:
        """What is held now and was not before."""
        return sorted(
            f"{kind}: {item}" for kind in self.__slots__ for item in getattr(self, kind) - getattr(before, kind)
        )


def held() -> Held:
    """What this process holds: descriptors, /dev/shm, memfd mappings, Python threads, child processes."""
    return Held(_descriptors(), _shared_memory(), _mappings(), _threads(), _children())


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test if, a while after it, this process holds what it did not hold before."""
    before = held()
    yield
    deadline = time.monotonic() + SETTLE_S
    while (left := held().beyond(before)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if left:
        pytest.fail(f"the test left {len(left)} things behind:\n" + "\n".join(left), pytrace=False)


def _descriptors() -> frozenset[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        # gRPC keeps a pool of these for the process's life and makes them when it likes.
        if not target.startswith("anon_inode:"):
            found.add(f"{name} -> {target}")
    return frozenset(found)


def _shared_memory() -> frozenset[str]:
    # Other processes use it too: only what carries our name counts.
    return frozenset(name for name in os.listdir("/dev/shm") if "worldline" in name)


def _mappings() -> frozenset[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return frozenset(line.split(maxsplit=5)[0] + " memfd" for line in lines if "/memfd:" in line)


def _threads() -> frozenset[str]:
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate())


def _children() -> frozenset[str]:
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:
            continue  # the thread has ended
        for pid in pids:
            found.add(f"process {pid}")
    return frozenset(found)

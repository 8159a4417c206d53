"""The injected clock and the leak check themselves."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading

import pytest

from worldline.testing.clock import Clock, ManualClock, SystemClock
from worldline.testing.leaks import held


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock = ManualClock(5.0)
    assert (clock.now(), clock.now()) == (5.0, 5.0)
    clock.sleep(3_600.0)
    assert clock.now() == 3_605.0
    with pytest.raises(ValueError, match="does not go back"):
        clock.sleep(-1.0)


def test_the_system_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()
    before = clock.now()
    clock.sleep(0.0)
    assert clock.now() >= before


def test_everything_that_can_leak_is_seen() -> None:
    before = held()
    descriptor = os.memfd_create("worldline-test")
    os.ftruncate(descriptor, 4096)
    mapped = mmap.mmap(descriptor, 4096)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-behind")
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        left = held().beyond(before)
        for kind in ("descriptors", "mappings", "threads: left-behind", f"children: process {child.pid}"):
            assert any(item.startswith(kind) for item in left), (kind, left)
    finally:
        child.communicate(b"\n")
        ended.set()
        thread.join()
        mapped.close()
        os.close(descriptor)
    assert held().beyond(before) == []

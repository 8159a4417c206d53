"""A server that is told to stop stops, wherever in its wait the signal finds it."""

from __future__ import annotations

import subprocess
import sys

# Signals come thousands of times a second while the main thread goes in and out of `wait`.
_CODE = """
import signal, sys, time
from worldline.rpc import Server
from worldline.settings import ServiceSettings, load

server = Server(load(ServiceSettings), [])
server.wait(0)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
ends_s, told = time.monotonic() + 2.0, 0
while time.monotonic() < ends_s:
    told += server.wait(2e-4)
signal.setitimer(signal.ITIMER_REAL, 0)
while server.wait(0):
    pass
server.ask_to_stop()
assert server.wait(5)
assert told > 100, told
"""


def test_a_signal_may_come_at_any_point_of_a_wait() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

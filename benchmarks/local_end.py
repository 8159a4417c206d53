"""Moves between two regions of one process, as a data plane makes them, and one copy in memory: the ceiling.

`python -m benchmarks.local_end SIZE` is the process: a data plane's environment decides how its copies are made.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

from admission.offers import COPIED_CHUNK_BYTES
from benchmarks.child import Child, say
from benchmarks.wire import MOVE_ID, memory, noise, together
from mover.job import Job
from mover.memory import Region, address_of
from mover.plane import COPIES
from mover.settings import default_lane_threads
from mover.transports import TransportConfig, open_transports
from worldline.plan import Plan
from worldline.transport import Terms
from worldline.v1 import state_pb2
from worldline.wire import plan_from, plan_to


class LocalEnd:
    """The process, seen from the benchmark. Raises Unavailable as `Child` does."""

    def __init__(self, size_bytes: int, plan: Plan) -> None:
        chunk_bytes = max(plan.chunk_bytes, COPIED_CHUNK_BYTES)
        local = dataclasses.replace(plan, transport="local", chunk_bytes=chunk_bytes)
        self._plan = plan_to(local).SerializeToString().hex()
        self._child = Child("benchmarks.local_end", size_bytes, environment=COPIES)

    def copy(self) -> float:
        """Seconds of one copy in memory, with as many threads as the plan has streams."""
        return self._taken("copy")

    def move(self, *, verified: bool) -> float:
        """Seconds of one move until both ends have all checksums, or without checksums."""
        return self._taken("verified" if verified else "off")

    def _taken(self, arm: str) -> float:
        self._child.ask({"arm": arm, "plan": self._plan})
        return float(self._child.told("seconds"))

    def close(self) -> None:
        """End it."""
        self._child.close()


def _copy(source: Region, target: Region, streams: int) -> float:
    size_bytes = source.size_bytes
    left, into = address_of(source.view), address_of(target.view)
    share = -(-size_bytes // streams)
    parts = [(at, min(share, size_bytes - at)) for at in range(0, size_bytes, share)]
    start = time.perf_counter()
    together([partial(ctypes.memmove, into + at, left + at, size) for at, size in parts])
    return time.perf_counter() - start


def _move(descriptors: Sequence[int], size_bytes: int, plan: Plan, *, verified: bool) -> float:
    transports = open_transports(("local",), TransportConfig())
    terms = Terms(MOVE_ID, os.urandom(32), plan.streams, 30.0)
    sender, receiver = (Job(transports, default_lane_threads(), verified=verified) for _ in range(2))
    sender.map(os.dup(descriptors[0]), size_bytes, writable=False)
    receiver.map(os.dup(descriptors[1]), size_bytes, writable=True)
    endpoint = receiver.listen(plan, terms)
    start = time.perf_counter()
    sender.connect(plan, terms, endpoint, (), lambda kind, chunk: None)
    together([partial(job.run, 60.0, lambda progress: None) for job in (sender, receiver)])
    taken = time.perf_counter() - start
    for job in (sender, receiver):
        job.close()
    return taken


def main(size_bytes: int) -> None:
    """The process."""
    descriptors = [memory(size_bytes), memory(size_bytes)]
    source, target = (Region(descriptor, size_bytes, writable=True) for descriptor in descriptors)
    for region in (source, target):
        region.populate()
    noise(source.view)
    say({"ready": "yes"})
    for line in sys.stdin:
        command = json.loads(line)
        plan = plan_from(state_pb2.Plan.FromString(bytes.fromhex(command["plan"])))
        arm = command["arm"]
        if arm == "copy":
            say({"seconds": _copy(source, target, plan.streams)})
        else:
            say({"seconds": _move(descriptors, size_bytes, plan, verified=arm == "verified")})


if __name__ == "__main__":
    main(int(sys.argv[1]))

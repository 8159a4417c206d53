"""What a move needs beside its two regions: bounded, whatever the state's size, the chunks' size and the codec."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from process_memory import watched

from mover.messages import PlaneConfig
from mover.plane import DataPlane, PlaneJob
from mover.stop import Stop
from worldline.codec.runs import Run
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.transport import Terms

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

SIZE_BYTES = 1 << 30
BOUND_BYTES = 64 << 20


@pytest.fixture(scope="module")
def regions() -> Iterator[tuple[int, int]]:
    """A source that codes well in part, and a slot."""
    made = os.memfd_create("worldline-source"), os.memfd_create("worldline-slot")
    noise = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)
    part = (noise.view(np.uint32) >> 16).astype("<u2").tobytes()
    for at in range(0, SIZE_BYTES, len(part)):
        os.pwrite(made[0], part, at)
    os.ftruncate(made[1], SIZE_BYTES)
    yield made
    for descriptor in made:
        os.close(descriptor)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 256 << 20])
@pytest.mark.parametrize(("transport", "codec"), [("tcp", "raw"), ("tcp", "zstd"), ("local", "raw"), ("local", "zstd")])
def test_a_move_needs_little_beside_its_regions(
    regions: tuple[int, int], transport: str, codec: str, chunk_bytes: int
) -> None:
    plan = Plan(transport, chunk_bytes, 4, Placement.PIPELINED, 60, 60, 60, codec=codec)
    terms = Terms(str(uuid.uuid4()), new_token(), plan.streams, plan.no_progress_s)
    planes = [DataPlane(PlaneConfig(codec_threads=2)) for _ in range(1 if transport == "local" else 2)]
    stop = Stop()
    for plane in planes:
        plane.start()
    try:
        sender, receiver = planes[0].open(), planes[-1].open()
        with watched([plane.pid for plane in planes]) as most:
            sender.map(stop, regions[0], SIZE_BYTES, writable=False)
            receiver.map(stop, regions[1], SIZE_BYTES, writable=True)
            runs = (Run(SIZE_BYTES, 2),)
            sender.connect(stop, plan, terms, receiver.listen(stop, plan, terms), runs=runs)
            both(stop, sender, receiver)
        assert max(most.values()) <= BOUND_BYTES
        for job in (sender, receiver):
            job.close()
    finally:
        for plane in planes:
            plane.close()
    assert all(os.pread(regions[1], 4096, at) == os.pread(regions[0], 4096, at) for at in range(0, SIZE_BYTES, 1 << 24))


def both(stop: Stop, sender: PlaneJob, receiver: PlaneJob) -> None:
    """Run both halves."""
    thread = threading.Thread(target=receiver.run, args=(stop, 60.0, lambda progress: None))
    thread.start()
    sender.run(stop, 60.0, lambda progress: None)
    thread.join()

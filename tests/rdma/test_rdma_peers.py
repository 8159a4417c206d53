"""A peer's data plane is frozen with its queue pair open, or is killed and comes back: the other end gives up by name.

The bound that ends each of these waits is `no_progress_s`: had a move's deadline ended it, the reason would say so.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest
from e2e_tools import until
from rdma_tools import resources, terms_of

from mover import plane as plane_module
from mover.messages import Outcome, PlaneConfig, Progress
from mover.plane import DataPlane
from mover.stop import Stop
from mover.transports.rdma.config import RdmaConfig
from worldline.errors import Cancelled, TimedOut, Unavailable
from worldline.plan import Placement, Plan

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]

START_S = 120.0  # an emulated machine takes its time
SIZE_BYTES = 32 << 20
NO_PROGRESS_S = 4.0
PATIENT_S = 60.0
PLAN = Plan("rdma", 1 << 20, 1, Placement.PIPELINED, 60, 60, NO_PROGRESS_S)
# Slow enough that a move is still on its way when its peer is stopped.
SLOW = "rate 80mbit"
# A device goes on with what a frozen process has posted: less than the region.
DEPTH = 8


class Halves:
    """Both halves of one move: memory, a job in each data plane, and how far it has come."""

    def __init__(self, source: DataPlane, destination: DataPlane, pool: ThreadPoolExecutor) -> None:
        self.content = os.urandom(SIZE_BYTES)
        self._memory = [os.memfd_create("worldline-test") for _ in range(2)]
        os.pwrite(self._memory[0], self.content, 0)
        os.ftruncate(self._memory[1], SIZE_BYTES)
        self._pool = pool
        self.under_way = threading.Event()
        self.destination_stop = Stop()
        stop, terms = Stop(), replace(terms_of(), no_progress_s=NO_PROGRESS_S)
        self.destination = destination.open()
        self.destination.map(stop, self._memory[1], SIZE_BYTES, writable=True)
        endpoint = self.destination.listen(stop, PLAN, terms)
        self.source = source.open()
        self.source.map(stop, self._memory[0], SIZE_BYTES, writable=False)
        self.source.connect(stop, PLAN, terms, endpoint)

    def run(self) -> tuple[Future[Outcome], Future[Outcome]]:
        """Start both. `under_way` is set when a chunk has landed."""

        def landed(progress: Progress) -> None:
            if progress.moved_bytes:
                self.under_way.set()

        receiving = self._pool.submit(self.destination.run, self.destination_stop, PATIENT_S, landed)
        sending = self._pool.submit(self.source.run, Stop(), PATIENT_S, lambda progress: None)
        return sending, receiving

    @property
    def slot(self) -> bytes:
        """What lies in the slot."""
        return os.pread(self._memory[1], SIZE_BYTES, 0)

    def give_slot_away(self) -> None:
        """Another session's memory from here on."""
        os.pwrite(self._memory[1], bytes(SIZE_BYTES), 0)

    def close(self) -> None:
        """Free the memory."""
        for descriptor in self._memory:
            os.close(descriptor)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as opened:
        yield opened


@pytest.fixture
def planes(
    devices: tuple[str, str], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[DataPlane, DataPlane]]:
    """The source's and the destination's, rdma alone; afterwards the kernel counts what it counted before."""
    monkeypatch.setattr(plane_module, "START_S", START_S)
    before = resources()
    source, destination = (
        DataPlane(PlaneConfig(transports=("rdma",), rdma=RdmaConfig(device=name, depth=DEPTH))) for name in devices
    )
    try:
        list(pool.map(DataPlane.start, (source, destination)))
        yield source, destination
    finally:
        source.close()
        destination.close()
    until("the kernel has taken everything back", lambda: resources() == before, PATIENT_S)


def moves_again(planes: tuple[DataPlane, DataPlane], pool: ThreadPoolExecutor, wire: Callable[[str], None]) -> None:
    """The next move between the two goes through."""
    wire("delay 0ms")
    until("both data planes are up", lambda: all(plane.pid for plane in planes), PATIENT_S)
    halves = Halves(*planes, pool)
    for future in halves.run():
        future.result(PATIENT_S)
    assert halves.slot == halves.content
    halves.source.close()
    halves.destination.close()
    halves.close()


def test_a_frozen_destination(
    planes: tuple[DataPlane, DataPlane], pool: ThreadPoolExecutor, wire: Callable[[str], None]
) -> None:
    """Its device goes on acknowledging what the source writes: only our own bound tells that nobody is there."""
    wire(SLOW)
    halves = Halves(*planes, pool)
    sending, receiving = halves.run()
    assert halves.under_way.wait(PATIENT_S)
    frozen = planes[1].pid
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(TimedOut) as error:
        sending.result(PATIENT_S)
    assert error.value.reason == "NO_PROGRESS"
    halves.source.close()
    # The destination's mover gives up too, and ends a data plane that does not answer: it never writes again.
    halves.destination_stop.tell(Cancelled("the source gave up"))
    with pytest.raises(Cancelled):
        receiving.result(PATIENT_S)
    with pytest.raises(Unavailable, match="not unmapped"):
        halves.destination.close()
    until("the stopped process is gone", lambda: not psutil.pid_exists(frozen), PATIENT_S)
    until("it was replaced", lambda: planes[1].pid not in (0, frozen), PATIENT_S)
    halves.close()
    moves_again(planes, pool, wire)


def test_a_frozen_source_that_wakes_after_the_abort(
    planes: tuple[DataPlane, DataPlane], pool: ThreadPoolExecutor, wire: Callable[[str], None]
) -> None:
    """When it goes on, its stream is over, and the memory that it wrote to belongs to another session."""
    wire(SLOW)
    halves = Halves(*planes, pool)
    sending, receiving = halves.run()
    assert halves.under_way.wait(PATIENT_S)
    os.kill(planes[0].pid, signal.SIGSTOP)
    with pytest.raises(TimedOut) as error:
        receiving.result(PATIENT_S)
    assert error.value.reason == "NO_PROGRESS"
    halves.destination.close()
    halves.give_slot_away()
    os.kill(planes[0].pid, signal.SIGCONT)
    with pytest.raises(Unavailable) as late:
        sending.result(PATIENT_S)
    assert late.value.reason == "PEER_GONE"
    halves.source.close()
    assert halves.slot == bytes(SIZE_BYTES)
    halves.close()
    moves_again(planes, pool, wire)


@pytest.mark.parametrize("killed", ["source", "destination"])
def test_a_killed_peer_that_comes_back(
    planes: tuple[DataPlane, DataPlane], pool: ThreadPoolExecutor, wire: Callable[[str], None], killed: str
) -> None:
    """The other end is told at once; the new process knows nothing of the old move, and the next one goes through."""
    wire(SLOW)
    halves = Halves(*planes, pool)
    sending, receiving = halves.run()
    assert halves.under_way.wait(PATIENT_S)
    victim, other = (sending, receiving) if killed == "source" else (receiving, sending)
    plane = planes[0 if killed == "source" else 1]
    starts = plane.starts
    os.kill(plane.pid, signal.SIGKILL)
    with pytest.raises(Unavailable) as error:
        other.result(PATIENT_S)
    assert error.value.reason == "PEER_GONE"
    with pytest.raises(Unavailable) as own:
        victim.result(PATIENT_S)
    assert own.value.reason == "DATA_PLANE_DIED"
    halves.source.close()
    halves.destination.close()
    halves.give_slot_away()
    until("a new data plane is up", lambda: plane.starts == starts + 1, PATIENT_S)
    assert halves.slot == bytes(SIZE_BYTES)
    halves.close()
    moves_again(planes, pool, wire)

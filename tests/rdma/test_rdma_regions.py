"""Registrations: made once a region, kept within a bound, ended when their memory is given back."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from rdma_tools import PATIENT_S, new_stream, open_rdma, resources, send_all, two_hosts

from mover.memory import Region
from worldline.buffers import address_of
from worldline.errors import WorldlineError

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]

SIZE_BYTES = 1 << 20
MADV_REMOVE = 9


@contextmanager
def region_of(descriptor: int, *, writable: bool = True) -> Iterator[Region]:
    """The descriptor mapped, as a job of the data plane maps it."""
    region = Region(descriptor, SIZE_BYTES, writable=writable)
    region.populate()
    yield region
    region.close()


@pytest.fixture
def memory() -> Iterator[Callable[[], int]]:
    """Makes slots as engine hosts do."""
    made: list[int] = []

    def make() -> int:
        descriptor = os.memfd_create("worldline-test")
        os.ftruncate(descriptor, SIZE_BYTES)
        with mmap.mmap(descriptor, SIZE_BYTES) as mapped:
            mapped[:] = os.urandom(SIZE_BYTES)
        made.append(descriptor)
        return descriptor

    yield make
    for descriptor in made:
        os.close(descriptor)


def test_a_region_is_registered_once(devices: tuple[str, str], memory: Callable[[], int]) -> None:
    """In as a destination, out as a source: the mapping is another, the registration is not."""
    rdma, slot = open_rdma(devices[0], segment_bytes=SIZE_BYTES // 4), memory()
    for writable in (True, False, True):
        with region_of(slot, writable=writable) as region:
            registered = rdma.regions.acquire(region.view, writable=writable)
            assert len(registered.segments) == 4
            rdma.regions.release(registered)
    assert rdma.regions.registrations == 1
    rdma.close()


def test_a_read_only_region_is_sent_as_it_is_then(devices: tuple[str, str], memory: Callable[[], int]) -> None:
    """Registered while its session still plays, and from a descriptor that may not be written, as a source's is."""
    owned = memory()
    descriptor = os.open(f"/proc/self/fd/{owned}", os.O_RDONLY)
    with two_hosts(devices) as homes, region_of(descriptor, writable=False) as source, ThreadPoolExecutor(1) as pool:
        stream = new_stream(SIZE_BYTES, 1 << 18)
        stream.source = source.view
        stream.open(*homes)
        played_on = os.urandom(SIZE_BYTES)
        os.pwrite(owned, played_on, 0)
        sending = pool.submit(send_all, stream)
        while stream.receiver.next() is not None:
            pass
        stream.receiver.answer(())
        sending.result(PATIENT_S)
        assert stream.slot == played_on
        stream.close()
        del stream
    os.close(descriptor)


def test_the_bound_holds_for_what_is_idle(devices: tuple[str, str], memory: Callable[[], int]) -> None:
    """The oldest idle registrations go; what a move holds stays."""
    rdma = open_rdma(devices[0], cache_bytes=2 * SIZE_BYTES)
    slots = [memory() for _ in range(4)]
    with region_of(slots[0]) as first:
        held = rdma.regions.acquire(first.view, writable=True)
        for slot in slots[1:]:
            with region_of(slot) as region:
                rdma.regions.release(rdma.regions.acquire(region.view, writable=True))
        assert rdma.regions.kept_bytes == 2 * SIZE_BYTES
        assert rdma.regions.in_use == 1
        rdma.regions.release(held)
    rdma.close()


def test_memory_of_our_own_is_one_segment(devices: tuple[str, str]) -> None:
    """Records have one key, however many chunks there are and however small segments are set."""
    rdma = open_rdma(devices[0], segment_bytes=4096)
    with mmap.mmap(-1, 3 * 4096) as mapped, memoryview(mapped) as view:
        registered = rdma.regions.register_private(view, 0)
        assert [segment.size_bytes for segment in registered.segments] == [3 * 4096]
        rdma.regions.release(registered)
    rdma.close()


def test_memory_that_is_given_back_is_let_go(devices: tuple[str, str], memory: Callable[[], int]) -> None:
    """An engine host frees a slot: its pages are not held by a registration that nobody needs."""
    rdma, slot = open_rdma(devices[0]), memory()
    with region_of(slot) as region:
        rdma.regions.release(rdma.regions.acquire(region.view, writable=True))
        registered = resources()["mr"]
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address_of(region.view)), ctypes.c_size_t(SIZE_BYTES), MADV_REMOVE)
    deadline = time.monotonic() + 30
    while rdma.regions.kept_bytes and time.monotonic() < deadline:
        time.sleep(0.05)
    assert rdma.regions.kept_bytes == 0
    assert resources()["mr"] == registered - 1
    rdma.close()


def test_a_transport_with_moves_at_work_does_not_close(devices: tuple[str, str], memory: Callable[[], int]) -> None:
    """Deregistering under a move would hide a leak."""
    rdma = open_rdma(devices[0])
    with region_of(memory()) as region:
        held = rdma.regions.acquire(region.view, writable=True)
        with pytest.raises(WorldlineError, match="still held"):
            rdma.regions.close()
        rdma.regions.release(held)
    rdma.close()

"""From a slot to pinned host memory, and read back from there while the next pieces leave.

The device reads pieces back through the link's other direction, into a ring of its own memory, and takes their CRC-32
there. Both ways at once take 1.1 times as long as one, and what the device reads costs the link: where there are
cores to spare, two of them read every third piece instead. Cores alone would take 2.5 times as long.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import torch

from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc, Run, chunk_crcs
from enginehost.device import Saved
from worldline.crc import PIECE_BYTES, crc32
from worldline.plan import Chunk

_RING = 8
_READERS = 2
_READ_HERE = 3  # every third piece, if there are so many cores for a reader:
_CORES = 4


def save(address: int, to: int, pieces: Sequence[Chunk], crc: DeviceCrc) -> Saved:
    """Copy pieces, all but the last of one size, from the device's `address` on to host address `to` on.

    On streams of its own, so that no move waits for the link to the host.
    """
    driver.use(crc.ordinal)
    here = _read_here(len(pieces))
    with _streams(crc.ordinal) as (out, back, check), ThreadPoolExecutor(_READERS) as readers:
        ring = torch.empty(_RING * pieces[0].size_bytes, dtype=torch.uint8, device=torch.device("cuda", crc.ordinal))
        read: dict[int, Future[int]] = {}
        runs: list[Run] = []
        checked: list[torch.cuda.Event] = []
        for number, piece in enumerate(pieces):
            there = to + piece.offset
            driver.copy(there, address + piece.offset, piece.size_bytes, out)
            gone = _recorded(out)
            if number in here:
                read[number] = readers.submit(_crc_here, gone, there, piece.size_bytes)
                continue
            place = ring.data_ptr() + len(runs) % _RING * pieces[0].size_bytes
            back.wait_event(gone)
            if len(runs) >= _RING:
                back.wait_event(checked[-_RING])
            driver.copy(place, there, piece.size_bytes, back)
            check.wait_event(_recorded(back))
            run = crc.run(place, _alone(piece.size_bytes), check)
            run.add(0, 1)
            runs.append(run)
            checked.append(_recorded(check))
        crcs = crc.crcs(address, pieces).chunks
        by_device = iter(chunk_crcs(runs, check))
        read_back = [read[number].result() if number in read else next(by_device) for number in range(len(pieces))]
        return Saved(tuple(crcs), tuple(read_back))


@contextmanager
def _streams(ordinal: int) -> Iterator[list[torch.cuda.Stream]]:
    """Three; whatever happened, nothing that was queued on them goes on after the block."""
    streams = [torch.cuda.Stream(ordinal) for _ in range(3)]  # type: ignore[no-untyped-call]
    try:
        yield streams
    finally:
        for stream in streams:
            stream.synchronize()


@lru_cache(maxsize=64)
def _read_here(count: int) -> range:
    """The pieces that cores read; none of the first, nor the last, which nothing could hide."""
    spare = len(os.sched_getaffinity(0)) >= _READERS * _CORES
    return range(_READ_HERE - 1, count - 1, _READ_HERE) if spare else range(0)


def _crc_here(gone: torch.cuda.Event, address: int, size_bytes: int) -> int:
    """The CRC-32 of what lies in host memory, once it does."""
    gone.synchronize()
    crc = 0
    with memoryview((ctypes.c_ubyte * size_bytes).from_address(address)) as memory:
        for at in range(0, size_bytes, PIECE_BYTES):
            with memory[at : at + PIECE_BYTES] as part:
                crc = crc32(part, crc)
    return crc


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


@lru_cache(maxsize=64)
def _alone(size_bytes: int) -> tuple[Chunk, ...]:
    return (Chunk(0, 0, size_bytes),)

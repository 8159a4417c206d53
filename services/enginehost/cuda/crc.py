"""CRC-32 of device memory on the device: each chunk and the whole, equal to zlib's, behind whatever is on its stream.

The kernel folds four bytes by four look-ups in tables that every lane has for itself (`crc.cu`): 2.5 operations a byte
where masked XORs take 32, so that memory, not arithmetic, bounds it. Its stream has the lowest priority.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from enginehost.cuda import driver
from enginehost.cuda.crc_schedule import (
    WORD_BYTES,
    Schedule,
    Shape,
    lane_powers,
    schedule,
    table,
    unsigned,
    warp_powers,
)
from enginehost.cuda.driver import POINTER, WHOLE
from enginehost.device import Checksums
from worldline.plan import Chunk

_SOURCE = Path(__file__).with_name("crc.cu")
_TABLES_BYTES = 4 * 256 * 32 * 4
_DEPTH = 2
_WHOLE_THREADS = 1024
_KEPT_SCHEDULES = 16


@dataclass(frozen=True, slots=True)
class _Ready:
    """A schedule whose arrays lie on the device."""

    plan: Schedule
    tiles: torch.Tensor
    ends: torch.Tensor
    initial: torch.Tensor
    after: torch.Tensor


class DeviceCrc:
    """The checksums of one device. Any thread; each run has its own results."""

    def __init__(self, ordinal: int, shape: Shape | None = None, depth: int = _DEPTH) -> None:
        """Compile for the device and load. Raises Internal."""
        driver.use(ordinal)
        self.ordinal = ordinal
        self._shape = shape or Shape()
        self._device = torch.device("cuda", ordinal)
        module = driver.compile_module(_SOURCE, ordinal, {"THREADS": self._shape.threads, "DEPTH": depth})
        self._tiles = driver.kernel(module, "crc_tiles", _TABLES_BYTES + 4096)
        self._whole = driver.kernel(module, "crc_whole")
        self._blocks = torch.cuda.get_device_properties(ordinal).multi_processor_count
        self._row_table = self._there(table(self._shape.row_bytes))
        self._word_table = self._there(table(4))
        self._lanes = self._there(lane_powers())
        self._warps = self._there(warp_powers(self._shape))
        least, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        self.stream = torch.cuda.Stream(ordinal, priority=least)  # type: ignore[no-untyped-call]
        # By the identity of the chunks, which a schedule keeps: plans answer the same ones each time.
        self._ready: OrderedDict[tuple[int, int], _Ready] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, address: int, chunks: Sequence[Chunk], stream: torch.cuda.Stream | None = None) -> Run:
        """Begin the checksums of consecutive chunks of the memory at `address`, on `stream` or their own."""
        driver.use(self.ordinal)
        misaligned_bytes = address % WORD_BYTES
        ready = self._prepared(tuple(chunks), misaligned_bytes)
        return Run(self, address - misaligned_bytes, ready, stream or self.stream)

    def crcs(self, address: int, chunks: Sequence[Chunk]) -> Checksums:
        """The checksums of memory that nothing writes any more."""
        run = self.run(address, chunks)
        run.add(0, len(chunks))
        return run.result()

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """Make the schedule of these chunks of aligned memory before it is needed."""
        driver.use(self.ordinal)
        self._prepared(tuple(chunks), 0)

    def _prepared(self, chunks: tuple[Chunk, ...], misaligned_bytes: int) -> _Ready:
        key = (id(chunks), misaligned_bytes)
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
                return self._ready[key]
        plan = schedule(chunks, misaligned_bytes, self._shape)
        ready = _Ready(plan, *(self._there(part) for part in (plan.tiles, plan.ends, plan.initial, plan.after)))
        with self._lock:
            self._ready[key] = ready
            while len(self._ready) > _KEPT_SCHEDULES:
                self._ready.popitem(last=False)
        return ready

    def _there(self, array: torch.Tensor) -> torch.Tensor:
        there = array.to(self._device)
        torch.cuda.current_stream(self.ordinal).synchronize()
        return there


class Run:
    """The checksums of one list of chunks, in as many launches as there are calls of `add`."""

    def __init__(self, crc: DeviceCrc, base: int, ready: _Ready, stream: torch.cuda.Stream) -> None:
        self._crc = crc
        self._base = base
        self._ready = ready
        self._stream = stream
        with torch.cuda.stream(stream):
            self._found = torch.empty(len(ready.plan.chunks) + 1, dtype=torch.int32, device=ready.tiles.device)
            self._found[:-1].copy_(ready.initial)

    def add(self, first_chunk: int, until_chunk: int) -> None:
        """Queue chunks `first_chunk` .. `until_chunk` - 1, behind what is on the stream."""
        crc, ready = self._crc, self._ready
        first = ready.plan.first_tile[first_chunk]
        count = ready.plan.first_tile[until_chunk] - first
        crc._tiles.launch(
            min(count, crc._blocks),
            crc._shape.threads,
            self._stream,
            (
                (self._base, POINTER),
                (ready.tiles.data_ptr(), POINTER),
                (ready.ends.data_ptr(), POINTER),
                (first, WHOLE),
                (count, WHOLE),
                (crc._row_table.data_ptr(), POINTER),
                (crc._word_table.data_ptr(), POINTER),
                (crc._lanes.data_ptr(), POINTER),
                (crc._warps.data_ptr(), POINTER),
                (self._found.data_ptr(), POINTER),
            ),
        )

    def result(self) -> Checksums:
        """Wait for the checksums of all chunks."""
        crc, count = self._crc, len(self._ready.plan.chunks)
        crc._whole.launch(
            1,
            _WHOLE_THREADS,
            self._stream,
            (
                (self._found.data_ptr(), POINTER),
                (self._ready.after.data_ptr(), POINTER),
                (count, WHOLE),
                (self._found.data_ptr() + 4 * count, POINTER),
            ),
        )
        with torch.cuda.stream(self._stream):
            *chunks, whole = unsigned(self._found)
        return Checksums(chunks, whole)


def chunk_crcs(runs: Sequence[Run], stream: torch.cuda.Stream) -> list[int]:
    """Wait for the checksums of all chunks of runs that are on `stream`, fetched at once and not combined."""
    with torch.cuda.stream(stream):
        return unsigned(torch.cat([run._found[:-1] for run in runs]))

"""The CPU as the device of a host: slots are shared memory that movers map, and so can other hosts."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from enginehost.arena import Arena
from enginehost.charge import Charge
from enginehost.device import Crossing, Frames, Memory, Pulled
from worldline import pages
from worldline.buffers import address_of
from worldline.crc import crc32
from worldline.errors import BadRequest, Cancelled, Precondition
from worldline.filling import Filling
from worldline.plan import Chunk

if TYPE_CHECKING:
    from enginehost.staging import Buffer

_BUDGET_BYTES = 8 << 30


class Cpu:
    """See `enginehost.device.Device`."""

    torch_device = torch.device("cpu")
    device_id = ""
    peers: Mapping[str, str] = MappingProxyType({})
    frames: Frames | None = None

    def budget_bytes(self) -> int:
        """8 GiB: a host shares the machine's memory with others."""
        return _BUDGET_BYTES

    def fields(self) -> Mapping[str, str]:
        """The machine and torch, as far as results depend on them."""
        return {
            "arch": platform.machine(),
            "byteorder": sys.byteorder,
            "cpu": _cpu_model(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
            "device": "cpu",
            "flush_denormal": str(not bool(torch.tensor([1e-40]).mul(1.0)[0] > 0)).lower(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn": str(torch._C._has_mkldnn and torch.backends.mkldnn.enabled).lower(),
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
        }

    def allocate(self, name: str, size_bytes: int, charge: Charge) -> Memory:
        """A memfd that is faulted in."""
        return Arena(name, size_bytes, charge)

    def attach(self, descriptor: int, size_bytes: int, device_id: str) -> Mapped:
        """Map another host's memfd for reading."""
        if device_id:
            raise Precondition(
                f"the source's region lies on device {device_id}, and this host serves on a CPU",
                reason="DEVICE_UNREACHABLE",
                violations={"source_region.device": "not memory that a CPU can map"},
            )
        return Mapped(descriptor, size_bytes)

    def pin(self, address: int, size_bytes: int) -> None:
        """A CPU copies all memory alike."""

    def unpin(self, address: int) -> None:
        """See `pin`."""

    def read_from(self, buffer: Buffer) -> FromBuffer:
        """See `Device`."""
        return FromBuffer(buffer)

    def crossing(self) -> AbstractContextManager[Crossing]:
        """See `Device`."""
        return nullcontext(Here())

    def checksums(self, address: int, chunks: Sequence[Chunk]) -> list[int]:
        """On this thread."""
        return [crc32(ctypes.string_at(address + chunk.offset, chunk.size_bytes)) for chunk in chunks]

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """Nothing is needed."""

    def serve(self) -> None:
        """Every thread's device."""

    def settle(self) -> None:
        """Nothing is queued on a CPU."""

    def aside(self) -> AbstractContextManager[object]:
        """No thread waits for another."""
        return nullcontext()

    def close(self) -> None:
        """Nothing is held."""


class Mapped:
    """See `enginehost.device.Attached`."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        held = os.fstat(descriptor).st_size
        if held < size_bytes:
            raise BadRequest(
                f"the source's region holds {held} bytes, but the layout needs {size_bytes}",
                reason="REGION_TOO_SMALL",
                numbers={"held_bytes": held, "size_bytes": size_bytes},
            )
        self._map: mmap.mmap | None = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        self._using = threading.Lock()
        with memoryview(self._map) as region:
            pages.populate(address_of(region), size_bytes, writable=False)

    def pull(
        self,
        into: Memory,
        chunks: Sequence[Chunk],
        *,
        flip: Collection[int],
        wanted: Callable[[], bool],
        source: Filling | None = None,
    ) -> Pulled:
        """See `Attached`."""
        with self._using:
            if self._map is None:
                raise Cancelled("the source's region is not mapped any more", reason="CANCELLED")
            with memoryview(self._map) as region:
                return _pull(address_of(region), into, chunks, flip, wanted, source)

    def close(self) -> None:
        """See `Attached`."""
        with self._using:
            mapped, self._map = self._map, None
            if mapped is not None:
                mapped.close()


class Here:
    """See `enginehost.device.Crossing`: done at once."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """See `Crossing`."""
        to.copy_(source)

    def mark(self) -> Callable[[], None]:
        """See `Crossing`."""
        return lambda: None


class FromBuffer:
    """See `enginehost.device.Attached`: a buffer of this process."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer: Buffer | None = buffer

    def pull(
        self,
        into: Memory,
        chunks: Sequence[Chunk],
        *,
        flip: Collection[int],
        wanted: Callable[[], bool],
        source: Filling | None = None,
    ) -> Pulled:
        """See `Attached`."""
        buffer = self._buffer
        if buffer is None:
            raise Cancelled("nothing is pulled from this buffer any more", reason="CANCELLED")
        with buffer.using() as address:
            return _pull(address, into, chunks, flip, wanted, source)

    def close(self) -> None:
        """See `Attached`."""
        self._buffer = None


def _pull(
    address: int,
    into: Memory,
    chunks: Sequence[Chunk],
    flip: Collection[int],
    wanted: Callable[[], bool],
    source: Filling | None,
) -> Pulled:
    started_s = time.monotonic()
    for chunk in chunks:
        if source is not None:
            source.require(chunk.offset, chunk.offset + chunk.size_bytes)
        if not wanted():
            raise Cancelled("the caller has left", reason="CANCELLED")
        if not chunk.fill:
            ctypes.memmove(into.address + chunk.offset, address + chunk.offset, chunk.size_bytes)
    for chunk in chunks:
        if chunk.index in flip:
            into.tensor()[chunk.offset : chunk.offset + 1].bitwise_xor_(1)
    copied_s = time.monotonic()
    crcs = into.crcs(chunks).chunks
    return Pulled(crcs, copied_s - started_s, time.monotonic() - copied_s)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"

"""Pulling a region from another GPU of this machine, or from pinned host memory: checksums behind each piece."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc
from enginehost.device import Memory, Pulled
from enginehost.staging import Buffer
from worldline.errors import Cancelled
from worldline.filling import Filling
from worldline.plan import Chunk

# Long enough that a copy runs at the link's rate, short enough that little is left to checksum when the last one lands.
PIECE_BYTES = 128 << 20
# Where bytes still land, it is the wire that a copy waits for: what is left to copy when the last one is there counts.
LANDING_PIECE_BYTES = 16 << 20
# Pieces that are queued before it is asked again whether the caller is still there.
_AHEAD = 8


class Source(Protocol):
    """What is pulled from: memory that this device can read, at one address for as long as it is used."""

    def using(self) -> AbstractContextManager[int]:
        """The address, valid inside. Raises Cancelled once it is over."""

    def close(self) -> None:
        """Over, after whoever uses it; a second time does nothing."""


class PeerRegion:
    """Another process's region, mapped here. See `Source`."""

    def __init__(self, descriptor: int, size_bytes: int, ordinal: int) -> None:
        driver.use(ordinal)
        step = driver.granularity_bytes(ordinal)
        self._mapping: driver.Mapping | None = driver.import_memory(
            descriptor, -(-size_bytes // step) * step, [ordinal]
        )
        self._ordinal = ordinal
        self._using = threading.Lock()

    @contextmanager
    def using(self) -> Iterator[int]:
        """See `Source`."""
        with self._using:
            if self._mapping is None:
                raise Cancelled("the source's region is not mapped any more", reason="CANCELLED")
            yield self._mapping.address

    def close(self) -> None:
        """See `Source`."""
        with self._using:
            mapping, self._mapping = self._mapping, None
            if mapping is not None:
                driver.use(self._ordinal)
                mapping.close()


class HostBuffer:
    """A pinned buffer of this process, whose loan is not ended here. See `Source`."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer: Buffer | None = buffer

    @contextmanager
    def using(self) -> Iterator[int]:
        """See `Source`."""
        buffer = self._buffer
        if buffer is None:
            raise Cancelled("nothing is pulled from this buffer any more", reason="CANCELLED")
        with buffer.using() as address:
            yield address

    def close(self) -> None:
        """See `Source`."""
        self._buffer = None


class CudaAttached:
    """See `enginehost.device.Attached`."""

    def __init__(self, source: Source, ordinal: int, crc: DeviceCrc, stream: torch.cuda.Stream) -> None:
        self._source = source
        self._ordinal = ordinal
        self._crc = crc
        self._stream = stream

    def using(self) -> AbstractContextManager[int]:
        """Where the source is mapped."""
        return self._source.using()

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
        with self._source.using() as address:
            driver.use(self._ordinal)
            try:
                return self._pull(address, into, chunks, flip, wanted, source)
            finally:
                # Whatever happened: nothing writes into the slot or reads the source after this.
                self._stream.synchronize()
                self._crc.stream.synchronize()

    def _pull(
        self,
        address: int,
        into: Memory,
        chunks: Sequence[Chunk],
        flip: Collection[int],
        wanted: Callable[[], bool],
        source: Filling | None,
    ) -> Pulled:
        run = self._crc.run(into.address, chunks)
        started_s = time.monotonic()
        landed: list[torch.cuda.Event] = []
        for first, until in pieces(chunks, PIECE_BYTES if source is None else LANDING_PIECE_BYTES):
            if source is not None:
                source.require(chunks[first].offset, chunks[until - 1].offset + chunks[until - 1].size_bytes)
            if len(landed) >= _AHEAD:
                landed[-_AHEAD].synchronize()
            if not wanted():
                raise Cancelled("the caller has left", reason="CANCELLED")
            for offset, size_bytes in spans([chunk for chunk in chunks[first:until] if not chunk.fill]):
                driver.copy(into.address + offset, address + offset, size_bytes, self._stream)
            for chunk in chunks[first:until]:
                if chunk.index in flip:
                    with torch.cuda.stream(self._stream):
                        into.tensor()[chunk.offset : chunk.offset + 1].bitwise_xor_(1)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
            landed.append(event)
            self._crc.stream.wait_event(event)
            run.add(first, until)
        self._stream.synchronize()
        copied_s = time.monotonic()
        crcs = run.result().chunks
        return Pulled(crcs, copied_s - started_s, time.monotonic() - copied_s)

    def close(self) -> None:
        """See `Attached`."""
        self._source.close()


def pieces(chunks: Sequence[Chunk], piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Ranges of chunks, first and past the last, of about `piece_bytes` each."""
    first = size_bytes = 0
    for number, chunk in enumerate(chunks):
        size_bytes += chunk.size_bytes
        if size_bytes >= piece_bytes:
            yield first, number + 1
            first, size_bytes = number + 1, 0
    if first < len(chunks):
        yield first, len(chunks)


def spans(chunks: Sequence[Chunk]) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each run of chunks that lie next to each other."""
    start = end = chunks[0].offset if chunks else 0
    for chunk in chunks:
        if chunk.offset != end:
            yield start, end - start
            start = chunk.offset
        end = chunk.offset + chunk.size_bytes
    if end > start:
        yield start, end - start

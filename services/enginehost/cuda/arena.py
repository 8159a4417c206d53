"""The memory of slots on a GPU: one allocation each, made for export, so that a region is one address range."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from enginehost.charge import Charge
from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc
from enginehost.cuda.save import save
from enginehost.device import Checksums, Saved, Span
from worldline.errors import Exhausted, Internal
from worldline.plan import Chunk

_CRC_CHUNK_BYTES = 16 << 20


class CudaArena:
    """See `enginehost.device.Memory`. Zeroed, so that the padding between leaves tells nothing of earlier sessions."""

    def __init__(
        self, ordinal: int, size_bytes: int, charge: Charge, crc: DeviceCrc, stream: torch.cuda.Stream
    ) -> None:
        """`stream` is the host's own for copies that no engine waits for. Takes over `charge`.

        Raises:
            Exhausted: the driver has no memory for it; the charge is released.
        """
        driver.use(ordinal)
        self.size_bytes = size_bytes
        self._ordinal = ordinal
        self._charge = charge
        self._crc = crc
        self._stream = stream
        step = driver.granularity_bytes(ordinal)
        allocated_bytes = -(-size_bytes // step) * step
        try:
            self._mapping: driver.Mapping | None = _allocated(ordinal, allocated_bytes)
        except BaseException:
            charge.release()
            raise
        self.address = self._mapping.address
        self._closing = threading.Lock()
        with torch.cuda.stream(stream):
            self.tensor().zero_()
        stream.synchronize()

    def tensor(self) -> torch.Tensor:
        """All of it as uint8."""
        return driver.tensor(self.address, self.size_bytes, self._ordinal)

    def copy(self, spans: Sequence[Span]) -> None:
        """See `Memory`: what an engine has queued is over at a block boundary, so nothing is waited for before."""
        driver.use(self._ordinal)
        for span in spans:
            driver.copy(span.to, span.source, span.size_bytes, self._stream)
        if spans:
            self._stream.synchronize()

    def crcs(self, chunks: Sequence[Chunk]) -> Checksums:
        """CRC-32 of each chunk, and of all combined, on the device."""
        return self._crc.crcs(self.address, chunks)

    def crc(self) -> int:
        """CRC-32 of all of it, combined on the device."""
        sizes = [
            (at, min(_CRC_CHUNK_BYTES, self.size_bytes - at)) for at in range(0, self.size_bytes, _CRC_CHUNK_BYTES)
        ]
        chunks = [Chunk(index, at, size) for index, (at, size) in enumerate(sizes)]
        return self._crc.crcs(self.address, chunks).whole

    def save(self, to: int, pieces: Sequence[Chunk]) -> Saved:
        """See `Memory`."""
        return save(self.address, to, pieces, self._crc)

    def read_only_fd(self) -> int:
        """A new descriptor of the allocation; CUDA has none that only reads."""
        return self._export()

    def writable_fd(self) -> int:
        """A new descriptor of the allocation."""
        return self._export()

    def _export(self) -> int:
        with self._closing:
            if self._mapping is None:
                raise Internal("a slot that was given back cannot be exported")
            driver.use(self._ordinal)
            return self._mapping.export()

    def close(self) -> int:
        """See `Memory`. Waits for everything that is queued on the device: a kernel must not lose its memory."""
        with self._closing:
            mapping, self._mapping = self._mapping, None
        if mapping is None:
            return 0
        driver.use(self._ordinal)
        torch.cuda.synchronize(self._ordinal)
        mapping.close()
        self._charge.release()
        return self.size_bytes


def _allocated(ordinal: int, size_bytes: int) -> driver.Mapping:
    try:
        return driver.allocate(ordinal, size_bytes, [ordinal])
    except Exhausted:
        # What torch keeps of freed tensors is not the driver's to give.
        torch.cuda.empty_cache()
        return driver.allocate(ordinal, size_bytes, [ordinal])

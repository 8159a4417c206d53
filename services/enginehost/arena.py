"""The memory of slots on the CPU: arenas, each one memfd, mapped shared."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from enginehost.charge import Budget as Budget
from enginehost.charge import Charge
from enginehost.device import Checksums, Saved, Span
from worldline import pages
from worldline.crc import crc32
from worldline.errors import Exhausted
from worldline.plan import Chunk
from worldline.receipt import whole_crc

# A session stands still meanwhile; half of the cores stay the other sessions', and 8 fill a socket's memory.
CRC_THREADS = max(2, min(8, len(os.sched_getaffinity(0)) // 2))


class Arena:
    """`size_bytes` of zeroed shared memory at `address`, faulted in. Closing returns every byte, also to the budget."""

    def __init__(self, name: str, size_bytes: int, charge: Charge) -> None:
        """Takes over `charge`.

        Raises:
            Exhausted: the kernel has no memory for it; the charge is released.
        """
        self.size_bytes = size_bytes
        self._charge = charge
        self._closed = False
        self.fd = -1
        try:
            self.fd = os.memfd_create(f"worldline-slot-{name}", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size_bytes)
            self.map = mmap.mmap(self.fd, size_bytes)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            charge.release()
            raise Exhausted(f"an arena of {size_bytes} bytes was refused: {error}", reason="OUT_OF_MEMORY") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        try:
            pages.ask_for_huge_pages(self.address, size_bytes)
            pages.populate(self.address, size_bytes, writable=True)
        except OSError as error:
            self.close()
            raise Exhausted(
                f"{size_bytes} bytes could not be faulted in: {error}",
                reason="OUT_OF_MEMORY",
                numbers={"wanted_bytes": size_bytes},
            ) from None
        except BaseException:
            self.close()
            raise

    def tensor(self) -> torch.Tensor:
        """All of it as uint8."""
        return torch.frombuffer(self.map, dtype=torch.uint8)

    def copy(self, spans: Sequence[Span]) -> None:
        """Copy between addresses, one span after another."""
        for span in spans:
            ctypes.memmove(span.to, span.source, span.size_bytes)

    def crcs(self, chunks: Sequence[Chunk]) -> Checksums:
        """CRC-32 of each chunk as it lies here, on `CRC_THREADS` threads."""
        result = [0] * len(chunks)
        order = iter(enumerate(chunks))
        taking = threading.Lock()

        def lane() -> None:
            with memoryview(self.map) as region:
                while True:
                    with taking:
                        index, chunk = next(order, (0, None))
                    if chunk is None:
                        return
                    result[index] = crc32(region[chunk.offset : chunk.offset + chunk.size_bytes])

        with ThreadPoolExecutor(CRC_THREADS, thread_name_prefix="crc") as pool:
            for done in [pool.submit(lane) for _ in range(CRC_THREADS)]:
                done.result()
        return Checksums(result, whole_crc(chunks, result))

    def crc(self) -> int:
        """CRC-32 of all of it, on this thread."""
        with memoryview(self.map) as region:
            return crc32(region)

    def save(self, to: int, pieces: Sequence[Chunk]) -> Saved:
        """See `enginehost.device.Memory`."""
        self.copy([Span(to, self.address, self.size_bytes)])
        copied = memoryview((ctypes.c_char * self.size_bytes).from_address(to)).cast("B")
        read_back = tuple(crc32(copied[piece.offset : piece.offset + piece.size_bytes]) for piece in pieces)
        return Saved(tuple(self.crcs(pieces).chunks), read_back)

    def read_only_fd(self) -> int:
        """A new descriptor of the same memory, opened for reading.

        It keeps an honest reader from writing; a process of the same user can open it again for writing.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def writable_fd(self) -> int:
        """A new descriptor of the same memory."""
        return os.dup(self.fd)

    def close(self) -> int:
        """Give the memory back now; a second time does nothing. Returns the bytes given back.

        Views that outlive this read zeros; the last of them ends the mapping.
        """
        if self._closed:
            return 0
        self._closed = True
        pages.remove(self.address, self.size_bytes)
        os.close(self.fd)
        # Never closed by hand: torch's views hold the map alive, but would not stop it from being closed under them.
        del self.map
        self._charge.release()
        return self.size_bytes

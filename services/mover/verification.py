"""Verification at the destination: the CRC-32 of each chunk as it lies in the slot, against its source's.

Where it runs is the plan's placement; each placement is one module and one row here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mover.verify_in_path import InPath
from mover.verify_pipelined import Pipelined
from mover.verify_sequential import Sequential
from worldline.crc import PIECE_BYTES, crc32
from worldline.errors import Unsupported
from worldline.plan import Chunk, Placement
from worldline.transport import Landed

# Told often enough that little is left to do behind the last of it, seldom enough that nobody notices.
LANDED_BYTES = 16 << 20


class Checks:
    """What is known of each chunk: its CRC-32 at the source and in the slot. Safe from any thread.

    `busy_s` are the seconds that threads took for `checked_bytes`, added up. `landed` is told how far the region is
    right, from its start on without a gap, every `LANDED_BYTES` and at the end.
    """

    def __init__(
        self, region: memoryview, chunks: Sequence[Chunk], landed: Callable[[int], None] | None = None
    ) -> None:
        self.chunks = chunks
        self._landed = landed
        self._right = 0  # chunks that are
        self._told_bytes = 0
        self._region = region
        self._lock = threading.Lock()
        self._source: list[int | None] = [None] * len(chunks)
        self._slot: list[int | None] = [None] * len(chunks)
        self.checked_bytes = 0
        self.busy_s = 0.0

    def expect(self, landed: Landed) -> None:
        """Keep what the source says of a chunk."""
        with self._lock:
            self._source[landed.chunk.index] = landed.source_crc
            self._slot[landed.chunk.index] = None

    def check(self, chunk: Chunk) -> None:
        """Take the chunk's CRC-32 from the slot, in pieces that stay in the cache."""
        start = time.perf_counter()
        crc = 0
        end = chunk.offset + chunk.size_bytes
        for at in range(chunk.offset, end, PIECE_BYTES):
            with self._region[at : min(at + PIECE_BYTES, end)] as piece:
                crc = crc32(piece, crc)
        with self._lock:
            self._slot[chunk.index] = crc
            self.busy_s += time.perf_counter() - start
            self.checked_bytes += chunk.size_bytes
        self._tell()

    def keep(self, total_bytes: int) -> None:
        """No chunk that begins at `total_bytes` or beyond will land."""
        with self._lock:
            count = sum(chunk.offset < total_bytes for chunk in self.chunks)
            self.chunks = self.chunks[:count]
            del self._source[count:], self._slot[count:]
        self._tell()

    def _tell(self) -> None:
        if self._landed is None:
            return
        with self._lock:
            while self._right < len(self.chunks) and self._slot[self._right] is not None:
                if self._slot[self._right] != self._source[self._right]:
                    break
                self._right += 1
            last = self.chunks[self._right - 1] if self._right else None
            right_bytes = last.offset + last.size_bytes if last is not None else 0
            if right_bytes == self._told_bytes or (
                right_bytes - self._told_bytes < LANDED_BYTES and self._right < len(self.chunks)
            ):
                return
            self._told_bytes = right_bytes
            # Under the lock, so that what is told never falls.
            self._landed(right_bytes)

    def accept_unchecked(self, landed: Landed) -> None:
        """Take the source's word. Only for a benchmark's arm without verification."""
        with self._lock:
            self._source[landed.chunk.index] = self._slot[landed.chunk.index] = landed.source_crc

    def missing(self) -> list[int]:
        """Indexes of the chunks that have not landed."""
        with self._lock:
            return [index for index, crc in enumerate(self._source) if crc is None]

    def differing(self) -> list[int]:
        """Indexes of the chunks that landed and differ."""
        with self._lock:
            pairs = enumerate(zip(self._source, self._slot, strict=True))
            return [index for index, (source, slot) in pairs if source is not None and source != slot]

    def source_crcs(self) -> list[int]:
        """The source's checksums; 0 for a chunk that has not landed."""
        with self._lock:
            return [crc or 0 for crc in self._source]

    def slot_crcs(self) -> list[int]:
        """The slot's checksums; 0 for a chunk that has not been checked."""
        with self._lock:
            return [crc or 0 for crc in self._slot]


class Lane(Protocol):
    """One placement at work on one move."""

    def landed(self, landed: Landed) -> None:
        """A chunk lies in the slot. Only IN_PATH keeps the receive thread. Raises Cancelled after `close`."""

    def drain(self) -> None:
        """Return when every chunk that landed has been checked, or raise what went wrong."""

    def close(self) -> None:
        """Stop and join the lane's threads. Any number of times."""


_LANES: Mapping[Placement, Callable[[Checks, int], Lane]] = {
    Placement.PIPELINED: Pipelined,
    Placement.SEQUENTIAL: Sequential,
    Placement.IN_PATH: InPath,
}
PLACEMENTS = tuple(_LANES)


def lane_for(placement: Placement, checks: Checks, threads: int) -> Lane:
    """The lane of a placement.

    Raises:
        Unsupported: a placement that this mover does not have.
    """
    require_placement(placement)
    return _LANES[placement](checks, threads)


def require_placement(placement: Placement) -> None:
    """Refuse a placement that this mover does not have. Raises Unsupported."""
    if placement not in _LANES:
        raise Unsupported(
            f"verification placement {placement.name} is not available; use "
            + " or ".join(known.name for known in _LANES),
            reason="PLACEMENT_UNSUPPORTED",
        )


class Unverified:
    """No lane: for a benchmark's arm only, no plan can name it."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    def landed(self, landed: Landed) -> None:
        """See `Lane`."""
        self._checks.accept_unchecked(landed)

    def drain(self) -> None:
        """See `Lane`."""

    def close(self) -> None:
        """See `Lane`."""

"""A slot: one arena with the layout of the session that lives, or will live, in it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from enginehost import tree
from enginehost.arena import Arena, Charge
from enginehost.leaves import Found, contiguous_bytes
from enginehost.tree import Captured
from worldline.crc import crc32
from worldline.engine import StateTree
from worldline.layout import Layout, Leaf
from worldline.plan import Chunk

CRC_THREADS = 2


@dataclass(frozen=True, slots=True)
class Flattened:
    """What flattening cost, in bytes copied and seconds.

    `displaced` holds what leaves had that lay in the arena, but not in their own place, as (address, bytes): the
    arena's bytes are right now, but those leaves see other leaves' bytes until the session is loaded again.
    """

    copied_bytes: int
    took_s: float
    displaced: tuple[tuple[int, torch.Tensor], ...]

    def undo(self) -> None:
        """Put back what displaced leaves had."""
        for address, saved in self.displaced:
            ctypes.memmove(address, saved.data_ptr(), saved.numel())


@dataclass(frozen=True, slots=True)
class _Copy:
    offset: int
    address: int
    size_bytes: int
    keep: object  # what owns the memory at `address` until it is copied


class Slot:
    """Memory of one session. Its bytes stay charged to the budget until `close` returns."""

    def __init__(self, session_id: str, layout: Layout, charge: Charge) -> None:
        """Allocate and fault in. Takes over `charge`, of the region's bytes.

        Raises:
            Exhausted: the kernel has no memory for it; the charge is released.
        """
        self.layout = layout
        self.arena = Arena(session_id, layout.region_bytes, charge)
        self._base = torch.frombuffer(self.arena.map, dtype=torch.uint8)
        groups: dict[int, list[int]] = defaultdict(list)
        for index, leaf in enumerate(layout.leaves):
            groups[leaf.group].append(index)
        self._groups = tuple(groups.values())

    def rehydrate(self) -> StateTree:
        """The tree of views over this slot."""
        return tree.rehydrate(self.layout, self._base)

    def flatten(self, captured: Captured) -> Flattened:
        """Bring every leaf that does not live in its place here; those that do cost nothing.

        `captured.layout` is the slot's own up to the place of groups.
        """
        started_s = time.monotonic()
        copies: list[_Copy] = []
        displaced: list[tuple[int, torch.Tensor]] = []
        for members in self._groups:
            leaves = [self.layout.leaves[index] for index in members]
            found = [captured.found[index] for index in members]
            if not self._resident(leaves, found):
                copies.append(self._copy_of(leaves, found, displaced))
        # Only now, when nothing that is still to be read can be overwritten.
        for item in copies:
            ctypes.memmove(self.arena.address + item.offset, item.address, item.size_bytes)
        copied_bytes = sum(item.size_bytes for item in copies)
        return Flattened(copied_bytes, time.monotonic() - started_s, tuple(displaced))

    def _resident(self, leaves: Sequence[Leaf], found: Sequence[Found]) -> bool:
        if not any(leaf.size_bytes for leaf in leaves):
            return True
        return all(
            now.address == self.arena.address + leaf.offset and (now.plain or len(leaves) > 1)
            for leaf, now in zip(leaves, found, strict=True)
        )

    def _copy_of(
        self, leaves: Sequence[Leaf], found: Sequence[Found], displaced: list[tuple[int, torch.Tensor]]
    ) -> _Copy:
        offset = min(leaf.offset for leaf in leaves)
        first = found[0]
        if first.address == 0:
            source = first.tensor if first.tensor is not None else _bytes_tensor(first.encoded)
            return _Copy(offset, source.data_ptr(), leaves[0].size_bytes, source)
        low = min(now.address for now in found)
        span = max(now.address + now.span_bytes for now in found) - low
        inside = self.arena.contains(low)
        saved = None
        if inside:
            saved = torch.empty(span, dtype=torch.uint8)
            ctypes.memmove(saved.data_ptr(), low, span)
            displaced.append((low, saved))
        if len(found) == 1 and not first.plain and first.tensor is not None:
            material = contiguous_bytes(first.tensor)
            return _Copy(offset, material.data_ptr(), leaves[0].size_bytes, material)
        return _Copy(offset, low if saved is None else saved.data_ptr(), span, saved if inside else found)

    def crcs(self, chunks: Sequence[Chunk], threads: int = CRC_THREADS) -> list[int]:
        """CRC-32 of each chunk of the slot as it lies here, on `threads` threads."""
        result = [0] * len(chunks)
        order = iter(chunks)
        taking = threading.Lock()

        def lane() -> None:
            with memoryview(self.arena.map) as region:
                while True:
                    with taking:
                        chunk = next(order, None)
                    if chunk is None:
                        return
                    result[chunk.index] = crc32(region[chunk.offset : chunk.offset + chunk.size_bytes])

        with ThreadPoolExecutor(threads, thread_name_prefix="crc") as pool:
            for done in [pool.submit(lane) for _ in range(threads)]:
                done.result()
        return result

    def crc(self) -> int:
        """CRC-32 of the whole region, on this thread."""
        with memoryview(self.arena.map) as region:
            return crc32(region)

    def close(self) -> int:
        """Give the memory back; a second time does nothing. Returns the bytes given back."""
        self._base = torch.empty(0, dtype=torch.uint8)
        return self.arena.close()


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

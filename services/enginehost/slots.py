"""A slot: one arena with the layout of the session that lives, or will live, in it."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from enginehost import tree
from enginehost.cpu import Cpu
from enginehost.device import Checksums, Device, Memory, Span
from enginehost.leaves import Found, contiguous_bytes
from enginehost.tree import Captured
from worldline.engine import StateTree
from worldline.errors import Internal
from worldline.layout import ALIGN_BYTES, Layout, Leaf
from worldline.plan import Chunk


@dataclass(frozen=True, slots=True)
class Flattened:
    """What flattening cost, in bytes copied and seconds.

    `displaced` holds what leaves had that lay in the arena, but not in their own place, as (address, bytes): the
    arena's bytes are right now, but those leaves see other leaves' bytes until the session is loaded again.
    """

    copied_bytes: int
    took_s: float
    displaced: tuple[tuple[int, torch.Tensor], ...]
    copy: Callable[[Sequence[Span]], None]

    def undo(self) -> None:
        """Put back what displaced leaves had."""
        self.copy([Span(address, saved.data_ptr(), saved.numel()) for address, saved in self.displaced])


@dataclass(frozen=True, slots=True)
class _Copy:
    offset: int
    address: int
    size_bytes: int
    keep: object  # what owns the memory at `address` until it is copied


class Slot:
    """Memory of one session. Its bytes stay charged to the budget until `close` returns."""

    def __init__(self, layout: Layout, arena: Memory, device: Device | None = None) -> None:
        """Take over `arena`, memory of the region's size on `device` (the CPU if none is given)."""
        self.layout = layout
        self.device = device or Cpu()
        self.arena = arena
        self._base = self.arena.tensor()
        try:
            self._frame: tree.Frame | None = tree.Frame(layout, self._base)
        except BaseException:
            self.arena.close()
            raise
        groups: dict[int, list[int]] = defaultdict(list)
        for index, leaf in enumerate(layout.leaves):
            groups[leaf.group].append(index)
        self._groups = tuple(groups.values())

    def rehydrate(self) -> StateTree:
        """The tree of views over this slot."""
        if self._frame is None:
            raise Internal("a slot that was given back holds no tree")
        with self.device.aside():
            return self._frame.rehydrate()

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
        self.arena.copy([Span(self.arena.address + item.offset, item.address, item.size_bytes) for item in copies])
        copied_bytes = sum(item.size_bytes for item in copies)
        return Flattened(copied_bytes, time.monotonic() - started_s, tuple(displaced), self.arena.copy)

    def holds(self, state: StateTree) -> bool:
        """Whether every tensor of the tree lies here, in its place."""
        return self._frame is not None and self._frame.values_in(state) is not None

    def flatten_values(self, state: StateTree) -> Flattened | None:
        """`flatten` for a tree whose tensors are still this slot's views; None for any other."""
        started_s = time.monotonic()
        values = None if self._frame is None else self._frame.values_in(state)
        if values is None:
            return None
        copies = [self._value(leaf, found) for leaf, found in values if leaf.size_bytes]
        packed = [(offset, torch.frombuffer(data, dtype=torch.uint8)) for offset, data in _packed(copies)]
        self.arena.copy([Span(self.arena.address + at, data.data_ptr(), data.numel()) for at, data in packed])
        copied_bytes = sum(item.size_bytes for item in copies)
        return Flattened(copied_bytes, time.monotonic() - started_s, (), self.arena.copy)

    @staticmethod
    def _value(leaf: Leaf, found: Found) -> _Copy:
        source = found.tensor if found.tensor is not None else _bytes_tensor(found.encoded)
        return _Copy(leaf.offset, source.data_ptr(), leaf.size_bytes, source)

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
            return self._value(leaves[0], first)
        low = min(now.address for now in found)
        span = max(now.address + now.span_bytes for now in found) - low
        inside = self.arena.address <= low < self.arena.address + self.arena.size_bytes
        saved = None
        if inside:
            saved = torch.empty(span, dtype=torch.uint8, device=self._base.device)
            self.arena.copy([Span(saved.data_ptr(), low, span)])
            displaced.append((low, saved))
        if len(found) == 1 and not first.plain and first.tensor is not None:
            material = contiguous_bytes(first.tensor)
            return _Copy(offset, material.data_ptr(), leaves[0].size_bytes, material)
        return _Copy(offset, low if saved is None else saved.data_ptr(), span, saved if inside else found)

    def crcs(self, chunks: Sequence[Chunk]) -> Checksums:
        """CRC-32 of consecutive chunks of the slot as they lie here."""
        return self.arena.crcs(chunks)

    def crc(self) -> int:
        """CRC-32 of the whole region."""
        return self.arena.crc()

    def close(self) -> int:
        """Give the memory back; a second time does nothing. Returns the bytes given back."""
        self._frame, self._base = None, torch.empty(0, dtype=torch.uint8)
        return self.arena.close()


def _packed(copies: Sequence[_Copy]) -> list[tuple[int, bytearray]]:
    """Copies of host memory, those that are neighbours in the region as one; the padding between them is zeros."""
    runs: list[tuple[int, bytearray]] = []
    for item in sorted(copies, key=lambda item: item.offset):
        data = ctypes.string_at(item.address, item.size_bytes)
        gap = item.offset - (runs[-1][0] + len(runs[-1][1])) if runs else ALIGN_BYTES
        if data and gap < ALIGN_BYTES:
            runs[-1][1].extend(bytes(gap) + data)
        elif data:
            runs.append((item.offset, bytearray(data)))
    return runs


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

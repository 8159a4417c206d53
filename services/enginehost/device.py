"""What a host asks of the device it serves on: slot memory, checksums of it, and other hosts' regions to pull from.

`enginehost.cpu` is the CPU's, `enginehost.cuda.device` a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from enginehost.charge import Charge
from worldline.plan import Chunk


@dataclass(frozen=True, slots=True)
class Span:
    """`size_bytes` to copy from address `source` to address `to`."""

    to: int
    source: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """CRC-32 of each chunk, and of all together."""

    chunks: list[int]
    whole: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """CRC-32 of each pulled chunk as it lies here, seconds of the copies, and from the last byte to the last CRC."""

    crcs: list[int]
    copy_s: float
    verify_s: float


class Memory(Protocol):
    """The memory of one slot: `size_bytes` at `address`."""

    size_bytes: int
    address: int

    def tensor(self) -> torch.Tensor:
        """All of it as uint8, on the device."""

    def copy(self, spans: Sequence[Span]) -> None:
        """Copy between addresses, behind what the engine has queued. Done when it returns."""

    def crcs(self, chunks: Sequence[Chunk]) -> Checksums:
        """CRC-32 of consecutive chunks as they lie here."""

    def crc(self) -> int:
        """CRC-32 of all of it."""

    def read_only_fd(self) -> int:
        """A new descriptor for readers."""

    def writable_fd(self) -> int:
        """A new descriptor for writers."""

    def close(self) -> int:
        """Give the memory back now; a second time does nothing. Returns the bytes given back."""


class Attached(Protocol):
    """Another host's region, mapped here for one move."""

    def pull(
        self, into: Memory, chunks: Sequence[Chunk], *, flip: Collection[int], wanted: Callable[[], bool]
    ) -> Pulled:
        """Copy chunks (in order of their offsets) to the same place in `into`, and take their CRC-32 there.

        A bit of each chunk in `flip` is flipped between the two. Raises Cancelled when not `wanted()` any more.
        """

    def close(self) -> None:
        """Unmap, after a pull that runs; a second time does nothing."""


class Device(Protocol):
    """A device. `torch_device` is where leaves lie; `device_id` is empty for memory that movers can map themselves."""

    torch_device: torch.device
    device_id: str

    def budget_bytes(self) -> int:
        """What slots may take where nobody has set it."""

    def fields(self) -> Mapping[str, str]:
        """What results depend on here, for the fingerprint."""

    def allocate(self, name: str, size_bytes: int, charge: Charge) -> Memory:
        """Memory for a slot, ready to be written. Takes over `charge`. Raises Exhausted; the charge is released."""

    def attach(self, descriptor: int, size_bytes: int, device_id: str) -> Attached:
        """Map another host's region, which lies on `device_id`; the descriptor stays the caller's.

        Raises:
            BadRequest: not a region of that size.
            Precondition: this device cannot read that one, or not without errors.
        """

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """Make ready whatever checksums of these chunks need, before a session is frozen for them."""

    def serve(self) -> None:
        """Make it the calling thread's device."""

    def settle(self) -> None:
        """Wait for everything that the calling thread has queued."""

    def aside(self) -> AbstractContextManager[object]:
        """What is queued inside waits for no engine, and no engine for it."""

    def close(self) -> None:
        """Nothing is needed of it any more."""

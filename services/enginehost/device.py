"""What a host asks of the device it serves on: slot memory, checksums of it, and other hosts' regions to pull from.

`enginehost.cpu` is the CPU's, `enginehost.cuda.device` a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from enginehost.charge import Charge
from worldline.filling import Filling
from worldline.plan import Chunk

if TYPE_CHECKING:
    from enginehost.staging import Buffer


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


@dataclass(frozen=True, slots=True)
class Saved:
    """CRC-32 of each piece as it lies in the slot, and as it is read back from where it was copied to."""

    crcs: tuple[int, ...]
    read_back: tuple[int, ...]


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

    def save(self, to: int, pieces: Sequence[Chunk]) -> Saved:
        """Copy the region, in pieces that are all but the last of one size, to pinned host memory at address `to`."""

    def read_only_fd(self) -> int:
        """A new descriptor for readers."""

    def writable_fd(self) -> int:
        """A new descriptor for writers."""

    def close(self) -> int:
        """Give the memory back now; a second time does nothing. Returns the bytes given back."""


class Attached(Protocol):
    """What a slot is pulled from for one move: another host's region, mapped here, or a buffer of this one's."""

    def pull(
        self,
        into: Memory,
        chunks: Sequence[Chunk],
        *,
        flip: Collection[int],
        wanted: Callable[[], bool],
        source: Filling | None = None,
    ) -> Pulled:
        """Copy chunks (in order of their offsets) to the same place in `into`, and take their CRC-32 there.

        Chunks with a fill were made there: they are not copied, only checksummed. What `source` says is not there yet
        is waited for; without it, all is.

        A bit of each chunk in `flip` is flipped between the two. Raises Cancelled when not `wanted()` any more.
        """

    def close(self) -> None:
        """Unmap, after a pull that runs; a second time does nothing. Nothing is pulled from then on."""


class Frames(Protocol):
    """A codec that is at work on the device, over contiguous uint8 tensors. Any thread."""

    name: str

    def bound_bytes(self, plane_bytes: int) -> int:
        """Bytes that the frame of a plane may take at most."""

    def encode(self, planes: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> list[int]:
        """Code each plane into memory of at least its bound. Returns the frames' bytes, when they lie there."""

    def decode(self, frame: torch.Tensor, plane: torch.Tensor) -> None:
        """Queue the decoding of a frame. Raises DataLoss if it is not of just the plane's bytes."""


class Crossing(Protocol):
    """Copies between the device and pinned host memory that go on beside what the calling thread queues."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy behind what the calling thread has queued until now."""

    def mark(self) -> Callable[[], None]:
        """What waits for the copies queued until now."""


class Device(Protocol):
    """A device. `torch_device` is where leaves lie; `device_id` is empty for memory that movers can map themselves.

    `peers`: what the self-test of access to each device found that this process sees, by its id. `frames`: its codec,
    if it has one.
    """

    torch_device: torch.device
    device_id: str
    peers: Mapping[str, str]
    frames: Frames | None

    def budget_bytes(self) -> int:
        """What slots may take where nobody has set it."""

    def fields(self) -> Mapping[str, str]:
        """What results depend on here, for the fingerprint."""

    def allocate(self, name: str, size_bytes: int, charge: Charge) -> Memory:
        """Memory for a slot, zeroed, faulted in. Takes over `charge`. Raises Exhausted; the charge is released."""

    def attach(self, descriptor: int, size_bytes: int, device_id: str) -> Attached:
        """Map another host's region, which lies on `device_id`; the descriptor stays the caller's.

        Raises:
            BadRequest: not a region of that size.
            Precondition: this device cannot read that one, or not without errors.
        """

    def pin(self, address: int, size_bytes: int) -> None:
        """Make host memory of this process such that the device copies from and to it at its full rate."""

    def unpin(self, address: int) -> None:
        """Undo `pin`, after every copy that is queued."""

    def read_from(self, buffer: Buffer) -> Attached:
        """A pinned buffer of this process, to be pulled from; giving it back is the caller's."""

    def crossing(self) -> AbstractContextManager[Crossing]:
        """A way of its own for copies. Its end waits for these, and for what the calling thread has queued."""

    def checksums(self, address: int, chunks: Sequence[Chunk]) -> list[int]:
        """CRC-32 of stretches of the device's memory from `address` on, which nothing writes any more."""

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

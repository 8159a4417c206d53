"""State that its device codes on its way into a buffer in host memory, and decodes on its way out.

Each byte plane of a segment becomes one part (`worldline.codec.parts`): a frame, or the plane as it is where that is
not smaller, or nothing where it is all zeros. Parts carry the CRC-32 that the source's device took of them; a
destination decodes no part whose bytes have another one on its own device, so that a decoder never sees what a wire or
a copy broke. Receipts are over the decoded state all the same.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from enginehost.device import Device, Frames, Memory, Pulled
from enginehost.staging import Buffer
from worldline.codec.parts import PLANES, Part, Segment, carried_bytes, require_parts, require_planes, segments
from worldline.errors import Cancelled, DataLoss, Unsupported
from worldline.filling import Filling, complete
from worldline.plan import Chunk

# A plane that codes to more than this share of itself goes as it is: decoding would cost more than it saves.
_PAYS = 0.95
# Parts begin at multiples of this in the device's memory.
_ALIGN_BYTES = 256


def frames_of(device: Device, codec: str) -> Frames:
    """The device's codec of this name. Raises Unsupported if it has none."""
    frames = device.frames
    if frames is None or frames.name != codec:
        raise Unsupported(
            f"codec {codec} is not on device {device.torch_device}: install its library, or move raw",
            reason="CODEC_UNSUPPORTED",
        )
    return frames


class _Workspace:
    """Memory of the device for one segment at a time: its planes, and a frame of each."""

    def __init__(self, frames: Frames, segment_bytes: int, on: torch.device) -> None:
        plane_bytes = (segment_bytes + 1) // 2
        sizes = [plane_bytes] * PLANES + [frames.bound_bytes(plane_bytes)] * PLANES
        self.offsets: list[int] = []
        at = 0
        for size in sizes:
            self.offsets.append(at)
            at += -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
        self.memory = torch.empty(at, dtype=torch.uint8, device=on)
        self.wait: Callable[[], None] = _no_wait

    def plane(self, number: int, size_bytes: int) -> torch.Tensor:
        """Memory for a plane."""
        return self.part(self.place(number, size_bytes, coded=False))

    def frame(self, number: int) -> torch.Tensor:
        """Memory for a plane's frame."""
        end = self.offsets[PLANES + number + 1] if number + 1 < PLANES else self.memory.numel()
        return self.memory[self.offsets[PLANES + number] : end]

    def place(self, number: int, size_bytes: int, *, coded: bool) -> Chunk:
        """Where a plane, or its frame, lies."""
        return Chunk(number, self.offsets[PLANES * coded + number], size_bytes)

    def part(self, place: Chunk) -> torch.Tensor:
        """What lies there."""
        return self.memory[place.offset : place.offset + place.size_bytes]


def _no_wait() -> None:
    """Nothing is under way yet."""


Filled = Callable[[int, Sequence[Part]], None]


def encode(
    device: Device, frames: Frames, memory: Memory, size_bytes: int, address: int, filled: Filled = lambda *_: None
) -> tuple[Part, ...]:
    """Code the state in `memory` into the buffer at `address`, which is no smaller. Done when it returns.

    `filled` is told of each segment: the bytes of the buffer that are there, and the parts that came with it.
    """
    state = memory.tensor()
    parts: list[Part] = []
    at = 0
    with device.aside(), device.crossing() as crossing:
        spaces = _spaces(frames, size_bytes, state.device)
        told = 0

        def tell(space: _Workspace, until: int) -> None:
            """The copies of a segment, whose parts end with `until`, are waited for and told of."""
            nonlocal told
            space.wait()
            filled(carried_bytes(parts[:until]), parts[told:until])
            told = until

        for number, segment in enumerate(segments(size_bytes)):
            space = spaces[number % len(spaces)]
            space.wait()
            places = _coded(frames, space, _bytes(state, segment))
            device.settle()
            before = spaces[(number - 1) % len(spaces)], len(parts)
            for place, crc in zip(places, device.checksums(space.memory.data_ptr(), places), strict=True):
                # Goes on while the next segment is coded.
                crossing.copy(_host(address + at, place.size_bytes), space.part(place))
                parts.append(Part(place.size_bytes, crc))
                at += place.size_bytes
            if number:
                # Its copies began before this segment was coded.
                tell(*before)
            space.wait = crossing.mark()
        if parts:
            tell(space, len(parts))
    return tuple(parts)


def decode(
    device: Device,
    frames: Frames,
    source: Filling,
    address: int,
    into: Memory,
    size_bytes: int,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Decode the buffer at `address` into a slot, segment by segment as `source` says that they are there.

    Raises:
        BadRequest: parts that cannot be of such a state.
        DataLoss: PART_MISMATCH, a part's bytes are not the source's; or what they code is no plane.
    """
    state = into.tensor()
    at = 0
    with device.aside(), device.crossing() as crossing:
        spaces, cut = _spaces(frames, size_bytes, state.device), segments(size_bytes)

        def bring(number: int) -> list[Chunk]:
            """Begin to copy a segment's parts to the device."""
            nonlocal at
            space = spaces[number % len(spaces)]
            mine = source.parts(PLANES * number, PLANES * (number + 1))
            require_planes(mine, cut[number])
            source.require(at, at + carried_bytes(mine))
            pairs = zip(mine, cut[number].planes, strict=True)
            places = [
                space.place(plane, part.size_bytes, coded=0 < part.size_bytes < plane_bytes)
                for plane, (part, plane_bytes) in enumerate(pairs)
            ]
            for place in places:
                crossing.copy(space.part(place), _host(address + at, place.size_bytes))
                at += place.size_bytes
            space.wait = crossing.mark()
            return places

        coming = bring(0)
        for number, segment in enumerate(cut):
            if not wanted():
                raise Cancelled("the caller has left", reason="CANCELLED")
            space, places = spaces[number % len(spaces)], coming
            ahead = number + 1 < len(cut) and source.has(PLANES * (number + 2))
            if ahead:
                # What is there already is brought while this one is decoded; what is not is not waited for first.
                coming = bring(number + 1)
            space.wait()
            mine = source.parts(PLANES * number, PLANES * (number + 1))
            _require_same(mine, device.checksums(space.memory.data_ptr(), places))
            for plane, (place, plane_bytes) in enumerate(zip(places, segment.planes, strict=True)):
                whole = space.plane(plane, plane_bytes)
                if not place.size_bytes:
                    whole.zero_()
                elif place.size_bytes < plane_bytes:
                    frames.decode(space.part(place), whole)
                _bytes(state, segment)[plane::PLANES].copy_(whole)
            if number + 1 < len(cut) and not ahead:
                coming = bring(number + 1)


def _spaces(frames: Frames, size_bytes: int, on: torch.device) -> list[_Workspace]:
    """Two, so that copies of one segment go on beside the work on another."""
    cut = segments(size_bytes)
    return [_Workspace(frames, cut[0].size_bytes, on) for _ in cut[:2]]


def _bytes(state: torch.Tensor, segment: Segment) -> torch.Tensor:
    return state[segment.offset : segment.offset + segment.size_bytes]


def _coded(frames: Frames, space: _Workspace, data: torch.Tensor) -> list[Chunk]:
    """Split a segment and code its planes. Returns where what is carried of each lies."""
    sizes = (data.numel() + 1) // 2, data.numel() // 2
    planes = [space.plane(number, size) for number, size in enumerate(sizes)]
    for number, plane in enumerate(planes):
        plane.copy_(data[number::PLANES])
    # Asked for together: each answer waits for the device.
    some = torch.stack([plane.any() for plane in planes]).tolist()
    full = [number for number in range(PLANES) if some[number]]
    coded = dict(zip(full, frames.encode([planes[n] for n in full], [space.frame(n) for n in full]), strict=True))
    places = []
    for number, size in enumerate(sizes):
        size_bytes = coded.get(number, 0)
        pays = size_bytes <= _PAYS * size
        places.append(space.place(number, size_bytes if pays else size, coded=pays))
    return places


def _host(address: int, size_bytes: int) -> torch.Tensor:
    """Host memory as a tensor; whoever holds it does not hold the memory."""
    if not size_bytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_ubyte * size_bytes).from_address(address), dtype=torch.uint8)


def _require_same(parts: Sequence[Part], crcs: Sequence[int]) -> None:
    wrong = [index for index, (part, crc) in enumerate(zip(parts, crcs, strict=True)) if part.crc != crc]
    if wrong:
        part, crc = parts[wrong[0]], crcs[wrong[0]]
        raise DataLoss(
            f"{len(wrong)} of {len(parts)} coded parts are not the source's on this device: the first has CRC "
            f"{crc:08x}, not {part.crc:08x}. Nothing is installed, the source plays on",
            reason="PART_MISMATCH",
            numbers={"parts": len(wrong), "source_crc": f"{part.crc:08x}", "crc": f"{crc:08x}"},
        )


@dataclass(frozen=True, slots=True)
class CodedBuffer:
    """See `enginehost.device.Attached`: a buffer whose bytes are coded."""

    device: Device
    frames: Frames
    buffer: Buffer
    parts: tuple[Part, ...]

    def pull(
        self,
        into: Memory,
        chunks: Sequence[Chunk],
        *,
        flip: Collection[int],
        wanted: Callable[[], bool],
        source: Filling | None = None,
    ) -> Pulled:
        """See `Attached`. Decodes everything, whatever chunks are asked for; `source` has the parts that come."""
        started_s = time.monotonic()
        size_bytes = self.buffer.size_bytes
        if source is None:
            require_parts(self.parts, size_bytes)
        source = source or complete(size_bytes, self.parts)
        with self.buffer.using() as address:
            decode(self.device, self.frames, source, address, into, size_bytes, wanted)
        with self.device.aside():
            for chunk in chunks:
                if chunk.index in flip:
                    into.tensor()[chunk.offset : chunk.offset + 1].bitwise_xor_(1)
            self.device.settle()
        decoded_s = time.monotonic()
        crcs = into.crcs(chunks).chunks
        return Pulled(crcs, decoded_s - started_s, time.monotonic() - decoded_s)

    def close(self) -> None:
        """See `Attached`: the loan is ended elsewhere."""

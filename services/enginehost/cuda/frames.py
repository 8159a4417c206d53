"""Codec "ans": nvCOMP's asymmetric numeral systems, on the GPU. An optional extra; without it no plan has the codec."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from enginehost.cuda import driver
from worldline import telemetry
from worldline.errors import DataLoss

# By measurement on an H200: noise grows by 0.5 % where chunks of 64 KiB, the library's own choice, make it 2.7 %; the
# upper plane of bf16 noise shrinks to 0.335 instead of 0.357, at the same rate.
_CHUNK_BYTES = 256 << 10
_log = telemetry.log("frames")


def ans_frames(ordinal: int, stream: torch.cuda.Stream) -> AnsFrames | None:
    """The codec of a device, at work on `stream`; None where nvCOMP is not installed or does not work."""
    try:
        nvcomp: Any = import_module("nvidia.nvcomp")
    except ImportError:
        return None
    frames = AnsFrames(nvcomp, ordinal, stream)
    try:
        frames.check()
    except Exception as error:  # whatever its native code makes of this machine
        _log.warning("codec ans is left out", error=f"{type(error).__name__}: {error}")
        return None
    return frames


class AnsFrames:
    """See `enginehost.device.Frames`."""

    name = "ans"

    def __init__(self, nvcomp: Any, ordinal: int, stream: torch.cuda.Stream) -> None:  # noqa: ANN401
        driver.use(ordinal)
        self._nvcomp = nvcomp
        self._ordinal = ordinal
        self._stream = stream
        self._codec = nvcomp.Codec(
            algorithm="ANS", device_id=ordinal, cuda_stream=stream.cuda_stream, uncomp_chunk_size=_CHUNK_BYTES
        )
        # It keeps its scratch between calls: one thread at a time.
        self._using = threading.Lock()

    def bound_bytes(self, plane_bytes: int) -> int:
        """See `Frames`: what nvCOMP asks for, and some more."""
        return plane_bytes * 3 // 2 + (1 << 20)

    def encode(self, planes: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> list[int]:
        """See `Frames`."""
        driver.use(self._ordinal)
        with self._using, torch.cuda.stream(self._stream):
            pairs = zip(planes, into, strict=True)
            coded = [self._codec.encode(self._array(plane), out=self._array(frame)) for plane, frame in pairs]
            self._stream.synchronize()
            return [int(frame.buffer_size) for frame in coded]

    def decode(self, frame: torch.Tensor, plane: torch.Tensor) -> None:
        """See `Frames`."""
        driver.use(self._ordinal)
        with self._using, torch.cuda.stream(self._stream):
            try:
                # Into memory of our own: a frame of more is refused.
                decoded = self._codec.decode(self._array(frame), out=self._array(plane))
            except (RuntimeError, ValueError) as error:
                raise DataLoss(f"a coded part cannot be decoded: {error}", reason="PART_MISMATCH") from None
            if decoded.buffer_size != plane.numel():
                raise DataLoss(
                    f"a coded part has {decoded.buffer_size} bytes, and its plane {plane.numel()}",
                    reason="PART_MISMATCH",
                )

    def check(self) -> None:
        """Code some bytes and decode them. Raises DataLoss, and what nvCOMP raises."""
        with torch.cuda.stream(self._stream):
            plane = torch.arange(1 << 20, device=torch.device("cuda", self._ordinal)).bitwise_and(7).to(torch.uint8)
            frame = torch.empty(self.bound_bytes(plane.numel()), dtype=torch.uint8, device=plane.device)
            (size_bytes,) = self.encode([plane], [frame])
            back = torch.empty_like(plane)
            self.decode(frame[:size_bytes], back)
            if not 0 < size_bytes < plane.numel() or not torch.equal(back, plane):
                raise DataLoss("what was coded is not what comes out", reason="PART_MISMATCH")

    def _array(self, data: torch.Tensor) -> Any:  # noqa: ANN401
        return self._nvcomp.as_array(data, cuda_stream=self._stream.cuda_stream)

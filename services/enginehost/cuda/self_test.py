"""The start-up test of peer access: some hosts copy between GPUs without an error and wrongly."""

from __future__ import annotations

import random
import zlib
from contextlib import ExitStack, closing

import torch

from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc
from worldline.errors import WorldlineError
from worldline.plan import Chunk

SOUND = "sound"
_BYTES = 64 << 20
_NOISE_BYTES = 1 << 20


def peer_verdict(ordinal: int, other: int, crc: DeviceCrc) -> str:
    """`SOUND`, or what is wrong with copies between two devices.

    Noise goes from `ordinal` to `other`, is checksummed there through the mapping, comes back over zeros, and is
    checksummed again; each value has to be zlib's.
    """
    if not driver.peer_access(ordinal, other):
        return "no peer access"
    try:
        return _round_trip(ordinal, other, crc)
    except WorldlineError as error:
        return error.message


def _round_trip(ordinal: int, other: int, crc: DeviceCrc) -> str:
    driver.use(ordinal)
    noise = random.Random(ordinal << 8 | other).randbytes(_NOISE_BYTES) * (_BYTES // _NOISE_BYTES)
    expected = zlib.crc32(noise)
    whole = [Chunk(0, 0, _BYTES)]
    stream = torch.cuda.Stream(ordinal)  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        here = stack.enter_context(closing(driver.allocate(ordinal, _BYTES, [ordinal])))
        there = stack.enter_context(closing(driver.allocate(other, _BYTES, [ordinal])))
        stack.callback(stream.synchronize)
        held = driver.tensor(here.address, _BYTES, ordinal)
        held.copy_(torch.frombuffer(bytearray(noise), dtype=torch.uint8))
        torch.cuda.current_stream(ordinal).synchronize()
        driver.copy(there.address, here.address, _BYTES, stream)
        stream.synchronize()
        if crc.crcs(there.address, whole).whole != expected:
            return f"copies to device {other} arrive wrong, or are read wrong"
        held.zero_()
        torch.cuda.current_stream(ordinal).synchronize()
        driver.copy(here.address, there.address, _BYTES, stream)
        stream.synchronize()
        if crc.crcs(here.address, whole).whole != expected:
            return f"copies from device {other} arrive wrong"
    return SOUND

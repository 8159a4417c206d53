"""A state's compressibility from a sample of it: a few pieces, equally far apart, coded and decoded on this thread.

It takes a bounded time whatever the state's size, some 10 ms, and reads memory that may be written meanwhile.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from worldline.codec.runs import Cutter, Run
from worldline.codec.zstd import Coder
from worldline.compressibility import Compressibility
from worldline.layout import ALIGN_BYTES
from worldline.made import Made
from worldline.plan import Chunk

PIECES = 32
PIECE_BYTES = 64 << 10
# The least share that is told, and how many standard errors of the mean it is told above it.
_LEAST_RATIO, _ERRORS = 0.01, 2.0
# Bytes/s of a codec that had nothing to do.
_IDLE_BPS = 1e12


def sampled(region: memoryview, runs: Sequence[Run], made: Sequence[Made] = ()) -> Compressibility:
    """What the codec leaves of `region` (at least one byte), whose elements lie as `runs` say, without what a move does
    not send.
    """
    coder, cutter = Coder(), Cutter(runs)
    shares: list[float] = []
    encoded_Bps: list[float] = []
    decoded_Bps: list[float] = []
    step = max(len(region) // PIECES // ALIGN_BYTES * ALIGN_BYTES, PIECE_BYTES)
    for start in range(0, len(region), step):
        if any(item.offset <= start < item.end for item in made):
            continue
        offset, size_bytes, width = next(cutter.pieces(Chunk(0, start, min(PIECE_BYTES, len(region) - start))))
        # A copy: what is coded and decoded must not change on the way.
        data = bytes(region[offset : offset + size_bytes])
        began_s = time.perf_counter()
        piece, parts = coder.encode(memoryview(data), offset, width)
        encoded_Bps.append(size_bytes / (time.perf_counter() - began_s))
        if piece.wire_bytes and piece.planes:
            payload, into = memoryview(b"".join(parts)), memoryview(bytearray(size_bytes))
            began_s = time.perf_counter()
            coder.decode(into, piece, payload)
            decoded_Bps.append(size_bytes / (time.perf_counter() - began_s))
        shares.append(piece.wire_bytes / size_bytes)
    error = statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
    ratio = min(max(sum(shares) / max(len(shares), 1) + _ERRORS * error, _LEAST_RATIO), 1.0)
    # Medians: a thread that had to wait for its processor says nothing of the codec.
    return Compressibility(ratio, *(statistics.median(rates or [_IDLE_BPS]) for rates in (encoded_Bps, decoded_Bps)))

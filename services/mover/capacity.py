"""What one thread of the verification lane checks, in bytes/s: measured at start over warm memory, then in use."""

from __future__ import annotations

import time

from worldline.crc import PIECE_BYTES, crc32

# More than a processor's caches hold: a lane reads what others wrote.
_BUFFER_BYTES = 32 << 20
_PASSES = 3
# Of an older rate, when a move has measured a newer one.
_KEPT = 0.7
# A move that checked less says more about thread starts than about checksums.
LEAST_BYTES = 16 << 20


def measured_verify_Bps() -> float:
    """The best of a few passes over one buffer; takes some 20 ms."""
    buffer = bytearray(b"\x5a") * _BUFFER_BYTES
    best_s = float("inf")
    with memoryview(buffer) as view:
        for _ in range(_PASSES):
            start = time.perf_counter()
            crc = 0
            for at in range(0, _BUFFER_BYTES, PIECE_BYTES):
                with view[at : at + PIECE_BYTES] as piece:
                    crc = crc32(piece, crc)
            best_s = min(best_s, time.perf_counter() - start)
    return _BUFFER_BYTES / best_s


def smoothed_Bps(before_Bps: float, checked_bytes: int, busy_s: float) -> float:
    """The rate after a move whose lane threads took `busy_s` for `checked_bytes`; too few bytes change nothing."""
    if checked_bytes < LEAST_BYTES or busy_s <= 0:
        return before_Bps
    return _KEPT * before_Bps + (1 - _KEPT) * checked_bytes / busy_s

"""What the CRC-32 kernel is told: tiles of chunks, and the powers of x that bring folded words to their place.

CRC-32 without its initial and final inversion is linear over GF(2), and zeros before a message do not change it. So a
chunk is cut into tiles that begin at multiples of 16 bytes (what is another chunk's before its first byte counts as
zeros), each tile is folded by itself, and each result is multiplied by x^(8 * bytes of the chunk behind it). The
inversions are one constant for each length. Pure: no device, and torch only for arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from worldline.crc import combine
from worldline.plan import Chunk

WORD_BYTES = 16  # of one load by one thread
LANES = 32
_ONE = 1 << 31  # x^0: bit 31 is the lowest power
_POLYNOMIAL = 0xEDB88320
# x^n = x^(n + _ORDER), because the polynomial is primitive.
_ORDER = (1 << 32) - 1
_INVERTED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Shape:
    """Threads of a block, and rows of `threads` * 16 bytes that one block folds before it looks for the next tile."""

    threads: int = 1024
    rows: int = 64

    @property
    def row_bytes(self) -> int:
        """Bytes that one block loads at a time."""
        return self.threads * WORD_BYTES

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile at most."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Arrays for one list of chunks, all but `tiles` with the bits of unsigned 32-bit words as int32.

    `tiles`: int64 [n, 4], start, skip, bytes, chunk. `ends`: [n, 32], the tile's power times x^lane. `first_tile[i]` is
    chunk i's first tile, and one more entry says where the last chunk ends. `initial`: the inversions of each chunk.
    `after`: [chunks], the power that brings a chunk to its place in the whole.
    """

    chunks: tuple[Chunk, ...]
    tiles: torch.Tensor
    ends: torch.Tensor
    first_tile: tuple[int, ...]
    initial: torch.Tensor
    after: torch.Tensor


def schedule(chunks: tuple[Chunk, ...], misaligned_bytes: int, shape: Shape) -> Schedule:
    """The schedule of consecutive chunks, in memory that begins `misaligned_bytes` (0 .. 15) past a multiple of 16."""
    tiles: list[tuple[int, int, int, int]] = []
    powers: list[int] = []
    first_tile = [0]
    for number, chunk in enumerate(chunks):
        start = chunk.offset + misaligned_bytes
        end = start + chunk.size_bytes
        at = start - start % WORD_BYTES
        while at < end:
            until = min(at + shape.tile_bytes, end)
            rows = -(-(until - at) // shape.row_bytes)
            # What is missing in the last row counts as zeros behind the tile: divided out again. The four bytes are
            # what CRC adds: the remainder is that of the message times x^32.
            behind = end - until + 4 - (rows * shape.row_bytes - (until - at))
            tiles.append((at, max(0, start - at), until - at, number))
            powers.append(power(behind))
            at = until
        first_tile.append(len(tiles))
    return Schedule(
        chunks,
        torch.tensor(tiles, dtype=torch.int64).view(-1, 4),
        times_each_lane(powers),
        tuple(first_tile),
        words([_inversions(chunk.size_bytes) for chunk in chunks]),
        words(_after(chunks)),
    )


@lru_cache(maxsize=1 << 16)
def power(size_bytes: int) -> int:
    """x^(8 * size_bytes), also for sizes below 0."""
    return combine(_ONE, 0, size_bytes % _ORDER)


@lru_cache(maxsize=1 << 12)
def _inversions(size_bytes: int) -> int:
    return combine(_INVERTED, _INVERTED, size_bytes)


def _after(chunks: Sequence[Chunk]) -> list[int]:
    found = []
    behind = _ONE
    for chunk in reversed(chunks):
        found.append(behind)
        behind = combine(behind, 0, chunk.size_bytes)
    return found[::-1]


def times_x(value: int) -> int:
    """`value` times x."""
    return (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)


def times_each_lane(values: Sequence[int]) -> torch.Tensor:
    """[n, 32]: each value times x^lane."""
    column = torch.tensor(values, dtype=torch.int64)
    columns = []
    for _ in range(LANES):
        columns.append(column)
        column = (column >> 1) ^ ((column & 1) * _POLYNOMIAL)
    return _as_int32(torch.stack(columns, 1))


def table(size_bytes: int) -> torch.Tensor:
    """[1024]: entry 256 * k + b is (b << 8 * k) times x^(8 * size_bytes), so four look-ups multiply a word."""
    ones = [combine(1 << bit, 0, size_bytes) for bit in range(32)]
    entries = []
    for byte in range(4):
        for value in range(256):
            entry = 0
            for bit in range(8):
                if value >> bit & 1:
                    entry ^= ones[8 * byte + bit]
            entries.append(entry)
    return words(entries)


def lane_powers() -> torch.Tensor:
    """[32]: what brings a lane's 16 bytes to the end of its warp's 512."""
    return words([power(WORD_BYTES * (LANES - 1 - lane)) for lane in range(LANES)])


def warp_powers(shape: Shape) -> torch.Tensor:
    """[threads]: what brings a warp's 512 bytes to the end of a row, times x^lane."""
    warps = shape.threads // LANES
    return times_each_lane([power(WORD_BYTES * LANES * (warps - 1 - warp)) for warp in range(warps)]).view(-1)


def words(values: Sequence[int]) -> torch.Tensor:
    """Unsigned 32-bit words as int32 of the same bits."""
    return _as_int32(torch.tensor(values, dtype=torch.int64))


def unsigned(found: torch.Tensor) -> list[int]:
    """int32 as the unsigned numbers of the same bits."""
    return [value & _INVERTED for value in found.tolist()]


def _as_int32(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values >= 1 << 31, values - (1 << 32), values).to(torch.int32)

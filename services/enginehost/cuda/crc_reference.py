"""The CRC-32 kernel's arithmetic in plain torch, on any device: slow, and what the kernel is held against."""

from __future__ import annotations

import torch

from enginehost.cuda.crc_schedule import LANES, WORD_BYTES, Schedule, Shape, lane_powers, table, unsigned, warp_powers

_POLYNOMIAL = 0xEDB88320
_WORD = 0xFFFFFFFF


def reference(data: torch.Tensor, plan: Schedule, misaligned_bytes: int, shape: Shape) -> tuple[list[int], int]:
    """CRC-32 of each chunk of `data` (uint8), and of all together; `plan` is of the same arguments."""
    base = torch.cat([data.new_zeros(misaligned_bytes), data, data.new_zeros(WORD_BYTES)])
    row_table, word_table = (_unsigned(table(size)).to(data.device) for size in (shape.row_bytes, 4))
    crcs = _unsigned(plan.initial).tolist()
    for (start, skip, size, chunk), ends in zip(plan.tiles.tolist(), _unsigned(plan.ends).tolist(), strict=True):
        rows = -(-size // shape.row_bytes)
        tile = data.new_zeros(rows * shape.row_bytes)
        tile[skip:size] = base[start + skip : start + size]
        lines = _unsigned(tile.view(torch.int32)).view(rows, shape.threads, 4)
        acc = lines[0]
        for row in range(1, rows):
            acc = _looked_up(row_table, acc) ^ lines[row]
        summed = acc[:, 0]
        for part in range(1, 4):
            summed = _looked_up(word_table, summed) ^ acc[:, part]
        crcs[chunk] ^= _times(_placed(summed, shape), ends)
    whole = 0
    for crc, after in zip(crcs, unsigned(plan.after), strict=True):
        whole ^= _product(crc, after)
    return crcs, whole


def _placed(summed: torch.Tensor, shape: Shape) -> int:
    """Each thread's folded words at their place in the row, added up."""
    lanes, warps = unsigned(lane_powers()), warp_powers(shape).view(-1, LANES)
    total = 0
    for warp, values in enumerate(summed.view(-1, LANES).tolist()):
        of_warp = 0
        for value, lane in zip(values, lanes, strict=True):
            of_warp ^= _product(value, lane)
        total ^= _times(of_warp, unsigned(warps[warp]))
    return total


def _looked_up(entries: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(value)
    for byte in range(4):
        found ^= entries[256 * byte + ((value >> 8 * byte) & 255)]
    return found


def _times(value: int, by_lane: list[int]) -> int:
    found = 0
    for lane, share in enumerate(by_lane):
        if value >> (31 - lane) & 1:
            found ^= share
    return found


def _product(a: int, b: int) -> int:
    found = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            found ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return found


def _unsigned(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int64) & _WORD

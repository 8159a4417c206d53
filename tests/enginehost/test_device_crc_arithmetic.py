"""The arithmetic of the device's CRC-32, on the CPU: what the kernel is told, folded as the kernel folds."""

from __future__ import annotations

import random
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost.cuda.crc_reference import reference
from enginehost.cuda.crc_schedule import Shape, power, schedule, table, times_x, unsigned
from worldline.crc import combine
from worldline.plan import Chunk, Placement, Plan

SMALL = Shape(threads=32, rows=2)


def cut(sizes: list[int]) -> list[Chunk]:
    """Chunks of these sizes, one after another."""
    return [Chunk(index, sum(sizes[:index]), size) for index, size in enumerate(sizes)]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=5),
    st.integers(0, 15),
    st.sampled_from([SMALL, Shape(64, 1), Shape(64, 3)]),
    st.integers(0, 1 << 30),
)
def test_tiles_fold_to_zlibs_values(sizes: list[int], misaligned_bytes: int, shape: Shape, seed: int) -> None:
    content = random.Random(seed).randbytes(sum(sizes))
    chunks = cut(sizes)
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    crcs, whole = reference(data, schedule(chunks, misaligned_bytes, shape), misaligned_bytes, shape)
    assert crcs == [zlib.crc32(content[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks]
    assert whole == zlib.crc32(content)


@pytest.mark.parametrize("misaligned_bytes", [0, 7])
def test_every_byte_is_in_one_tile(misaligned_bytes: int) -> None:
    shape = Shape(1024, 4)
    chunks = Plan("local", 1 << 20, 1, Placement.DEVICE, 1.0, 1.0, 1.0, tail_bytes=(70_001, 13)).chunks(5_000_000)
    plan = schedule(chunks, misaligned_bytes, shape)
    at = misaligned_bytes
    for number, (start, skip, size, chunk) in enumerate(plan.tiles.tolist()):
        assert start % 16 == 0
        assert start + skip == at
        assert size <= shape.tile_bytes
        assert plan.first_tile[chunk] <= number < plan.first_tile[chunk + 1]
        at = start + size
    assert at == misaligned_bytes + 5_000_000


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 0xFFFFFFFF))
def test_powers_can_be_divided_out(size_bytes: int, value: int) -> None:
    assert combine(power(size_bytes), 0, (-size_bytes) % ((1 << 32) - 1)) == power(0)
    assert combine(value, 0, 1) == _eighth(value)


def _eighth(value: int) -> int:
    for _ in range(8):
        value = times_x(value)
    return value


def test_four_look_ups_multiply_a_word() -> None:
    entries = unsigned(table(4096))
    for value in (1, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF):
        looked_up = 0
        for byte in range(4):
            looked_up ^= entries[256 * byte + (value >> 8 * byte & 255)]
        assert looked_up == combine(value, 0, 4096)

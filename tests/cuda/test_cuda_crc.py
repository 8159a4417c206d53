"""CRC-32 on the device: zlib's values for any length and alignment, chunk by chunk and whole."""

from __future__ import annotations

import zlib

import pytest
import torch
from cuda_tools import device
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost.cuda.crc import DeviceCrc
from enginehost.cuda.crc_reference import reference
from enginehost.cuda.crc_schedule import Shape, schedule
from worldline.plan import Chunk

pytestmark = pytest.mark.cuda

ROW = Shape().row_bytes
TILE = Shape().tile_bytes


@pytest.fixture(scope="module")
def crc() -> DeviceCrc:
    return DeviceCrc(0)


@pytest.fixture(scope="module")
def noise() -> tuple[torch.Tensor, bytes]:
    """32 MiB of noise on the device, and the same here."""
    device(0).serve()
    generator = torch.Generator().manual_seed(5)
    held = torch.randint(0, 256, (32 << 20,), dtype=torch.uint8, generator=generator)
    return held.to("cuda:0"), held.numpy().tobytes()


def cut(offset: int, sizes: list[int]) -> list[Chunk]:
    return [Chunk(index, offset + sum(sizes[:index]), size) for index, size in enumerate(sizes)]


lengths = st.one_of(
    st.integers(1, 200),
    st.integers(1, 3 * TILE),
    st.builds(lambda rows, off: max(1, rows * ROW + off), st.integers(0, 3 * TILE // ROW), st.integers(-17, 17)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=6), st.integers(0, 1 << 20))
def test_any_length_and_alignment(
    crc: DeviceCrc, noise: tuple[torch.Tensor, bytes], sizes: list[int], start: int
) -> None:
    there, here = noise
    found = crc.crcs(there.data_ptr() + start, cut(0, sizes))
    at = start
    for size, value in zip(sizes, found.chunks, strict=True):
        assert value == zlib.crc32(here[at : at + size])
        at += size
    assert found.whole == zlib.crc32(here[start:at])


@pytest.mark.parametrize("chunk_bytes", [4096, 256 << 10, 3 << 20, 32 << 20])
def test_a_large_region(crc: DeviceCrc, noise: tuple[torch.Tensor, bytes], chunk_bytes: int) -> None:
    there, here = noise
    sizes = [min(chunk_bytes, len(here) - at) for at in range(0, len(here), chunk_bytes)]
    found = crc.crcs(there.data_ptr(), cut(0, sizes))
    assert found.chunks == [zlib.crc32(here[at : at + chunk_bytes]) for at in range(0, len(here), chunk_bytes)]
    assert found.whole == zlib.crc32(here)


def test_piece_by_piece_is_the_same(crc: DeviceCrc, noise: tuple[torch.Tensor, bytes]) -> None:
    there, here = noise
    chunks = cut(0, [1 << 20, 77, 5 << 20, 123_457, 1])
    run = crc.run(there.data_ptr(), chunks)
    for number in range(len(chunks)):
        run.add(number, number + 1)
    end = chunks[-1].offset + 1
    assert run.result() == crc.crcs(there.data_ptr(), chunks)
    assert run.result().whole == zlib.crc32(here[:end])


def test_chunks_that_do_not_follow_each_other(crc: DeviceCrc, noise: tuple[torch.Tensor, bytes]) -> None:
    there, here = noise
    chunks = [Chunk(3, 100, 5_000), Chunk(9, 1 << 20, 4096)]
    assert crc.crcs(there.data_ptr(), chunks).chunks == [
        zlib.crc32(here[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks
    ]


def test_every_flipped_bit_shows(crc: DeviceCrc, noise: tuple[torch.Tensor, bytes]) -> None:
    there = noise[0][: 2 << 20].clone()
    chunks = cut(0, [1 << 20, 1 << 20])
    before = crc.crcs(there.data_ptr(), chunks)
    for at in (0, 15, 16, ROW - 1, ROW, (1 << 20) - 1, 1 << 20, (2 << 20) - 1):
        for bit in (0, 7):
            there[at : at + 1].bitwise_xor_(1 << bit)
            torch.cuda.synchronize(0)
            after = crc.crcs(there.data_ptr(), chunks)
            assert [a != b for a, b in zip(before.chunks, after.chunks, strict=True)] == [at < 1 << 20, at >= 1 << 20]
            assert after.whole != before.whole
            there[at : at + 1].bitwise_xor_(1 << bit)


def test_the_reference_says_the_same(crc: DeviceCrc, noise: tuple[torch.Tensor, bytes]) -> None:
    there, _ = noise
    data, chunks = there[3 : 3 + 300_000], cut(0, [100_001, 99_999, 100_000])
    misaligned_bytes = data.data_ptr() % 16
    expected = reference(data, schedule(chunks, misaligned_bytes, Shape()), misaligned_bytes, Shape())
    found = crc.crcs(data.data_ptr(), chunks)
    assert (found.chunks, found.whole) == expected

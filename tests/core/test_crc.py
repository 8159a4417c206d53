from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import crc

LARGE = os.urandom((1 << 18) + 256)


@given(st.lists(st.binary(max_size=2_000), max_size=8))
def test_combined_parts_are_the_whole(parts: list[bytes]) -> None:
    assert crc.combine_all((crc.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


@given(st.binary(max_size=5_000), st.integers(0, 5_000))
def test_going_on_equals_zlib(data: bytes, cut: int) -> None:
    assert crc.crc32(data[cut:], crc.crc32(data[:cut])) == zlib.crc32(data)


@pytest.mark.parametrize("module", ["zlib_ng.zlib_ng", "isal.isal_zlib"])
@given(first=st.integers(0, 2**32 - 1), second=st.integers(0, 2**32 - 1), size=st.integers(0, 2**36))
def test_combine_equals_the_libraries_to_2_to_36(module: str, first: int, second: int, size: int) -> None:
    library = pytest.importorskip(module)
    assert crc.combine(first, second, size) == library.crc32_combine(first, second, size)


@pytest.mark.parametrize("size", [-1, 2**64])
def test_impossible_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="not between"):
        crc.combine(1, 2, size)


def test_one_flipped_bit_changes_the_whole() -> None:
    data = bytearray(10_000)
    before = crc.crc32(data)
    data[7_777] ^= 0x10
    assert crc.crc32(data) != before


@given(offset=st.integers(0, 63), short=st.integers(0, 63), value=st.integers(0, 2**32 - 1))
def test_large_buffers_equal_zlib_at_any_alignment(offset: int, short: int, value: int) -> None:
    with memoryview(LARGE)[offset : len(LARGE) - short] as view:
        assert crc.crc32(view, value) == zlib.crc32(view, value)


@pytest.mark.parametrize("size_bytes", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1])
def test_small_and_large_meet_without_a_gap(size_bytes: int) -> None:
    assert crc.crc32(LARGE[:size_bytes]) == zlib.crc32(LARGE[:size_bytes])
    assert crc.crc32(bytearray(LARGE[:size_bytes]), 7) == zlib.crc32(LARGE[:size_bytes], 7)


def test_what_is_not_contiguous_is_refused() -> None:
    with memoryview(LARGE)[::2] as view, pytest.raises(BufferError):
        crc.crc32(view)

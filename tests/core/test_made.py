"""What a plan makes instead of sending: its chunks, its digest, and constants whose CRC-32 is known without a byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import wire
from worldline.crc import crc32, crc32_repeated
from worldline.errors import BadRequest
from worldline.made import FILL_BYTES, MAX_MADE, Made, fill_crc
from worldline.plan import MAX_CHUNKS, PAGE_BYTES, Placement, Plan
from worldline.receipt import whole_crc
from worldline.v1 import state_pb2

PLAN = Plan("tcp", PAGE_BYTES, 2, Placement.PIPELINED, 5.0, 6.0, 3.0)


@st.composite
def stretches(draw: st.DrawFn) -> tuple[int, tuple[Made, ...]]:
    """A region's bytes, and stretches of it."""
    at, made = 0, []
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 9_000))
        fill = draw(st.sampled_from(FILL_BYTES).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
        size_bytes = len(fill) * draw(st.integers(1, 9_000 // len(fill)))
        made.append(Made(at, size_bytes, fill))
        at += size_bytes
    return max(1, at + draw(st.integers(0, 9_000))), tuple(made)


@given(
    drawn=stretches(),
    pages=st.integers(1, 3),
    tail=st.lists(st.integers(1, PAGE_BYTES), max_size=5).map(tuple),
)
def test_chunks_are_made_or_sent_and_cover_the_region_once(
    drawn: tuple[int, tuple[Made, ...]], pages: int, tail: tuple[int, ...]
) -> None:
    region_bytes, made = drawn
    plan = replace(PLAN, chunk_bytes=pages * PAGE_BYTES, tail_bytes=tail, made=made)
    region = bytearray(b"\x5a" * region_bytes)
    for item in made:
        region[item.offset : item.end] = item.fill * (item.size_bytes // len(item.fill))
    chunks = plan.chunks(region_bytes)
    at = 0
    for index, chunk in enumerate(chunks):
        assert (chunk.index, chunk.offset) == (index, at)
        assert 0 < chunk.size_bytes <= plan.chunk_bytes
        if chunk.fill:
            held = bytes(region[at : at + chunk.size_bytes])
            assert fill_crc(chunk.fill, chunk.size_bytes) == crc32(held)
        at += chunk.size_bytes
    assert at == region_bytes
    assert sum(chunk.size_bytes for chunk in chunks if chunk.fill) == plan.made_bytes
    covered = {item.offset for item in made} | {item.end for item in made}
    assert covered <= {chunk.offset for chunk in chunks} | {region_bytes}
    crcs = [crc32(region[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks]
    assert whole_crc(chunks, crcs) == crc32(region)


def test_the_tail_is_of_what_is_sent() -> None:
    plan = replace(PLAN, tail_bytes=(2_000, 1_000), made=(Made(8192, 4096), Made(40_000, 8192)))
    chunks = plan.chunks(48_192)
    sent = [chunk.size_bytes for chunk in chunks if not chunk.fill]
    assert sent[-2:] == [2_000, 1_000]
    assert [chunk.offset for chunk in chunks if chunk.fill] == [8192, 40_000, 44_096]


@given(unit=st.binary(min_size=1, max_size=16), times=st.integers(0, 3_000))
def test_the_checksum_of_a_constant(unit: bytes, times: int) -> None:
    assert crc32_repeated(unit, times) == crc32(unit * times)


@pytest.mark.parametrize(
    "made",
    [
        (Made(0, 0),),
        (Made(-64, 64),),
        (Made(0, 10, b"\1\2\3"),),
        (Made(0, 10, b""),),
        (Made(0, 9, b"\1\2"),),
        (Made(64, 64), Made(0, 64)),
        (Made(0, 64), Made(32, 64)),
        tuple(Made(64 * index, 64) for index in range(MAX_MADE + 1)),
    ],
)
def test_stretches_that_lie_are_refused(made: tuple[Made, ...]) -> None:
    with pytest.raises(BadRequest) as caught:
        replace(PLAN, made=made)
    assert "plan.made" in caught.value.violations
    assert MAX_MADE < MAX_CHUNKS


def test_what_is_coded_on_a_device_is_coded_whole() -> None:
    staged = replace(PLAN, placement=Placement.DEVICE, staged=True, made=(Made(0, 4096),))
    assert staged.made_bytes == 4096
    with pytest.raises(BadRequest) as caught:
        replace(staged, codec="ans")
    assert "plan.made" in caught.value.violations


def test_a_stretch_beyond_the_region_is_refused() -> None:
    with pytest.raises(BadRequest, match="leaves the region of 8000 bytes"):
        replace(PLAN, made=(Made(4096, 4096),)).chunks(8000)


def test_over_the_wire_and_in_the_digest() -> None:
    made = (Made(0, 4096), Made(8192, 64, b"\x80\x3f"))
    plan = replace(PLAN, made=made)
    assert wire.plan_from(wire.plan_to(plan)) == plan
    for other in ((), made[:1], (made[0], Made(8192, 64, b"\x80\x3e")), (Made(0, 4032), made[1])):
        assert replace(PLAN, made=other).digest != plan.digest
    message = wire.plan_to(plan)
    del message.made[1]
    with pytest.raises(BadRequest) as caught:
        wire.plan_from(message)
    assert caught.value.reason == "WRONG_DIGEST"


def test_too_many_are_refused_before_they_are_looked_at() -> None:
    message = state_pb2.Plan(made=[state_pb2.Made(offset=64 * index) for index in range(MAX_MADE + 1)])
    with pytest.raises(BadRequest, match="1025 made stretches"):
        wire.made_from(message.made)

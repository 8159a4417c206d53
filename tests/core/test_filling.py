"""A buffer while it is filled: what is there is there for good, and nobody waits for what will not come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.codec.parts import Part
from worldline.errors import BadRequest, Cancelled, DataLoss
from worldline.filling import Filling, complete


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(0, 1000), st.integers(0, 1000))
def test_marks_rise_to_the_end_and_cover_what_they_say(marks: list[int], one: int, other: int) -> None:
    filling = Filling(1000)
    for mark in sorted(marks)[:-1]:
        filling.advance(mark)
    total = max(marks)
    filling.advance(total, last=True)
    offset, end = sorted((one, other))
    assert filling.covers(offset, end) is (offset < total)
    assert filling.total_bytes() == total
    if offset == end or end <= total:
        filling.require(offset, end)
    else:
        with pytest.raises(BadRequest, match="was not filled"):
            filling.require(offset, end)


@pytest.mark.parametrize(
    "lies",
    [
        [(10, 0), (9, 0)],  # it falls
        [(101, 0)],  # beyond the buffer
        [(0, 3)],  # more parts than there are planes
        [(1 << 63, 0)],
    ],
)
def test_lies_are_refused(lies: list[tuple[int, int]]) -> None:
    filling = Filling(100, most_parts=2)
    *honest, (mark, parts) = lies
    for before, _ in honest:
        filling.advance(before)
    with pytest.raises(BadRequest):
        filling.advance(mark, [Part(1, 0)] * parts)


def test_nothing_comes_after_the_last() -> None:
    filling = Filling(100)
    filling.advance(40, last=True)
    with pytest.raises(BadRequest):
        filling.advance(41)
    with pytest.raises(BadRequest):
        filling.expect(39)


def test_whoever_waits_is_woken_by_what_comes_or_by_the_end() -> None:
    filling = Filling(100, most_parts=2)
    with ThreadPoolExecutor(4) as pool:
        first, second = pool.submit(filling.covers, 0, 10), pool.submit(filling.covers, 50, 60)
        parts, total = pool.submit(filling.parts, 0, 2), pool.submit(filling.total_bytes)
        filling.advance(10, [Part(10, 7)])
        assert first.result(10) is True
        assert not second.done()
        assert not parts.done()
        filling.advance(20, [Part(10, 8)], last=True)
        assert second.result(10) is False, "nothing will be there"
        assert parts.result(10) == (Part(10, 7), Part(10, 8))
        assert total.result(10) == 20
    assert filling.parts(2, 4) == (), "there are no more"


@pytest.mark.parametrize("error", [None, DataLoss("why", reason="WHY")])
def test_who_waits_learns_why_it_ended(error: DataLoss | None) -> None:
    filling = Filling(100)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(filling.covers, 0, 10)
        filling.stop(error)
        filling.stop(DataLoss("too late"))
        with pytest.raises(DataLoss if error else Cancelled):
            waiting.result(10)
    with pytest.raises(DataLoss if error else Cancelled):
        filling.total_bytes()


def test_a_complete_one_waits_for_nobody() -> None:
    whole = complete(100, [Part(60, 1), Part(40, 2)])
    assert whole.covers(0, 100)
    assert whole.has(2)
    assert not whole.has(3)

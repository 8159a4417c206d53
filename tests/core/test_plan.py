from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import wire
from worldline.errors import BadRequest
from worldline.plan import PAGE_BYTES, Placement, Plan


def plan(**values: object) -> Plan:
    given_values: dict[str, object] = {
        "transport": "tcp",
        "chunk_bytes": 1 << 20,
        "streams": 2,
        "placement": Placement.PIPELINED,
        "deadline_s": 5.0,
        "max_freeze_s": 6.0,
        "no_progress_s": 3.0,
        **values,
    }
    return Plan(**given_values)  # type: ignore[arg-type]


@given(
    region=st.integers(1, 1 << 24),
    pages=st.integers(1, 300),
    tail=st.lists(st.integers(1, PAGE_BYTES), max_size=8),
)
def test_chunks_cover_the_region_once(region: int, pages: int, tail: list[int]) -> None:
    made = plan(chunk_bytes=pages * PAGE_BYTES, tail_bytes=tuple(tail)).chunks(region)
    at = 0
    for index, chunk in enumerate(made):
        assert (chunk.index, chunk.offset) == (index, at)
        assert 0 < chunk.size_bytes <= pages * PAGE_BYTES
        at += chunk.size_bytes
    assert at == region
    if sum(tail) < region:
        assert [chunk.size_bytes for chunk in made[len(made) - len(tail) :]] == tail


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transport", ""),
        ("chunk_bytes", 1000),
        ("chunk_bytes", 1 << 40),
        ("streams", 0),
        ("streams", 17),
        ("codec", "lz4"),
        ("codec", ""),
        ("tail_bytes", (0,)),
        ("tail_bytes", (1 << 21,)),
        ("deadline_s", 0.0),
        ("deadline_s", float("nan")),
        ("codec", "ans"),
        ("staged", True),
        ("max_freeze_s", float("inf")),
        ("no_progress_s", -1.0),
    ],
)
def test_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        plan(**{field: value})
    assert f"plan.{field}" in caught.value.violations


def test_a_chunk_plan_too_long_is_refused_before_it_is_made() -> None:
    with pytest.raises(BadRequest, match="larger ones"):
        plan(chunk_bytes=PAGE_BYTES).chunks(1 << 46)


def test_every_field_is_in_the_digest() -> None:
    base = plan()
    for change in (
        {"transport": "local"},
        {"chunk_bytes": 2 << 20},
        {"streams": 3},
        {"placement": Placement.SEQUENTIAL},
        {"deadline_s": 4.0},
        {"max_freeze_s": 7.0},
        {"no_progress_s": 2.0},
        {"tail_bytes": (4096,)},
        {"codec": "zstd"},
    ):
        assert plan(**change).digest != base.digest


def test_staged_is_in_the_digest_and_over_the_wire() -> None:
    straight = plan(placement=Placement.DEVICE)
    staged = plan(placement=Placement.DEVICE, staged=True)
    coded = plan(placement=Placement.DEVICE, staged=True, codec="ans")
    assert len({straight.digest, staged.digest, coded.digest}) == 3
    assert wire.plan_from(wire.plan_to(coded)) == coded


def test_whole_seconds_make_the_same_plan() -> None:
    whole = plan(deadline_s=5, max_freeze_s=6, no_progress_s=3)
    assert whole.digest == plan().digest
    assert wire.plan_from(wire.plan_to(whole)) == whole

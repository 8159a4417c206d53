"""How many streams a move gets: what suits both movers' cores, and few where that is not told or not worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.facts import MoverFacts, mover_from
from admission.offers import FEW_STREAMS, streams_for
from mover.settings import default_lane_threads, default_streams
from worldline.plan import MAX_STREAMS
from worldline.v1 import admission_service_pb2 as pb

MOVER = MoverFacts("mover-a", "127.0.0.1:1", frozenset({"tcp"}), 0)


@given(st.lists(st.integers(0, MAX_STREAMS), min_size=1, max_size=2))
def test_the_mover_with_fewer_decides(told: list[int]) -> None:
    movers = tuple(replace(MOVER, streams=count) for count in told)
    assert streams_for(movers, large=True) == (min(told) if all(told) else FEW_STREAMS)
    assert streams_for(movers, large=False) == FEW_STREAMS


def test_nobody_can_ask_for_more_than_a_plan_has() -> None:
    told = pb.MoverRegistration(mover_id="mover-a", address="127.0.0.1:1", transports=["tcp"], streams=1 << 31)
    assert mover_from(told).streams == MAX_STREAMS


@pytest.mark.parametrize(
    ("cores", "streams", "threads"), [(1, 2, 1), (2, 2, 1), (8, 2, 1), (12, 3, 1), (16, 4, 2), (96, 4, 2)]
)
def test_a_mover_s_own_choice(monkeypatch: pytest.MonkeyPatch, cores: int, streams: int, threads: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    assert (default_streams(), default_lane_threads()) == (streams, threads)

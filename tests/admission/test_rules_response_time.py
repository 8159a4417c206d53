"""The fleet test agrees with what a simulation of the same moves does: none that it admits ever misses."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules_samples import MG2, on

from admission.rules import Mode, PortMove, evaluate
from admission.rules.response_time import Task, fluid_limit, response_time, responses
from worldline.contract import Contract, ContractClass, Tier
from worldline.verdict import Kind

# Whole milliseconds, so that the simulation's sums are exact.
MS = 0.001
tasks = st.lists(
    st.builds(
        lambda cost, horizon, period: Task("t", cost * MS, horizon * MS, (period and period * MS) or math.inf),
        st.integers(1, 60),
        st.integers(1, 300),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=5,
)


def simulate(
    made: Sequence[Task], releases: Sequence[Sequence[int]], later_first: Callable[[int], int]
) -> list[list[int]]:
    """Responses in ms of each job of each task: one at a time, never interrupted, the shortest deadline next."""
    jobs = sorted((at, number) for number, times in enumerate(releases) for at in times)
    waiting: list[tuple[float, int, int, int]] = []
    found: list[list[int]] = [[] for _ in made]
    now, next_job = 0, 0
    while next_job < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[next_job][0])
        while next_job < len(jobs) and jobs[next_job][0] <= now:
            at, number = jobs[next_job]
            heapq.heappush(waiting, (made[number].horizon_s, later_first(number), at, number))
            next_job += 1
        _, _, at, number = heapq.heappop(waiting)
        now += round(made[number].cost_s / MS)
        found[number].append(now - at)
    return found


@settings(deadline=None, max_examples=150)
@given(tasks, st.data())
def test_what_is_admitted_never_misses(made: list[Task], data: st.DataObject) -> None:
    judged = responses(made)
    releases = []
    for task in made:
        first = data.draw(st.integers(0, 200))
        if math.isinf(task.period_s):
            releases.append([first])
            continue
        gaps = data.draw(st.lists(st.integers(0, 40) | st.just(0), max_size=12))
        times = [first]
        for gap in gaps:
            times.append(times[-1] + round(task.period_s / MS) + gap)
        releases.append(times)
    ties = data.draw(st.sampled_from([lambda number: number, lambda number: -number]))
    for response, jobs in zip(judged, simulate(made, releases, ties), strict=True):
        assert max(jobs) * MS <= response.response_s + 1e-9
        if response.in_time:
            assert max(jobs) * MS <= response.task.horizon_s + 1e-9


@settings(deadline=None, max_examples=100)
@given(tasks)
def test_the_worst_case_is_close(made: list[Task]) -> None:
    """Tight for single moves: one that blocks begins a moment before all the others are asked for."""
    once = [replace(task, period_s=math.inf) for task in made]
    for number, response in enumerate(responses(once)):
        lower = [other for other in range(len(once)) if once[other].horizon_s > once[number].horizon_s]
        releases = [[1] for _ in once]
        if lower:
            releases[max(lower, key=lambda other: once[other].cost_s)] = [0]
        found = simulate(once, releases, lambda other, number=number: int(other == number))  # type: ignore[misc]
        assert max(found[number]) * MS >= response.response_s - MS - 1e-9


@settings(deadline=None, max_examples=100)
@given(tasks, st.integers(0, 4), st.floats(1, 10))
def test_less_load_never_lengthens_a_response(made: list[Task], which: int, factor: float) -> None:
    before = {number: item.response_s for number, item in enumerate(responses(made))}
    picked = which % len(made)
    lighter = [replace(task, cost_s=task.cost_s / factor) if at == picked else task for at, task in enumerate(made)]
    for number, item in enumerate(responses(lighter)):
        assert item.response_s <= before[number] * (1 + 1e-9)
    fewer = [task for at, task in enumerate(made) if at != picked]
    kept = [number for number in range(len(made)) if number != picked]
    for number, item in zip(kept, responses(fewer), strict=True):
        assert item.response_s <= before[number] * (1 + 1e-9)


@given(st.integers(1, 12), st.floats(0.01, 0.4))
def test_equal_moves_are_the_homogeneous_form(count: int, cost_s: float) -> None:
    fits = all(item.in_time for item in responses([Task("t", cost_s, 0.4)] * count))
    limit = fluid_limit(0.4, math.inf, 0.0, cost_s)
    if not math.isclose(limit, count, rel_tol=1e-9):
        assert fits == (count <= limit)


def test_an_overloaded_port_has_no_response() -> None:
    full = [Task("a", 0.1, 0.4, 0.2), Task("b", 0.1, 0.4, 0.2)]
    assert [item.response_s for item in responses(full)] == [math.inf, math.inf]
    nearly = [Task("a", 0.1, 0.4, 0.2), Task("b", 0.099, 0.4, 0.2)]
    assert all(item.in_time for item in responses(nearly))


def test_a_later_job_may_be_the_worst() -> None:
    """The second job of a task can wait longer than its first (Davis et al. 2007)."""
    made = [Task("a", 0.010, 0.030, 0.025), Task("b", 0.010, 0.035, 0.035), Task("c", 0.010, 0.040, 0.035)]
    judged = responses(made)
    assert judged[2].response_s == pytest.approx(0.035)
    assert [item.in_time for item in judged] == [True, True, True]


def test_each_move_is_charged_its_setup_and_its_dirt() -> None:
    live = on(100, mode=Mode.LIVE, setup_s=0.05)
    other = PortMove("m-2", live.state_bytes, 1.0, 0.1, 0.5e9)
    clause = response_time(replace(live, port_moves=(other,)))
    # 2.042 GB at 12.5 GB/s and 50 ms; blocked by 2.17 GB and 100 ms.
    assert clause.numbers["cost_s"] == pytest.approx(0.05 + 2.0421 / 12.5, abs=1e-4)
    assert clause.numbers["blocking_s"] == pytest.approx(0.1 + 2.1701 / 12.5, abs=1e-4)
    assert clause.verdict is Kind.REJECT
    assert clause.arithmetic.startswith("this move: R = 0.213 + 0.274 blocking + 0.000 interference = 0.487 s > 0.4 s")


def test_a_move_that_would_make_another_miss_is_refused() -> None:
    bulk = on(100, contract=Contract(ContractClass.C3, 0.0, Tier.T0), setup_s=0.1)
    tight = PortMove("m-2", 1_000_000_000, 0.3, 0.05)
    clause = response_time(replace(bulk, port_moves=(tight,)))
    assert (clause.verdict, clause.reason) == (Kind.REJECT, "RESPONSE_TIME")
    assert clause.arithmetic.startswith("m-2: R = 0.130 + 0.234 blocking")
    assert response_time(replace(bulk, port_moves=(replace(tight, horizon_s=0.4),))).verdict is Kind.ADMIT


def test_a_lone_move_is_not_judged_twice() -> None:
    verdict = evaluate(replace(MG2, bandwidth_Bps=1e9))
    assert {clause.name for clause in verdict.failed} == {"deadline_gate", "flux"}

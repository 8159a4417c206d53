"""Estimators: the gains of RFC 6298, slow start, outliers, age; and what the rules and reports are told of a path."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.estimators import (
    BANDWIDTH_SAMPLE_BYTES,
    DEVIATIONS,
    MOST_WEIGHT,
    SUREST,
    UNSURE,
    PathEstimate,
    PathKey,
    Track,
    dirty_after,
    estimates_from,
    idiom,
    rows_of,
)
from admission.profile import Profile
from worldline.move import StageTimes
from worldline.plan import Placement, Plan

HALF_S = 600.0
S = 1_670_124_960
KEY = PathKey("mover-a", "mover-b", "tcp/pipelined/raw")


def settled(mean: float, samples: int = 50) -> Track:
    """A track that has seen nothing but `mean`."""
    track = Track.prior(mean)
    for second in range(samples):
        track = track.after(mean, float(second), HALF_S)
    return track


def fed(track: Track, *samples: float, now_s: float = 50.0) -> Track:
    for sample in samples:
        track = track.after(sample, now_s, HALF_S)
    return track


def test_settled_gains_are_those_of_rfc_6298() -> None:
    track = Track(0.200, 0.010, MOST_WEIGHT, sampled_at_s=100.0)
    after = track.after(0.216, 100.0, HALF_S)
    assert after.mean == pytest.approx(7 / 8 * 0.200 + 1 / 8 * 0.216)
    assert after.deviation == pytest.approx(3 / 4 * 0.010 + 1 / 4 * 0.016)


def test_slow_start_admits_where_tcp_refuses() -> None:
    """Paper App. I: TCP takes half of its first sample for the deviation, and so bounds a 182 ms move by 546 ms."""
    tcp_s = 0.182 + 4 * 0.182 / 2
    assert tcp_s > 0.400
    first = Track.prior(0.250).after(0.182, 0.0, HALF_S)
    assert first.bound(0.0, HALF_S) < 0.400


def test_the_first_bound_covers_what_made_the_paper_collapse() -> None:
    """Paper App. I: a 30 % underestimate collapsed the arm; a 7 % overestimate was harmless."""
    prior = Track.prior(0.7)
    assert prior.bound(0.0, HALF_S) >= 1.0
    sure = settled(0.200)
    assert sure.bound(50.0, HALF_S) <= 1.07 * 0.200


def test_one_freeze_does_not_poison_a_path() -> None:
    track = fed(settled(0.182), 1.713)
    assert track.mean == pytest.approx(0.182)
    assert track.bound(50.0, HALF_S) < 0.200
    # What comes after it is ordinary again, and the freeze is forgotten.
    track = fed(track, 0.183, 1.713)
    assert track.bound(50.0, HALF_S) < 0.200


def test_a_lasting_change_is_taken_over() -> None:
    slower = fed(settled(0.182), 0.600, 0.610)
    assert slower.mean == pytest.approx(0.605)
    assert slower.bound(50.0, HALF_S) >= 0.610
    faster = settled(0.182)
    assert fed(faster, 0.080, 0.080).mean == pytest.approx(0.182)
    assert fed(faster, 0.080, 0.080, 0.080).mean == pytest.approx(0.080)


def test_a_wrong_prior_is_left_at_the_first_sample() -> None:
    for sample in (0.004, 3.0):
        track = Track.prior(0.1).after(sample, 0.0, HALF_S)
        assert track.mean == pytest.approx(sample)
        assert track.deviation == pytest.approx(UNSURE * sample)


def test_a_freeze_at_the_first_move_is_left_at_the_second() -> None:
    assert fed(Track.prior(0.182), 1.713, 0.182).mean == pytest.approx(0.182)


def test_confidence_fades_with_age() -> None:
    track = settled(0.200)
    fresh, later, last = (track.bound(50.0 + age_s, HALF_S) for age_s in (0.0, HALF_S, 100 * HALF_S))
    assert fresh < later < last
    assert last == pytest.approx(0.200 * (1 + DEVIATIONS * UNSURE))
    # After three half-lives one sample is believed as much as the eight before.
    assert track.after(0.220, 49.0 + 3 * HALF_S, HALF_S).mean == pytest.approx(0.210)


@example(seen=[0.5, 0.5, 0.5, 0.125, 0.03125], later_s=0.0, share=0.5)
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.floats(0.01, 0.5), min_size=1, max_size=12),
    st.floats(0, 2_000),
    st.floats(0, 1),
)
def test_a_fast_sample_never_raises_the_bound(seen: list[float], later_s: float, share: float) -> None:
    track = fed(Track.prior(0.1), *seen, now_s=0.0)
    if track.weight < 2:
        return
    after = track.after(share * track.mean, later_s, HALF_S)
    assert after.bound(later_s, HALF_S) <= track.bound(later_s, HALF_S) * (1 + 1e-9)


@settings(deadline=None, max_examples=200)
@given(
    st.floats(1e-6, 10),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 2_000)), max_size=30),
    st.floats(0, 1e-2),
)
def test_a_track_stays_between_what_it_saw(prior: float, seen: list[tuple[float, float]], grain: float) -> None:
    track, now_s = Track.prior(prior, grain), 0.0
    for sample, later_s in seen:
        now_s += later_s
        track = track.after(sample, now_s, HALF_S)
        everything = [prior, *(each for each, _ in seen)]
        assert min(everything) - 1e-9 <= track.mean <= max(everything) + 1e-9
        assert 0 <= track.weight <= MOST_WEIGHT
        assert math.isfinite(track.deviation)
        assert track.deviation >= 0
        assert track.bound(now_s, HALF_S) >= track.mean * (1 + DEVIATIONS * SUREST) * (1 - 1e-9)
        assert track.bound(now_s + 100, HALF_S) >= track.bound(now_s, HALF_S) * (1 - 1e-9)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 1.0), st.integers(0, 1_000_000))
def test_moves_hardly_exceed_the_bound(mean: float, seed: int) -> None:
    """2 % of jitter, as measured on a quiet path: after ten moves no more than one in fifty is over its bound."""
    draw = random.Random(seed)
    track, over = Track.prior(mean), 0
    for second in range(210):
        sample = draw.gauss(mean, 0.02 * mean)
        if second >= 10 and sample > track.bound(second, HALF_S):
            over += 1
        track = track.after(sample, float(second), HALF_S)
    assert over <= 4
    assert track.mean == pytest.approx(mean, rel=0.05)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 1 << 36), st.floats(1e-6, 100), st.floats(0, 1000)), max_size=15))
def test_estimates_survive_a_restart(moves: list[tuple[int, float, float]]) -> None:
    prior = PathEstimate.prior(1e9, 0.1)
    estimate = prior
    for second, (state_bytes, wire_s, downtime_s) in enumerate(moves):
        stages = StageTimes(reserve_s=0.2, wire_s=wire_s, downtime_s=downtime_s)
        estimate = estimate.after(state_bytes, stages, float(second), HALF_S)
    rows = rows_of(KEY, estimate)
    assert len(rows) == 3
    assert estimates_from(rows, prior) == {KEY: estimate}


def test_a_quantity_that_was_not_kept_is_the_priors() -> None:
    prior = PathEstimate.prior(1e9, 0.1)
    learned = prior.after(S, StageTimes(wire_s=0.15, downtime_s=0.2), 0.0, HALF_S)
    rows = [row for row in rows_of(KEY, learned) if row.quantity == "pace_s_per_byte"]
    found = estimates_from(rows, prior)[KEY]
    assert (found.pace, found.setup, found.reserve) == (learned.pace, prior.setup, prior.reserve)


def test_small_states_do_not_measure_bandwidth() -> None:
    estimate = PathEstimate.prior(1e9, 0.1)
    for second in range(50):
        stages = StageTimes(wire_s=0.01, verify_s=0.01, downtime_s=0.03)
        estimate = estimate.after(BANDWIDTH_SAMPLE_BYTES - 1, stages, float(second), HALF_S)
    assert estimate.pace == Track.prior(1e-9)
    assert estimate.setup.mean == pytest.approx(0.0)
    for second in range(50, 100):
        stages = StageTimes(wire_s=0.3, verify_s=0.05, downtime_s=0.40)
        estimate = estimate.after(1 << 30, stages, float(second), HALF_S)
    assert 1 / estimate.pace.mean == pytest.approx((1 << 30) / 0.35)
    assert estimate.setup.mean == pytest.approx(0.05)
    assert estimate.fair_s(1 << 30) == pytest.approx(0.40)
    assert 0.40 < estimate.bound_s(1 << 30, 100.0, HALF_S) < 0.43


def test_an_idle_path_is_found_and_a_probe_makes_it_fresh() -> None:
    now_s = [0.0]
    profile = Profile(PathEstimate.prior(1e9, 0.1), [], HALF_S, lambda: now_s[0])
    plan = Plan("tcp", 4 << 20, 2, Placement.PIPELINED, 0.4, 1.0, 1.0)
    assert profile.idle(0.0) == []
    for _ in range(10):
        profile.keep(profile.after("mover-a", "mover-b", plan, S, StageTimes(wire_s=0.15, downtime_s=0.2)))
    assert profile.idle(100.0) == []
    before = profile.path("mover-a", "mover-b", "tcp")
    now_s[0] = 10 * HALF_S
    assert profile.idle(100.0) == [KEY]
    aged = profile.path("mover-a", "mover-b", "tcp")
    assert aged.bandwidth_Bps < before.bandwidth_Bps
    assert (aged.fair_bandwidth_Bps, aged.fair_setup_s) == (before.fair_bandwidth_Bps, before.fair_setup_s)
    profile.keep(profile.probed(KEY, 0.15 / S))
    assert profile.idle(100.0) == []
    assert profile.path("mover-a", "mover-b", "tcp").bandwidth_Bps > aged.bandwidth_Bps


def test_idioms_and_directions_do_not_mix() -> None:
    profile = Profile(PathEstimate.prior(1e9, 0.1), [], HALF_S, lambda: 0.0)
    plan = Plan("tcp", 4 << 20, 2, Placement.PIPELINED, 0.4, 1.0, 1.0)
    profile.keep(profile.after("mover-a", "mover-b", plan, S, StageTimes(wire_s=0.15, downtime_s=0.2)))
    assert profile.path("mover-a", "mover-b", "tcp").samples == 1
    for other in (
        profile.path("mover-b", "mover-a", "tcp"),
        profile.path("mover-a", "mover-b", "local"),
        profile.path("mover-a", "mover-b", "tcp", Placement.SEQUENTIAL),
        profile.path("mover-a", "mover-b", "tcp", codec="zstd"),
    ):
        assert other.samples == 0
    assert idiom("tcp", Placement.PIPELINED, "raw") == "tcp/pipelined/raw"


def test_the_dirty_rate_follows_the_counters() -> None:
    rate = dirty_after(None, 0.9e9)
    assert rate == 0.9e9
    for _ in range(60):
        rate = dirty_after(rate, 1.2e9)
    assert rate == pytest.approx(1.2e9, rel=0.001)

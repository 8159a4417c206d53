"""The lab's fabric: the paper's Table 3, egress, duplex and freezes come out of it, and bytes are kept."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.lab.fabric import (
    CELL,
    FLUID,
    GBPS,
    HIDDEN,
    IN_PATH_SLOWDOWN,
    MESH,
    MG2_BYTES,
    Errors,
    FabricSpec,
    freeze_s,
    incast_share,
)
from admission.lab.fluid import Flow, Fluid
from admission.lab.truth import Truth, draw
from worldline.errors import BadRequest

NODES = 8
WIDE = FabricSpec(NODES)
TRUE = draw(WIDE, FLUID, 0, 64, 0.0)


def flow(number: int, source: int, receiver: int, wire_from_s: float = 0.0, *, in_path: bool = False) -> Flow:
    return Flow(number, source, receiver, float(MG2_BYTES), wire_from_s, in_path)


def carrying(*flows: Flow, truth: Truth = TRUE) -> Fluid:
    fluid = Fluid(truth)
    for one in flows:
        fluid.add(one)
    return fluid


@pytest.mark.parametrize(("fan_in", "each_gbps", "takes_s"), [(1, 73.0, 0.183), (2, 20.4, 0.655), (3, 7.8, 1.713)])
def test_incast_is_table_3(fan_in: int, each_gbps: float, takes_s: float) -> None:
    fluid = carrying(*(flow(source, source, NODES - 1) for source in range(fan_in)))
    assert [rate_Bps / GBPS for rate_Bps in fluid.rates_Bps()] == pytest.approx([each_gbps] * fan_in)
    assert max(fluid.ends_s().values()) == pytest.approx(takes_s, rel=2e-3)


def test_ingest_keeps_falling_with_fan_in() -> None:
    ingest = [sources * incast_share(sources) for sources in range(1, 12)]
    assert all(after < before for before, after in pairwise(ingest))
    assert ingest[-1] > 0


def test_spread_over_receivers_nothing_collapses() -> None:
    fluid = carrying(flow(0, 0, 4), flow(1, 1, 5))
    assert [rate_Bps / GBPS for rate_Bps in fluid.rates_Bps()] == pytest.approx([73.0, 73.0])


@pytest.mark.parametrize("fan_out", [2, 3])
def test_one_sender_fans_out_at_line_rate(fan_out: int) -> None:
    """The paper measured 101 and 103 Gb/s, a little over the line's nominal 100."""
    fluid = carrying(*(flow(number, 0, number + 1) for number in range(fan_out)))
    assert sum(fluid.rates_Bps()) / GBPS == pytest.approx(100)


@pytest.mark.parametrize("outgoing_wins", [True, False])
def test_a_duplex_has_one_winner(outgoing_wins: bool) -> None:
    truth = replace(TRUE, outgoing_wins=(True, outgoing_wins, False, *TRUE.outgoing_wins[3:]))
    fluid = carrying(flow(0, 0, 1), flow(1, 1, 2), truth=truth)
    into_gbps, out_gbps = (rate_Bps / GBPS for rate_Bps in fluid.rates_Bps())
    won, lost = (out_gbps, into_gbps) if outgoing_wins else (into_gbps, out_gbps)
    assert won == pytest.approx(73)
    assert 73 / 10 <= lost <= 73 / 5


def test_freezes_are_the_retransmit_timer() -> None:
    assert freeze_s(18) == pytest.approx(2.1475, rel=1e-4)
    assert freeze_s(16) == pytest.approx(0.5369, rel=1e-4)


def test_a_freeze_holds_every_flow_into_its_receiver() -> None:
    windows = tuple(((0.1, 0.1 + freeze_s(16)),) if node == 4 else () for node in range(NODES))
    ends_s = carrying(flow(0, 0, 4), flow(1, 1, 5), truth=replace(TRUE, freezes=windows)).ends_s()
    assert ends_s[0] - ends_s[1] == pytest.approx(freeze_s(16))


def test_checksums_on_the_receive_path_slow_the_wire_and_trip_under_fan_in() -> None:
    calm, tripping = (replace(TRUE, chance=((chance, 0.0),) * 64) for chance in (0.99, 0.5))
    fluid = carrying(flow(0, 0, 4, in_path=True), truth=calm)
    assert fluid.rates_Bps()[0] / GBPS == pytest.approx(73 * (1 - IN_PATH_SLOWDOWN))
    alone = carrying(flow(0, 0, 4, in_path=True), truth=tripping).ends_s()[0]
    both = [flow(0, 0, 4, in_path=True), flow(1, 1, 4, in_path=True)]
    assert alone == pytest.approx(0.183 / (1 - IN_PATH_SLOWDOWN), rel=2e-3)
    assert carrying(*both, truth=tripping).ends_s()[0] > freeze_s(16)


placements = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 1), st.booleans()).filter(lambda at: at[0] != at[1]),
    min_size=1,
    max_size=8,
)


@settings(max_examples=50, deadline=None)
@given(placements, st.integers(0, 5))
def test_every_byte_is_carried_once(placed: list[tuple[int, int, float, bool]], seed: int) -> None:
    """Stepping by any grid gives the ends that looking ahead foresaw, and no flow beats its own solo time."""
    truth = draw(MESH, replace(HIDDEN, freezes_per_s=0.5), seed, len(placed), 2.0)
    flows = [flow(number, *at[:3], in_path=at[3]) for number, at in enumerate(placed)]
    fluid = carrying(*flows, truth=truth)
    foreseen = fluid.copy().ends_s()
    assert foreseen.keys() == set(range(len(placed)))
    for one in flows:
        solo_s = MG2_BYTES / truth.solo_Bps(one.request, one.source, one.receiver)
        assert foreseen[one.request] >= one.wire_from_s + solo_s - 1e-6
    seen: dict[int, float] = {}
    while fluid.flows:
        step_s = min(fluid.next_change_s(), fluid.now_s + 0.05)
        seen |= dict.fromkeys((over.request for over in fluid.advance(step_s)), step_s)
    assert seen == {number: pytest.approx(end_s, abs=1e-6) for number, end_s in foreseen.items()}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 0.5))
def test_a_hidden_rate_stays_within_its_error(seed: int, rate: float) -> None:
    truth = draw(MESH, Errors(rate, min(0.02, rate)), seed, 16, 1.0)
    for source in range(MESH.nodes):
        for receiver in MESH.receivers(source):
            for number in range(16):
                share = truth.solo_Bps(number, source, receiver) / MESH.believed_Bps(source)
                assert abs(share - 1) <= rate + 1e-12


def test_freezes_leave_the_rates_of_a_seed_alone() -> None:
    with_freezes, without = (draw(MESH, replace(HIDDEN, freezes_per_s=rate), 3, 8, 60.0) for rate in (0.5, 0.0))
    assert with_freezes.path_Bps == without.path_Bps
    assert any(with_freezes.freezes)
    assert not any(without.freezes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100), st.floats(0, 70))
def test_boundaries_are_where_freezing_changes(seed: int, now_s: float) -> None:
    truth = draw(MESH, replace(HIDDEN, freezes_per_s=0.3), seed, 1, 60.0)
    boundary_s = truth.next_boundary_s(0, now_s)
    if math.isinf(boundary_s):
        assert not truth.frozen(0, now_s)
        return
    assert boundary_s > now_s
    assert truth.frozen(0, now_s) is truth.frozen(0, (now_s + boundary_s) / 2)
    assert truth.frozen(0, now_s) is not truth.frozen(0, boundary_s)


def test_capacity_is_node_disjoint_pairs_back_to_back() -> None:
    assert MESH.capacity_per_s == pytest.approx(2 / (sum(MESH.solo_s(node) for node in range(4)) / 4))
    assert CELL.capacity_per_s == pytest.approx(2 / ((CELL.solo_s(0) + CELL.solo_s(1)) / 2))
    assert CELL.receivers(0) == [2, 3]
    assert CELL.believed_Bps(1) < CELL.believed_Bps(0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FabricSpec(nodes=1),
        lambda: FabricSpec(nodes=4, senders=4),
        lambda: FabricSpec(horizon_s=0.0),
        lambda: Errors(rate=1.0),
        lambda: Errors(rate=0.1, jitter=0.2),
        lambda: Errors(freezes_per_s=-1.0),
    ],
)
def test_a_fabric_that_cannot_be(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(BadRequest):
        wrong()

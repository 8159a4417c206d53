"""Edge coloring and rounds: valid, within Vizing's bound, and best possible on small graphs where that is known."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.rules.coloring import bound, color
from admission.rules.rounds import Transfer, finish_s, rounds_of

Edges = list[tuple[str, str]]

nodes = st.sampled_from("abcdefg")
multigraphs = st.lists(st.tuples(nodes, nodes), max_size=40)
# Few nodes and many parallel edges: where D + m is really needed.
fat = st.lists(st.sampled_from([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "a")]), max_size=40)


def is_proper(edges: Edges, colors: list[int]) -> bool:
    """Whether no two edges of one color share a node."""
    seen: set[tuple[int, str]] = set()
    for edge, number in zip(edges, colors, strict=True):
        for node in set(edge):
            if (number, node) in seen:
                return False
            seen.add((number, node))
    return True


def fewest(edges: Edges) -> int:
    """The chromatic index by trying all colorings."""

    def fits(index: int, colors: list[int], count: int) -> bool:
        if index == len(edges):
            return True
        # A color beyond the next unused one is only another name for that one.
        for number in range(min(count, max(colors, default=-1) + 2)):
            tried = [*colors, number]
            if is_proper(edges[: index + 1], tried) and fits(index + 1, tried, count):
                return True
        return False

    return next(count for count in itertools.count(0) if fits(0, [], count))


@settings(deadline=None, max_examples=150)
@given(multigraphs | fat)
def test_colorings_are_proper_and_within_the_bound(edges: Edges) -> None:
    colors = color(edges)
    assert is_proper(edges, colors)
    assert len(set(colors)) <= bound(edges)
    assert set(colors) == set(range(len(set(colors))))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=7))
def test_small_graphs_against_every_coloring(edges: Edges) -> None:
    used = len(set(color(edges)))
    assert fewest(edges) <= used <= bound(edges)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")), min_size=1, max_size=40))
def test_the_bound_holds_for_a_drain_shaped_graph(edges: Edges) -> None:
    degrees = Counter(node for edge in edges for node in edge)
    colors = color(edges)
    assert is_proper(edges, colors)
    assert max(degrees.values()) <= len(set(colors)) <= bound(edges)


@settings(deadline=None, max_examples=5)
@given(st.randoms(use_true_random=False))
def test_large_graphs(random: object) -> None:
    pick = random.randrange  # type: ignore[attr-defined]
    edges = [(str(pick(30)), str(pick(30))) for _ in range(300)]
    colors = color(edges)
    assert is_proper(edges, colors)
    assert len(set(colors)) <= bound(edges)


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([], 0),
        ([("a", "a")], 1),
        ([("a", "a"), ("a", "b")], 2),
        # Vizing's bound is met by fat triangles: D = 4, m = 2, six edges that all meet each other.
        ([("a", "b"), ("b", "c"), ("c", "a")] * 2, 6),
        # A drain: one node sends everything, one transfer a round.
        ([("a", "b"), ("a", "c"), ("a", "b")], 3),
        # Full-duplex pairs count as parallel edges.
        ([("a", "b"), ("b", "a")], 2),
    ],
)
def test_known_graphs(edges: Edges, expected: int) -> None:
    assert len(set(color(edges))) == expected
    assert len(set(color(edges))) <= bound(edges) if edges else bound(edges) == 0


def test_two_colored_rounds_take_500_ms() -> None:
    """The paper's four all-duplex transfers (§6.5): 2 x 250 ms, measured 539 to 545."""
    pairs = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    rounds = rounds_of([Transfer(f"{one}{other}", one, other, 0.250) for one, other in pairs])
    assert [len(round_.transfers) for round_ in rounds] == [2, 2]
    assert finish_s(rounds) == pytest.approx(0.500)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(nodes, nodes, st.floats(0.001, 10)), max_size=20))
def test_every_transfer_is_in_one_round(drawn: list[tuple[str, str, float]]) -> None:
    transfers = [Transfer(f"{index}", *each) for index, each in enumerate(drawn)]
    rounds = rounds_of(transfers)
    assert sorted(item.key for round_ in rounds for item in round_.transfers) == sorted(item.key for item in transfers)
    for round_ in rounds:
        busy = [node for item in round_.transfers for node in {item.source, item.destination}]
        assert len(busy) == len(set(busy))
    assert finish_s(rounds) <= sum(item.seconds for item in transfers) + 1e-9

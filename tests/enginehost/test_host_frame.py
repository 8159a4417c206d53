"""Freezing a tree that lives in its slot: only values are written, and nothing else is taken for such a tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tree import RandomTreeEngine

from enginehost import tree
from enginehost.arena import Arena, Budget
from enginehost.slots import Slot
from worldline.engine import StateTree

MIB = 1 << 20


def slot_of(given_tree: StateTree) -> Slot:
    """A slot that holds the tree."""
    captured = tree.capture(given_tree)
    slot = Slot(
        captured.layout,
        Arena("x", captured.layout.region_bytes, Budget(MIB).reserve(captured.layout.region_bytes, "test")),
    )
    slot.flatten(captured)
    return slot


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_the_short_way_writes_what_the_long_way_does(seed: int, blocks: int) -> None:
    engine = RandomTreeEngine()
    slot = slot_of(engine.create("tiny", seed))
    session = engine.load("tiny", slot.rehydrate())
    for block in range(blocks):
        session.begin_block(bytes([block]))
        session.step(0)
        session.end_block()
    short = slot.flatten_values(session.state_tree())
    assert short is not None
    region = bytes(slot.arena.map)
    long = slot.flatten(tree.capture(session.state_tree()))
    assert bytes(slot.arena.map) == region
    assert short.copied_bytes == long.copied_bytes
    other = slot_of(session.state_tree())
    assert bytes(other.arena.map) == region
    for each in (slot, other):
        each.close()


def base() -> dict[str, StateTree]:
    return {
        "a": torch.arange(6.0).view(2, 3),
        "b": [torch.ones(4), 3, None],
        "empty": [{}, [], ()],
        "t": (torch.zeros(0, 2), "text"),
    }


CHANGES = {
    "a tensor was replaced": lambda t: t.__setitem__("a", t["a"].clone()),
    "two tensors changed places": lambda t: t["b"].__setitem__(0, t["t"][0]),
    "a tensor has another shape": lambda t: t["a"].t_(),
    "a tensor has other memory": lambda t: t["a"].set_(torch.arange(6.0).view(2, 3)),
    "a leaf is new": lambda t: t.__setitem__("new", 1),
    "a leaf is gone": lambda t: t.pop("a"),
    "a leaf has another name": lambda t: t.__setitem__("c", t.pop("a")),
    "a list is longer": lambda t: t["b"].append(1),
    "a list is a tuple": lambda t: t.__setitem__("b", tuple(t["b"])),
    "a number is a text": lambda t: t["b"].__setitem__(1, "3"),
    "a text is longer": lambda t: t.__setitem__("t", (t["t"][0], "longer")),
    "an empty mapping is not": lambda t: t["empty"].__setitem__(0, {"k": 1}),
    "an empty list is not": lambda t: t["empty"].__setitem__(1, [1]),
    "a mapping is a tensor": lambda t: t["empty"].__setitem__(0, torch.ones(1)),
    "a value cannot be moved": lambda t: t["b"].__setitem__(1, object()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_takes_the_long_way(what: str) -> None:
    slot = slot_of(base())
    state = slot.rehydrate()
    assert slot.flatten_values(state) is not None
    before = bytes(slot.arena.map)
    CHANGES[what](state)  # type: ignore[no-untyped-call]
    assert slot.flatten_values(state) is None
    assert bytes(slot.arena.map) == before
    slot.close()


def test_views_that_were_changed_in_place_are_not_given_out_again() -> None:
    slot = slot_of(base())
    state = slot.rehydrate()
    assert isinstance(state, dict)
    state["a"].t_()  # type: ignore[union-attr]
    again = slot.rehydrate()
    assert isinstance(again, dict)
    assert torch.equal(again["a"], torch.arange(6.0).view(2, 3))  # type: ignore[arg-type]
    assert slot.flatten_values(state) is None
    assert slot.flatten_values(again) is not None
    slot.close()


def test_values_are_written() -> None:
    slot = slot_of(base())
    state = slot.rehydrate()
    assert isinstance(state, dict)
    state["b"][1] = -7  # type: ignore[index, call-overload]
    written = slot.flatten_values(state)
    assert written is not None
    again = slot.rehydrate()
    assert isinstance(again, dict)
    assert again["b"][1:] == [-7, None]  # type: ignore[index, call-overload]
    assert again["empty"] == [{}, [], ()]
    slot.close()
    assert slot.flatten_values(state) is None

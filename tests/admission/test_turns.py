"""Turns: who was told to wait comes before moves of a schedule."""

from __future__ import annotations

from admission.turns import Turns


def test_a_turn_begins_with_a_deferral_and_ends_by_itself() -> None:
    now_s = [100.0]
    turns = Turns(lambda: now_s[0])
    assert turns.taken_s("host-b") == 0.0
    turns.deferred("host-b", "s-1", 2.0)
    turns.deferred("host-b", "s-2", 0.5)
    assert turns.taken_s("host-b") == 3.0
    assert turns.taken_s("host-c") == 0.0
    now_s[0] = 102.0
    assert turns.taken_s("host-b") == 1.0
    now_s[0] = 103.0
    assert turns.taken_s("host-b") == 0.0


def test_who_was_admitted_or_refused_waits_no_more() -> None:
    turns = Turns(lambda: 0.0)
    turns.deferred("host-b", "s-1", 2.0)
    turns.deferred("host-c", "s-1", 2.0)
    turns.deferred("host-c", "s-2", 1.0)
    turns.settled("s-1")
    assert (turns.taken_s("host-b"), turns.taken_s("host-c")) == (0.0, 2.0)

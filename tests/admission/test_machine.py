"""The move machine by itself: what it refuses, what it remembers, what it asks again."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.machine import Effect, Event, EventKind, Phase, State, Transition, effects_of, step
from worldline import errors


def run(*kinds: EventKind) -> State:
    state = State()
    for kind in kinds:
        state, _ = step(state, Event(kind, kind.name, f"because {kind.value}"))
    return state


def test_the_straight_way() -> None:
    state = run(EventKind.VERIFIED, EventKind.GRANTED, EventKind.COMMITTED)
    assert effects_of(state) == (Effect.ACTIVATE, Effect.FREE)
    state = run(EventKind.VERIFIED, EventKind.GRANTED, EventKind.COMMITTED, EventKind.ACTIVATED)
    assert (state.phase, effects_of(state)) == (Phase.DONE, (Effect.FREE,))
    state, effects = step(state, Event(EventKind.FREED))
    assert (state.phase, effects, state.reason) == (Phase.MOVED, (), "")


def test_an_invalid_transition_tells_the_story() -> None:
    story = (Transition(time.time(), Phase.OPEN, "verified", Phase.COMMIT, ("source: release",)),)
    with pytest.raises(errors.Internal, match="'committed' cannot happen to a move in COMMIT") as caught:
        step(State(Phase.COMMIT), Event(EventKind.COMMITTED), story)
    assert "OPEN -verified-> COMMIT" in caught.value.message
    assert caught.value.reason == "INVALID_TRANSITION"


def test_the_first_reason_is_kept() -> None:
    state = run(EventKind.MOVER_FAILED, EventKind.SOURCE_LIVE, EventKind.DESTINATION_DIED)
    assert (state.phase, state.reason, state.message) == (Phase.ABORTED, "MOVER_FAILED", "because mover failed")


def test_a_loss_says_so_whatever_came_before() -> None:
    state = run(EventKind.MOVER_FAILED, EventKind.SOURCE_DIED)
    assert (state.phase, state.reason, state.message) == (Phase.LOSING, "SESSION_LOST", "because source died")
    state = run(EventKind.VERIFIED, EventKind.GRANTED, EventKind.COMMITTED, EventKind.DESTINATION_DIED)
    assert (state.phase, effects_of(state)) == (Phase.DONE, (Effect.FREE,))
    state, _ = step(state, Event(EventKind.FREED))
    assert (state.phase, state.reason) == (Phase.LOST, "SESSION_LOST")


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.closed])
def test_nothing_happens_to_a_closed_move(phase: Phase) -> None:
    assert effects_of(State(phase)) == ()
    for kind in EventKind:
        with pytest.raises(errors.Internal):
            step(State(phase), Event(kind))


@settings(deadline=None)
@given(st.lists(st.sampled_from(EventKind), max_size=12))
def test_a_dead_host_is_never_asked(kinds: list[EventKind]) -> None:
    state = State()
    at_source = {Effect.RELEASE, Effect.FREE, Effect.RESUME, Effect.REINSTATE}
    for kind in kinds:
        try:
            state, effects = step(state, Event(kind))
        except errors.Internal:
            continue
        asked = set(effects) - {Effect.MOVE}
        assert not (state.source_dead and asked & at_source)
        assert not (state.destination_dead and asked - at_source)
        assert bool(effects) != state.phase.closed

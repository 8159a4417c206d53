"""The move as a pure state machine: a state and an event in, the next state and its effects out. No clock, no I/O.

The order is the whole point (docs/architecture.md): the source gives before the destination takes, the destination
plays only after DONE, and it drops its copy only after the source has answered that it is live.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from worldline.errors import Internal


class Phase(enum.IntEnum):
    """Where a move stands; values are those of the wire."""

    REFUSED = 1
    OPEN = 2
    COMMIT = 3
    GRANTED = 4
    DONE = 5
    MOVED = 6
    ABORT = 7
    REINSTATE = 8
    DROPPING = 9
    ABORTED = 10
    LOSING = 11
    LOST = 12

    @property
    def closed(self) -> bool:
        """Whether nothing more will happen."""
        return self in (Phase.REFUSED, Phase.MOVED, Phase.ABORTED, Phase.LOST)


class EventKind(enum.Enum):
    """What can happen to a move. The value is its name in the transition log."""

    VERIFIED = "verified"  # both receipts are there and equal
    MOVER_FAILED = "mover failed"
    CANCELLED = "cancelled"
    DEADLINE_PASSED = "deadline passed"
    GRANTED = "granted"  # the source gave
    RESUMED = "resumed"  # the source was live again before the release came
    RELEASE_REFUSED = "release refused"
    COMMITTED = "committed"  # the destination took
    COMMIT_REFUSED = "commit refused"  # the destination did not take, and holds nothing any more
    ACTIVATED = "activated"
    FREED = "freed"
    SOURCE_LIVE = "source live"
    SOURCE_EMPTY = "source empty"  # the source lives, but does not have the session any more
    SOURCE_CLOSED = "source closed"  # the source's player, or its idle timer, closed the session
    DROPPED = "dropped"
    SOURCE_DIED = "source died"
    DESTINATION_DIED = "destination died"
    RESTARTED = "admission restarted"


class Effect(enum.Enum):
    """What is asked next. The value is its name in the transition log."""

    MOVE = "mover: move"
    RELEASE = "source: release"
    COMMIT = "destination: commit"
    ACTIVATE = "destination: activate"
    FREE = "source: free"
    RESUME = "source: resume"
    REINSTATE = "source: reinstate"
    DROP = "destination: drop"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; `reason` (UPPER_SNAKE) and `message` where it makes the move give up."""

    kind: EventKind
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Where a move stands, which of its hosts are proven dead, and what was acknowledged after DONE.

    `session_closed`: the source has said that the session was closed there; nothing is left that could be lost.
    """

    phase: Phase = Phase.OPEN
    source_dead: bool = False
    destination_dead: bool = False
    activated: bool = False
    freed: bool = False
    reason: str = ""
    message: str = ""
    session_closed: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the transition log; `at_s` is Unix time."""

    at_s: float
    before: Phase
    event: str
    after: Phase
    effects: tuple[str, ...]


_P, _E = Phase, EventKind

_NEXT: dict[tuple[Phase, EventKind], Phase] = {
    (_P.OPEN, _E.VERIFIED): _P.COMMIT,
    (_P.OPEN, _E.MOVER_FAILED): _P.ABORT,
    (_P.OPEN, _E.CANCELLED): _P.ABORT,
    (_P.OPEN, _E.DEADLINE_PASSED): _P.ABORT,
    (_P.OPEN, _E.DESTINATION_DIED): _P.ABORT,
    (_P.OPEN, _E.SOURCE_DIED): _P.LOSING,
    # The mover's stream, and with it the receipts, died with admission.
    (_P.OPEN, _E.RESTARTED): _P.ABORT,
    (_P.COMMIT, _E.GRANTED): _P.GRANTED,
    (_P.COMMIT, _E.RESUMED): _P.ABORT,
    # Reinstate, not resume: it is right wherever the source stands, and without a grant nobody can have taken.
    (_P.COMMIT, _E.RELEASE_REFUSED): _P.REINSTATE,
    # The release may have been granted without the answer having come: only reinstating undoes that.
    (_P.COMMIT, _E.DESTINATION_DIED): _P.REINSTATE,
    (_P.COMMIT, _E.SOURCE_DIED): _P.LOSING,
    (_P.COMMIT, _E.RESTARTED): _P.COMMIT,
    (_P.GRANTED, _E.COMMITTED): _P.DONE,
    (_P.GRANTED, _E.COMMIT_REFUSED): _P.REINSTATE,
    (_P.GRANTED, _E.DESTINATION_DIED): _P.REINSTATE,
    (_P.GRANTED, _E.SOURCE_DIED): _P.GRANTED,
    (_P.GRANTED, _E.RESTARTED): _P.GRANTED,
    (_P.DONE, _E.ACTIVATED): _P.DONE,
    (_P.DONE, _E.FREED): _P.DONE,
    (_P.DONE, _E.SOURCE_DIED): _P.DONE,
    (_P.DONE, _E.DESTINATION_DIED): _P.DONE,
    (_P.DONE, _E.RESTARTED): _P.DONE,
    (_P.ABORT, _E.SOURCE_LIVE): _P.DROPPING,
    (_P.ABORT, _E.SOURCE_EMPTY): _P.LOSING,
    (_P.ABORT, _E.SOURCE_CLOSED): _P.DROPPING,
    (_P.ABORT, _E.SOURCE_DIED): _P.LOSING,
    (_P.ABORT, _E.DESTINATION_DIED): _P.ABORT,
    (_P.ABORT, _E.RESTARTED): _P.ABORT,
    (_P.REINSTATE, _E.SOURCE_LIVE): _P.DROPPING,
    (_P.REINSTATE, _E.SOURCE_EMPTY): _P.LOSING,
    (_P.REINSTATE, _E.SOURCE_CLOSED): _P.DROPPING,
    (_P.REINSTATE, _E.SOURCE_DIED): _P.LOSING,
    (_P.REINSTATE, _E.DESTINATION_DIED): _P.REINSTATE,
    (_P.REINSTATE, _E.RESTARTED): _P.REINSTATE,
    (_P.DROPPING, _E.DROPPED): _P.ABORTED,
    (_P.DROPPING, _E.SOURCE_DIED): _P.LOSING,
    (_P.DROPPING, _E.DESTINATION_DIED): _P.DROPPING,
    (_P.DROPPING, _E.RESTARTED): _P.DROPPING,
    (_P.LOSING, _E.DROPPED): _P.LOST,
    (_P.LOSING, _E.SOURCE_DIED): _P.LOSING,
    (_P.LOSING, _E.DESTINATION_DIED): _P.LOSING,
    (_P.LOSING, _E.RESTARTED): _P.LOSING,
}

_GOING_ON = (_P.OPEN, _P.COMMIT, _P.GRANTED, _P.DONE, _P.MOVED)
# A move in one of these takes a place at its receiver.
RECEIVING = (_P.OPEN, _P.COMMIT, _P.GRANTED, _P.DONE)

_EFFECTS: dict[Phase, tuple[Effect, ...]] = {
    _P.OPEN: (Effect.MOVE,),
    _P.COMMIT: (Effect.RELEASE,),
    _P.GRANTED: (Effect.COMMIT,),
    _P.DONE: (Effect.ACTIVATE, Effect.FREE),
    _P.ABORT: (Effect.RESUME,),
    _P.REINSTATE: (Effect.REINSTATE,),
    _P.DROPPING: (Effect.DROP,),
    _P.LOSING: (Effect.DROP,),
}


def step(state: State, event: Event, story: Sequence[Transition] = ()) -> tuple[State, tuple[Effect, ...]]:
    """The state after `event` and what to ask then.

    Raises:
        Internal: the event cannot happen in this state; the message tells the move's story.
    """
    phase = _NEXT.get((state.phase, event.kind))
    if phase is None:
        told = "; ".join(f"{line.before.name} -{line.event}-> {line.after.name}" for line in story)
        raise Internal(
            f"{event.kind.value!r} cannot happen to a move in {state.phase.name}; its story: {told or 'none yet'}",
            reason="INVALID_TRANSITION",
        )
    after = replace(
        state,
        phase=phase,
        source_dead=state.source_dead or event.kind is _E.SOURCE_DIED,
        destination_dead=state.destination_dead or event.kind is _E.DESTINATION_DIED,
        activated=state.activated or event.kind is _E.ACTIVATED,
        freed=state.freed or event.kind in (_E.FREED, _E.SOURCE_DIED),
        session_closed=state.session_closed or event.kind is _E.SOURCE_CLOSED,
    )
    after = _settled(after)
    newly_closed = after.session_closed and not state.session_closed
    newly_lost = after.phase in (_P.LOSING, _P.LOST) and state.phase is not _P.LOSING
    if (state.phase in _GOING_ON and after.phase not in _GOING_ON) or newly_lost or newly_closed:
        reason = "SESSION_LOST" if newly_lost else "SESSION_CLOSED" if newly_closed else event.reason or "ABORTED"
        after = replace(after, reason=reason, message=event.message or state.message)
    return after, effects_of(after)


def _settled(state: State) -> State:
    """What follows at once from who is dead and what was acknowledged."""
    phase = state.phase
    if phase is _P.LOSING and state.session_closed:
        phase = _P.DROPPING
    if phase is _P.REINSTATE and state.source_dead:
        phase = _P.LOSING
    if phase is _P.DONE and state.freed:
        phase = _P.LOST if state.destination_dead else _P.MOVED if state.activated else phase
    if state.destination_dead:
        # A dead host holds nothing that could be dropped.
        phase = {_P.DROPPING: _P.ABORTED, _P.LOSING: _P.LOST}.get(phase, phase)
    return replace(state, phase=phase)


def effects_of(state: State) -> tuple[Effect, ...]:
    """What is still to be asked in `state`; asking it again is always right."""
    answered = {Effect.ACTIVATE: state.activated or state.destination_dead, Effect.FREE: state.freed}
    return tuple(effect for effect in _EFFECTS.get(state.phase, ()) if not answered.get(effect, False))

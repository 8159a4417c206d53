"""Explores the real move machine with a model of both hosts, a network that loses, duplicates and delays, and crashes.

A sent message stays in the network for ever: it may be delivered again at any time, or never. A crash of a host loses
its memory and is proven to admission by its new incarnation; a crash of admission loses nothing but calls in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from admission import machine
from admission.machine import Effect, Event, EventKind, Phase, State, effects_of, step
from worldline import errors

# Which answer, to which ask, becomes which event. A coordinator takes answers only to what it asks now.
ANSWERS = {
    (Effect.RELEASE, "granted"): EventKind.GRANTED,
    (Effect.RELEASE, "resumed"): EventKind.RESUMED,
    (Effect.RELEASE, "refused"): EventKind.RELEASE_REFUSED,
    (Effect.COMMIT, "taken"): EventKind.COMMITTED,
    (Effect.COMMIT, "refused"): EventKind.COMMIT_REFUSED,
    (Effect.ACTIVATE, "done"): EventKind.ACTIVATED,
    (Effect.FREE, "done"): EventKind.FREED,
    (Effect.RESUME, "live"): EventKind.SOURCE_LIVE,
    (Effect.RESUME, "empty"): EventKind.SOURCE_EMPTY,
    (Effect.RESUME, "closed"): EventKind.SOURCE_CLOSED,
    (Effect.REINSTATE, "empty"): EventKind.SOURCE_EMPTY,
    (Effect.REINSTATE, "closed"): EventKind.SOURCE_CLOSED,
    (Effect.REINSTATE, "live"): EventKind.SOURCE_LIVE,
    (Effect.DROP, "done"): EventKind.DROPPED,
}
AT_SOURCE = (Effect.RELEASE, Effect.FREE, Effect.RESUME, Effect.REINSTATE)


@dataclass(frozen=True, slots=True)
class World:
    """Everything: admission's journaled state, both hosts, the network, and the crashes so far."""

    up: bool = True
    move: State = field(default_factory=State)
    source: str = "frozen"  # frozen, live, released, gone, closed (by its player), forgotten (that it was), dead
    source_played: bool = False
    destination: str = "staged"  # staged, bad, ready, live, none, dead
    destination_played: bool = False
    asks: frozenset[Effect] = frozenset()
    answers: frozenset[tuple[Effect, str]] = frozenset()
    crashes: int = 0


def happens(world: World, kind: EventKind) -> World:
    state, _ = step(world.move, Event(kind, kind.name))
    return replace(world, move=state)


def answer(world: World, effect: Effect, word: str, **change: str) -> World:
    return replace(world, answers=world.answers | {(effect, word)}, **change)


def admission(world: World) -> Iterator[tuple[str, World]]:
    phase = world.move.phase
    if not world.up:
        up = replace(world, up=True)
        yield "admission restarts", up if phase.closed else happens(up, EventKind.RESTARTED)
        return
    if phase.closed:
        return
    if phase is Phase.OPEN:
        for kind in (EventKind.VERIFIED, EventKind.MOVER_FAILED, EventKind.CANCELLED, EventKind.DEADLINE_PASSED):
            yield f"admission: {kind.value}", happens(world, kind)
    for effect in effects_of(world.move):
        if effect is not Effect.MOVE and effect not in world.asks:
            yield f"admission asks {effect.value}", replace(world, asks=world.asks | {effect})
        for given, word in world.answers:
            if given is effect:
                kind = ANSWERS[effect, word]
                yield f"admission hears {kind.value}", happens(world, kind)
    if world.source == "dead" and not world.move.source_dead:
        yield "admission: source proven dead", happens(world, EventKind.SOURCE_DIED)
    if world.destination == "dead" and not world.move.destination_dead:
        yield "admission: destination proven dead", happens(world, EventKind.DESTINATION_DIED)


def hosts(world: World) -> Iterator[tuple[str, World]]:
    if world.source == "frozen":
        yield "source's timer", replace(world, source="live")
    if world.source == "live":
        yield "source's player closes the session", replace(world, source="closed")
    if world.source == "closed":
        yield "source forgets that it was closed", replace(world, source="forgotten")
    if world.source == "live" and not world.source_played:
        yield "source plays", replace(world, source_played=True)
    if world.destination == "live" and not world.destination_played:
        yield "destination plays", replace(world, destination_played=True)
    for effect in world.asks:
        after = at_source(world, effect) if effect in AT_SOURCE else at_destination(world, effect)
        if after is not None:
            yield f"delivered {effect.value}", after


def at_source(world: World, effect: Effect) -> World | None:
    source = world.source
    if source in ("closed", "forgotten"):
        word = "closed" if source == "closed" else "empty"
        words = {Effect.RELEASE: "refused", Effect.RESUME: word, Effect.REINSTATE: word, Effect.FREE: "done"}
        return answer(world, effect, words[effect])
    if effect is Effect.RELEASE and source in ("frozen", "released"):
        return answer(world, effect, "granted", source="released")
    if effect is Effect.RELEASE and source == "live":
        return answer(world, effect, "resumed")
    if effect is Effect.RESUME and source in ("frozen", "live"):
        return answer(world, effect, "live", source="live")
    if effect is Effect.REINSTATE and source in ("frozen", "released", "live"):
        return answer(world, effect, "live", source="live")
    if effect is Effect.FREE and source in ("released", "gone"):
        return answer(world, effect, "done", source="gone")
    return None


def at_destination(world: World, effect: Effect) -> World | None:
    here = world.destination
    if effect is Effect.COMMIT and here in ("staged", "ready", "live"):
        return answer(world, effect, "taken", destination="ready" if here == "staged" else here)
    if effect is Effect.COMMIT and here in ("bad", "none"):
        # Bytes differ, or the copy was dropped before: it holds nothing that could be taken later.
        return answer(world, effect, "refused", destination="none")
    if effect is Effect.ACTIVATE and here in ("ready", "live"):
        return answer(world, effect, "done", destination="live")
    if effect is Effect.DROP and here in ("staged", "bad", "none"):
        return answer(world, effect, "done", destination="none")
    return None


def crashes(world: World, most: int) -> Iterator[tuple[str, World]]:
    if world.crashes >= most:
        return
    after = replace(world, crashes=world.crashes + 1)
    if world.up:
        yield "admission crashes", replace(after, up=False)
    if world.source != "dead":
        yield "source crashes", replace(after, source="dead")
    if world.destination != "dead":
        yield "destination crashes", replace(after, destination="dead")


def wrong(world: World) -> str:
    move, source, destination = world.move, world.source, world.destination
    if source == "live" and destination == "live":
        return "two owners"
    if world.source_played and destination in ("live", "ready"):
        return "rewind: the destination took although the source has played on"
    if world.destination_played and source == "live":
        return "rewind: the source plays on although the destination has played"
    if source == "gone" and destination == "none":
        return "lost: both copies were let go"
    if move.phase is Phase.MOVED and destination not in ("live", "dead"):
        return "MOVED, but the destination does not play"
    if move.phase is Phase.ABORTED and source not in ("live", "closed", "forgotten", "dead"):
        return "ABORTED, but the source does not play"
    if move.phase is Phase.ABORTED and move.session_closed != (move.reason == "SESSION_CLOSED"):
        return "the reason does not say whether the session was closed"
    if move.phase is Phase.LOST and source == "closed" and not move.source_dead:
        return "LOST, but its player closed the session"
    if move.phase is Phase.LOST and source == "live":
        return "LOST, but the source plays"
    if move.phase is Phase.LOST and destination == "live":
        return "LOST, but the destination plays"
    if move.phase in (Phase.MOVED, Phase.ABORTED, Phase.LOST) and destination in ("staged", "bad"):
        return "closed, but the shadow slot is held"
    good_copy_dropped = source == "dead" and destination == "none" and not world.source_played
    if (
        good_copy_dropped
        and (Effect.COMMIT, "refused") not in world.answers
        and move.phase
        not in (
            Phase.LOSING,
            Phase.LOST,
            Phase.DROPPING,
            Phase.ABORTED,
        )
    ):
        return "lost: the destination dropped a good copy before the source was safely live"
    return ""


def explore(start: World, most: int) -> int:
    """Every reachable world is right, and from each a closed one is reachable without further crashes."""
    came_from: dict[World, tuple[str, World]] = {}
    seen, queue = {start}, deque([start])
    backwards: dict[World, list[World]] = {}
    while queue:
        world = queue.popleft()
        if what := wrong(world):
            told = []
            while world in came_from:
                label, world = came_from[world]
                told.append(label)
            pytest.fail(f"{what}, after: " + "; ".join(reversed(told)))
        for crashed, moves in ((False, (*admission(world), *hosts(world))), (True, tuple(crashes(world, most)))):
            for label, after in moves:
                if not crashed:
                    backwards.setdefault(after, []).append(world)
                if after not in seen:
                    seen.add(after)
                    came_from[after] = (label, world)
                    queue.append(after)
    reaching = [world for world in seen if world.move.phase.closed]
    can_close = set(reaching)
    while reaching:
        for world in backwards.get(reaching.pop(), ()):
            if world not in can_close:
                can_close.add(world)
                reaching.append(world)
    stuck = seen - can_close
    assert not stuck, f"{len(stuck)} of {len(seen)} worlds are stuck, for instance {next(iter(stuck))}"
    return len(seen)


@pytest.mark.parametrize("destination", ["staged", "bad"])
def test_one_crash_breaks_nothing(destination: str) -> None:
    assert explore(World(destination=destination), 1) > 200


@pytest.mark.slow
@pytest.mark.parametrize("destination", ["staged", "bad"])
def test_three_crashes_break_nothing(destination: str) -> None:
    assert explore(World(destination=destination), 3) > 1_000


def transition(monkeypatch: pytest.MonkeyPatch, phase: Phase, kind: EventKind, after: Phase) -> None:
    monkeypatch.setitem(machine._NEXT, (phase, kind), after)


def effects(monkeypatch: pytest.MonkeyPatch, phase: Phase, *asked: Effect) -> None:
    monkeypatch.setitem(machine._EFFECTS, phase, asked)


@pytest.mark.parametrize(
    "shortcut",
    [
        # The destination is asked to take before the source gave.
        lambda patch: effects(patch, Phase.COMMIT, Effect.RELEASE, Effect.COMMIT, Effect.ACTIVATE),
        # A dead source is taken for one that gave.
        lambda patch: transition(patch, Phase.COMMIT, EventKind.SOURCE_DIED, Phase.GRANTED),
        # The destination plays before DONE.
        lambda patch: effects(patch, Phase.GRANTED, Effect.COMMIT, Effect.ACTIVATE),
        # The destination drops its copy before the source has answered that it is live.
        lambda patch: effects(patch, Phase.ABORT, Effect.RESUME, Effect.DROP),
        # A release whose answer never came is taken for one that was never given.
        lambda patch: transition(patch, Phase.COMMIT, EventKind.DESTINATION_DIED, Phase.ABORT),
        # The source goes on although the destination may have taken.
        lambda patch: transition(patch, Phase.GRANTED, EventKind.RESTARTED, Phase.REINSTATE),
    ],
    ids=["commit-first", "grant-on-death", "play-before-done", "drop-early", "resume-released", "reinstate-on-restart"],
)
def test_the_exploration_finds_each_shortcut(
    shortcut: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shortcut(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, errors.Internal)):
        explore(World(), 2)

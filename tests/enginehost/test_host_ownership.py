"""The ownership machine alone, and two of them with a controller and a network that loses, repeats and delays."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from enginehost.ownership import MAX_PAST, Ending, Ownership, State, check_fence
from worldline.errors import DataLoss, NotFound, Owned, StaleFence, Unavailable, WorldlineError, WrongState
from worldline.move import Fence

MOVES = [str(uuid.UUID(int=number)) for number in range(3)]
LIVE = Ownership().create()


def fence(move: int = 0, epoch: int = 1) -> Fence:
    return Fence(MOVES[move], "s", epoch, 1, 1)


# Each verb as (ownership, fence) -> (ownership, answer).
VERBS = {
    "freeze": lambda o, f: (o.freeze(f), None),
    "release": lambda o, f: o.release(f),
    "resume": lambda o, f: o.resume(f),
    "reinstate": lambda o, f: o.reinstate(f),
    "free": lambda o, f: (o.free(f), None),
    "stage": lambda o, f: (o.stage(f), None),
    "commit": lambda o, f: (o.commit(f), None),
    "refuse": lambda o, f: (o.refuse(f), None),
    "activate": lambda o, f: (o.activate(f), None),
    "drop": lambda o, f: (o.drop(f), None),
}
steps = st.tuples(
    st.sampled_from([*VERBS, "thaw", "suspend", "set_aside", "wake"]), st.integers(0, 2), st.integers(1, 3)
)


def apply(owner: Ownership, step: tuple[str, int, int]) -> Ownership:
    verb, move, epoch = step
    if verb == "thaw":
        return owner.thaw(MOVES[move])
    if verb == "set_aside":
        return owner.set_aside(MOVES[move])
    if verb in ("suspend", "wake"):
        return owner.suspend() if verb == "suspend" else owner.wake()
    return VERBS[verb](owner, fence(move, epoch))[0]


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(steps, max_size=30))
def test_any_sequence_of_verbs_keeps_the_rules(live: bool, sequence: list[tuple[str, int, int]]) -> None:
    owner = LIVE if live else Ownership()
    for step in sequence:
        verb, move, _ = step
        try:
            after = apply(owner, step)
        except WorldlineError:
            continue
        # The same message again: the same state and the same answer, unless it may only be done once.
        if verb in VERBS and verb != "refuse":
            once = VERBS[verb](owner, fence(*step[1:]))
            again = VERBS[verb](after, fence(*step[1:]))
            assert again == (after, once[1])
        if owner.state is State.RELEASED and after.state is not State.RELEASED:
            assert move == MOVES.index(owner.move_id)
            assert (verb, after.state) in {("free", State.GONE), ("reinstate", State.LIVE)}
        if after.state is State.LIVE and owner.state not in (State.LIVE, State.SUSPENDED):
            assert (owner.state, verb) in {
                (State.FROZEN, "thaw"),
                (State.FROZEN, "release"),
                (State.FROZEN, "resume"),
                (State.FROZEN, "reinstate"),
                (State.RELEASED, "reinstate"),
                (State.READY, "activate"),
            }
            assert (owner.state, verb) != (State.FROZEN, "release")
        if owner.state in (State.READY, State.LIVE, State.SUSPENDED):
            assert after.state is not State.NOTHING
        if after.state is State.GONE:
            assert owner.state in (State.GONE, State.RELEASED, State.STAGED)
        if owner.state is State.STAGED and after.state is State.READY:
            assert after.epoch == owner.epoch + 1
        for past in owner.past:
            assert past in after.past
            # A move that is over never has the session again.
            assert after.move_id != past.move_id
        assert bool(after.move_id) == (after.state in (State.FROZEN, State.RELEASED, State.STAGED, State.READY))
        owner = after


def test_the_table() -> None:
    frozen = LIVE.freeze(fence())
    assert frozen.state is State.FROZEN
    released, resumed = frozen.release(fence())
    assert (released.state, resumed) == (State.RELEASED, False)
    gone = released.free(fence())
    assert gone.state is State.GONE
    assert released.reinstate(fence())[1] is State.LIVE
    staged = Ownership().stage(fence())
    ready = staged.commit(fence())
    assert (staged.state, ready.state, ready.epoch) == (State.STAGED, State.READY, 2)
    live = ready.activate(fence())
    assert live.state is State.LIVE
    assert live.commit(fence()) is live
    # And back again, with the next epoch.
    assert gone.stage(fence(1, 2)).drop(fence(1, 2)).state is State.GONE
    with pytest.raises(StaleFence):
        gone.stage(fence(1, 1))


def test_a_late_release_is_answered_resumed_and_a_late_freeze_is_refused() -> None:
    thawed = LIVE.freeze(fence()).thaw(MOVES[0])
    assert thawed.state is State.LIVE
    assert thawed.release(fence()) == (thawed, True)
    with pytest.raises(WrongState, match="over"):
        thawed.freeze(fence())
    resumed, answer = LIVE.resume(fence())
    assert answer is State.LIVE
    with pytest.raises(WrongState):
        resumed.freeze(fence())
    never, was_live = LIVE.release(fence())
    assert was_live
    with pytest.raises(WrongState):
        never.freeze(fence())


def test_what_is_refused() -> None:
    frozen = LIVE.freeze(fence())
    released, _ = frozen.release(fence())
    gone = released.free(fence())
    ready = Ownership().stage(fence()).commit(fence())
    refused = Ownership().stage(fence()).refuse(fence())
    for owner, verb, move, kind in [
        (frozen, "freeze", 1, Owned),
        (frozen, "stage", 1, Owned),
        (released, "resume", 0, WrongState),
        (released, "reinstate", 1, Owned),
        (gone, "resume", 0, WrongState),
        (gone, "reinstate", 0, WrongState),
        (gone, "resume", 1, WrongState),
        (ready, "drop", 0, WrongState),
        (ready, "resume", 0, WrongState),
        (ready, "drop", 1, Owned),
        (LIVE, "drop", 0, WrongState),
        (LIVE, "stage", 0, WrongState),
        (LIVE, "free", 0, WrongState),
        (LIVE, "activate", 0, WrongState),
        (Ownership(), "commit", 0, NotFound),
        (Ownership(), "activate", 0, NotFound),
        (Ownership(), "free", 0, NotFound),
        (refused, "commit", 0, DataLoss),
        (refused, "stage", 0, WrongState),
        (Ownership().drop(fence()), "stage", 0, WrongState),
    ]:
        with pytest.raises(kind):
            VERBS[verb](owner, fence(move))
    assert refused.drop(fence()) is refused
    assert Ownership().resume(fence()) == (Ownership(), State.NOTHING)
    for verb in ("freeze", "release", "resume"):
        with pytest.raises(StaleFence):
            VERBS[verb](frozen, fence(0, 2))
    with pytest.raises(Owned):
        frozen.close()
    with pytest.raises(WrongState):
        LIVE.create()


def test_the_past_is_bounded() -> None:
    owner = LIVE
    for number in range(3 * MAX_PAST):
        owner = owner.resume(Fence(str(uuid.UUID(int=number)), "s", 1, 1, 1))[0]
    assert len(owner.past) == MAX_PAST


def test_fences() -> None:
    check_fence(Fence(MOVES[0], "s", 1, 4, 7), 4, 6, told=False)
    check_fence(Fence(MOVES[0], "s", 1, 4, 6), 4, 6, told=True)
    for told in (False, True):
        with pytest.raises(StaleFence, match="incarnation"):
            check_fence(Fence(MOVES[0], "s", 1, 3, 7), 4, 6, told=told)
        with pytest.raises(StaleFence, match="term"):
            check_fence(Fence(MOVES[0], "s", 1, 4, 5), 4, 6, told=told)
    with pytest.raises(Unavailable, match="term 7"):
        check_fence(Fence(MOVES[0], "s", 1, 4, 7), 4, 6, told=True)


def test_closed_and_failed_are_told_apart() -> None:
    closed, failed = LIVE.close(), LIVE.fail()
    assert (closed.state, closed.closed) == (State.NOTHING, True)
    assert (failed.state, failed.closed) == (State.NOTHING, False)
    assert closed.resume(fence()) == (closed, State.NOTHING)
    staged = Ownership().stage(fence())
    expired = staged.expire(MOVES[0])
    assert expired.state is State.NOTHING
    assert staged.expire(MOVES[1]) is staged
    ready = staged.commit(fence())
    assert ready.expire(MOVES[0]) is ready
    with pytest.raises(WrongState):
        expired.stage(fence())
    assert expired.drop(fence()) is expired


class HandOver(RuleBasedStateMachine):
    """A controller that journals as the design orders, two hosts, and a network that repeats whatever was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.source = LIVE
        self.destination = Ownership()
        self.sent: list[tuple[str, str]] = [("source", "freeze"), ("destination", "stage")]
        self.journal = "open"
        self.answers: set[str] = set()
        self.source_played = False

    @rule(index=st.integers(0, 30))
    def deliver(self, index: int) -> None:
        side, verb = self.sent[index % len(self.sent)]
        owner = self.source if side == "source" else self.destination
        try:
            after, answer = VERBS[verb](owner, fence())
        except WorldlineError:
            return
        if side == "source":
            self.source = after
        else:
            self.destination = after
        if verb == "release":
            self.answers.add("resumed" if answer else "grant")
        elif verb in ("resume", "reinstate") and answer is State.LIVE:
            self.answers.add("resumed")
        elif verb in ("freeze", "stage", "commit"):
            self.answers.add(verb)

    @rule()
    def source_timer(self) -> None:
        self.source = self.source.thaw(MOVES[0])

    @precondition(
        lambda self: self.source.state is State.LIVE and Ending.RESUMED in {p.ending for p in self.source.past}
    )
    @rule()
    def source_plays(self) -> None:
        self.source_played = True

    @rule(commit=st.booleans())
    def decide(self, commit: bool) -> None:
        if self.journal == "open" and {"freeze", "stage"} <= self.answers and commit:
            self._go("commit", ("source", "release"))
        elif (self.journal == "open" and not commit) or (self.journal == "commit" and "resumed" in self.answers):
            self._go("abort", ("source", "resume"))
        elif self.journal == "commit" and "grant" in self.answers:
            self._go("granted", ("destination", "commit"))
        elif self.journal == "granted" and "commit" in self.answers:
            self._go("done", ("destination", "activate"), ("source", "free"))
        elif self.journal == "abort" and "resumed" in self.answers:
            self._go("dropping", ("destination", "drop"))

    def _go(self, journal: str, *messages: tuple[str, str]) -> None:
        self.journal = journal
        self.sent += messages

    @invariant()
    def one_owner(self) -> None:
        assert not (self.source.state is State.LIVE and self.destination.state in (State.LIVE, State.READY))

    @invariant()
    def no_rewind(self) -> None:
        assert not (self.source_played and self.destination.state in (State.LIVE, State.READY))

    @invariant()
    def none_lost(self) -> None:
        holds = (State.NOTHING, State.GONE)
        assert self.source.state not in holds or self.destination.state not in holds


HandOver.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHandOver = HandOver.TestCase

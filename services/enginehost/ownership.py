"""Who may advance a session: the states of one session on one host, and the verbs that change them.

Pure: no clock, no memory, no thread. A verb takes the value as it is and gives the value as it will be, or raises and
changes nothing; the caller swaps the value under the session's lock. A verb that has been done already gives the same
value again. How a move ended here is kept, so that a message that comes late or twice can do no harm.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from worldline.errors import DataLoss, NotFound, Owned, StaleFence, Unavailable, WorldlineError, WrongState
from worldline.move import Fence

MAX_PAST = 64


class State(enum.IntEnum):
    """Where a session stands on this host; values are those of the wire."""

    NOTHING = 0
    LIVE = 1
    FROZEN = 2
    RELEASED = 3
    STAGED = 4
    READY = 5
    SUSPENDED = 6
    GONE = 7


class Ending(enum.Enum):
    """How a move ended on this host."""

    RESUMED = "the source resumed"
    REINSTATED = "the source was reinstated"
    FREED = "the source freed its copy"
    DROPPED = "the staged copy was dropped"
    REFUSED = "the staged copy was refused, because its bytes differ, and dropped"
    TAKEN = "the session was taken"


@dataclass(frozen=True, slots=True)
class Past:
    """A move that is over here; `epoch` is that of the moved state."""

    move_id: str
    epoch: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class Ownership:
    """One session on this host.

    `move_id` is the move that has it, empty if none. `gave_epoch` is the epoch this host gave away last, 0 if never:
    what a dropped copy falls back to. `closed`: its player, or nobody for too long, ended it here; it lives nowhere.
    """

    state: State = State.NOTHING
    epoch: int = 0
    move_id: str = ""
    past: tuple[Past, ...] = ()
    gave_epoch: int = 0
    closed: bool = False

    # --- without a move

    def create(self) -> Ownership:
        """NOTHING -> LIVE, at epoch 1."""
        if self.state is not State.NOTHING or self.past or self.epoch:
            raise WrongState(f"this host already knows the session: it is {self.state.name}", reason="SESSION_EXISTS")
        return replace(self, state=State.LIVE, epoch=1)

    def suspend(self) -> Ownership:
        """LIVE -> SUSPENDED; anything else stays as it is."""
        return replace(self, state=State.SUSPENDED) if self.state is State.LIVE else self

    def set_aside(self, registered: str) -> Ownership:
        """LIVE or SUSPENDED -> SUSPENDED, on request. A move that has `registered` can freeze it no more."""
        self.require_at_rest("suspend")
        aside = replace(self, state=State.SUSPENDED)
        if not registered or self.over_here(registered):
            return aside
        return aside._over(registered, self.epoch, Ending.RESUMED, State.SUSPENDED)

    def require_at_rest(self, verb: str) -> None:
        """Refuse `verb` unless the session is this host's own and in no move."""
        self._require_free()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong(verb, (State.LIVE, State.SUSPENDED))

    def wake(self) -> Ownership:
        """SUSPENDED -> LIVE; anything else stays as it is."""
        return replace(self, state=State.LIVE) if self.state is State.SUSPENDED else self

    def close(self) -> Ownership:
        """LIVE or SUSPENDED -> NOTHING."""
        if self.move_id:
            raise self._owned()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong("close", (State.LIVE, State.SUSPENDED))
        return replace(self, state=State.NOTHING, gave_epoch=0, closed=True)

    def fail(self) -> Ownership:
        """Its engine failed inside a block: NOTHING, and not because anybody closed it."""
        return replace(self, state=State.NOTHING, gave_epoch=0)

    def over_here(self, move_id: str) -> bool:
        """Whether that move has ended on this host."""
        return any(past.move_id == move_id for past in self.past)

    # --- at the source

    def freeze(self, fence: Fence) -> Ownership:
        """LIVE (or SUSPENDED) -> FROZEN."""
        if self._has(fence, State.FROZEN, State.RELEASED):
            return self
        self._require_open(fence)
        self._require_free()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong("freeze", (State.LIVE,))
        self._require_epoch(fence, self.epoch)
        return replace(self, state=State.FROZEN, move_id=fence.move_id)

    def thaw(self, move_id: str) -> Ownership:
        """FROZEN -> LIVE, by the host's own timer; anything else stays as it is."""
        if self.state is not State.FROZEN or self.move_id != move_id:
            return self
        return self._over(move_id, self.epoch, Ending.RESUMED, State.LIVE)

    def release(self, fence: Fence) -> tuple[Ownership, bool]:
        """FROZEN -> RELEASED, or True: the source is live and this move cannot have it any more."""
        ending = self._ending(fence)
        if ending in (Ending.RESUMED, Ending.REINSTATED):
            return self, True
        if ending is Ending.FREED or self._has(fence, State.RELEASED):
            return self, False
        if self._has(fence, State.FROZEN):
            return replace(self, state=State.RELEASED), False
        self._require_free()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong("release", (State.FROZEN,))
        self._require_epoch(fence, self.epoch)
        return self._over(fence.move_id, fence.epoch, Ending.RESUMED, self.state), True

    def resume(self, fence: Fence) -> tuple[Ownership, State]:
        """FROZEN -> LIVE. The answer is LIVE, or NOTHING if this host does not have the session."""
        return self._back("resume", fence, (State.FROZEN,), Ending.RESUMED)

    def reinstate(self, fence: Fence) -> tuple[Ownership, State]:
        """RELEASED (or FROZEN) -> LIVE. The answer is LIVE, or NOTHING if this host does not have the session."""
        return self._back("reinstate", fence, (State.FROZEN, State.RELEASED), Ending.REINSTATED)

    def free(self, fence: Fence) -> Ownership:
        """RELEASED -> GONE."""
        if self._ending(fence) is Ending.FREED:
            return self
        self.require("free", fence, State.RELEASED)
        gone = self._over(fence.move_id, fence.epoch, Ending.FREED, State.GONE)
        return replace(gone, gave_epoch=fence.epoch)

    def _back(self, verb: str, fence: Fence, states: Collection[State], ending: Ending) -> tuple[Ownership, State]:
        if self._ending(fence) in (Ending.RESUMED, Ending.REINSTATED):
            return self, State.LIVE
        if self._has(fence, *states):
            return self._over(fence.move_id, fence.epoch, ending, State.LIVE), State.LIVE
        if self.state is State.NOTHING:
            return self, State.NOTHING
        if self.move_id != fence.move_id:
            self._require_free()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong(verb, states)
        self._require_epoch(fence, self.epoch)
        # Remembered, so that this move's freeze cannot come later and stop the session.
        return self._over(fence.move_id, fence.epoch, ending, State.LIVE), State.LIVE

    # --- at the destination

    def stage(self, fence: Fence) -> Ownership:
        """NOTHING or GONE -> STAGED."""
        if self._has(fence, State.STAGED):
            return self
        self._require_open(fence)
        self._require_free()
        if self.state not in (State.NOTHING, State.GONE):
            raise WrongState(
                f"the session is {self.state.name} on this host: it cannot be staged where it lives",
                reason="ALREADY_HERE",
            )
        if fence.epoch <= self.gave_epoch:
            raise StaleFence(
                f"this host gave the session away at epoch {self.gave_epoch}: epoch {fence.epoch} is old",
                reason="STALE_EPOCH",
                numbers={"epoch": self.gave_epoch, "given": fence.epoch},
            )
        return replace(self, state=State.STAGED, epoch=fence.epoch, move_id=fence.move_id)

    def commit(self, fence: Fence) -> Ownership:
        """STAGED -> READY, epoch + 1."""
        ending = self._ending(fence)
        if ending is Ending.REFUSED:
            raise DataLoss(f"move {fence.move_id} is over here: {ending.value}", reason="COPY_REFUSED")
        if ending is Ending.TAKEN or self._has(fence, State.READY):
            return self
        self.require("commit", fence, State.STAGED)
        return replace(self, state=State.READY, epoch=self.epoch + 1)

    def refuse(self, fence: Fence) -> Ownership:
        """STAGED -> NOTHING (or GONE), for good: the bytes differ."""
        self.require("refuse", fence, State.STAGED)
        return self._over(fence.move_id, fence.epoch, Ending.REFUSED, self._fallen())

    def activate(self, fence: Fence) -> Ownership:
        """READY -> LIVE."""
        if self._ending(fence) is Ending.TAKEN:
            return self
        self.require("activate", fence, State.READY)
        live = self._over(fence.move_id, fence.epoch, Ending.TAKEN, State.LIVE)
        return replace(live, gave_epoch=0, closed=False)

    def expire(self, move_id: str) -> Ownership:
        """STAGED -> NOTHING (or GONE), because the move told nothing for too long; anything else stays as it is."""
        if self.state is not State.STAGED or self.move_id != move_id:
            return self
        return self._over(move_id, self.epoch, Ending.DROPPED, self._fallen())

    def drop(self, fence: Fence) -> Ownership:
        """STAGED -> NOTHING (or GONE). A session that is READY or that lives here is never dropped."""
        if self._ending(fence) in (Ending.DROPPED, Ending.REFUSED):
            return self
        if self._has(fence, State.STAGED):
            return self._over(fence.move_id, fence.epoch, Ending.DROPPED, self._fallen())
        if self.move_id != fence.move_id:
            self._require_free()
        if self.state not in (State.NOTHING, State.GONE):
            raise self._wrong("drop", (State.STAGED,))
        # Remembered, so that this move's stage cannot come later and take memory for nothing.
        return self._over(fence.move_id, fence.epoch, Ending.DROPPED, self.state)

    # --- rules

    def require(self, verb: str, fence: Fence, *states: State) -> None:
        """Refuse `verb` unless this move has the session in one of `states`."""
        if not self._has(fence, *states):
            self._require_open(fence)
            if self.move_id != fence.move_id:
                self._require_free()
            raise self._wrong(verb, states)

    def require_registrable(self, fence: Fence) -> None:
        """Refuse a move that cannot freeze the session, or that has given it away already."""
        if self._has(fence, State.FROZEN):
            return
        self._require_open(fence)
        self._require_free()
        if self.state not in (State.LIVE, State.SUSPENDED):
            raise self._wrong("register", (State.LIVE,))
        self._require_epoch(fence, self.epoch)

    def _fallen(self) -> State:
        return State.GONE if self.gave_epoch else State.NOTHING

    def _over(self, move_id: str, epoch: int, ending: Ending, state: State) -> Ownership:
        past = (*self.past, Past(move_id, epoch, ending))[-MAX_PAST:]
        return replace(self, state=state, move_id="", past=past)

    def _ending(self, fence: Fence) -> Ending | None:
        for past in self.past:
            if past.move_id == fence.move_id:
                self._require_epoch(fence, past.epoch)
                return past.ending
        return None

    def _has(self, fence: Fence, *states: State) -> bool:
        """Whether this move has the session in one of `states`."""
        if self.move_id != fence.move_id or not self.move_id:
            return False
        self._require_epoch(fence, self.epoch - 1 if self.state is State.READY else self.epoch)
        return self.state in states

    def _require_open(self, fence: Fence) -> None:
        ending = self._ending(fence)
        if ending is not None:
            raise WrongState(
                f"move {fence.move_id} is over here: {ending.value}; ask for a new move", reason="MOVE_OVER"
            )

    def _require_free(self) -> None:
        if self.move_id:
            raise self._owned()

    def _require_epoch(self, fence: Fence, epoch: int) -> None:
        if fence.epoch != epoch:
            raise StaleFence(
                f"epoch {fence.epoch} was given, but the session is at epoch {epoch} here",
                reason="STALE_EPOCH",
                numbers={"epoch": epoch, "given": fence.epoch},
            )

    def _owned(self) -> Owned:
        return Owned(
            f"move {self.move_id} has the session ({self.state.name}); wait until it is closed",
            resource=("move", self.move_id),
            retry_after_s=1.0,
        )

    def _wrong(self, verb: str, wanted: Collection[State]) -> WorldlineError:
        names = " or ".join(state.name for state in wanted)
        if self.state is State.NOTHING:
            return NotFound(f"nothing to {verb}: this host does not hold the session")
        return WrongState(
            f"cannot {verb}: the session is {self.state.name} here, not {names}",
            numbers={"state": self.state.name, "wanted": names},
        )


def check_fence(fence: Fence, incarnation: int, term: int, *, told: bool) -> None:
    """Refuse a message meant for another incarnation or sent by an old controller.

    `term` is the highest known. `told`: admission itself said which term it has, so that a higher one is nobody's.

    Raises:
        StaleFence: WRONG_INCARNATION, STALE_TERM.
        Unavailable: UNKNOWN_TERM; admission may have started again and not been heard yet.
    """
    if fence.incarnation != incarnation:
        raise StaleFence(
            f"incarnation {fence.incarnation} of this host was meant, but this is incarnation {incarnation}",
            reason="WRONG_INCARNATION",
            numbers={"incarnation": incarnation, "given": fence.incarnation},
        )
    if fence.term < term:
        raise StaleFence(
            f"term {fence.term} is old: a controller of term {term} has spoken",
            reason="STALE_TERM",
            numbers={"term": term, "given": fence.term},
        )
    if told and fence.term > term:
        raise Unavailable(
            f"term {fence.term} is not one that admission told this host "
            f"({'it has told none yet' if term < 0 else f'it told {term}'}): admission is asked now",
            reason="UNKNOWN_TERM",
            numbers={"term": term, "given": fence.term},
            retry_after_s=0.1,
        )

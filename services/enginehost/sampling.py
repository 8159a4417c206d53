"""What a codec would leave of this host's sessions, from a sample of one of them at a time, for heartbeats.

A sample takes about 10 ms of one thread, whatever the session's size, and neither stops nor slows what plays. Only a
session whose leaves lie in their places in a slot in host memory is looked at: elsewhere its bytes may be old ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from enginehost.arena import Arena
from enginehost.ownership import State
from enginehost.session import Copy, Session
from worldline import telemetry
from worldline.codec.runs import runs_of
from worldline.codec.sample import sampled
from worldline.compressibility import Compressibility

# A state fills in its first blocks, and changes what it is made of slowly from then on: a sample is taken again when it
# has played as many blocks again, or after this many seconds.
AGAIN_S = 60.0
_log = telemetry.log("sampling")


@dataclass(frozen=True, slots=True)
class Sample:
    """What was found before which block, and when (monotonic seconds)."""

    compressibility: Compressibility
    next_block: int
    taken_at_s: float


def look(sessions: Iterable[Session]) -> None:
    """Sample the session that has waited longest for it, if one has played since its last sample."""
    now_s = time.monotonic()
    waiting = [session for session in sessions if _is_due(session, now_s)]
    for session in sorted(waiting, key=lambda session: session.sample.taken_at_s if session.sample else 0.0):
        try:
            found = _region(session)
        except Exception as error:
            # An engine that cannot show its state now: its host must go on beating.
            _log.warning("not sampled", session_id=session.session_id, error=f"{type(error).__name__}: {error}")
            continue
        if found is None:
            continue
        region, copy, next_block = found
        with region:
            session.sample = Sample(sampled(region, runs_of(copy.slot.layout), copy.made), next_block, now_s)
        return


def _is_due(session: Session, now_s: float) -> bool:
    if session.ownership.state is not State.LIVE or not session.next_block:
        return False
    last, next_block = session.sample, session.next_block
    if last is None or next_block >= 2 * last.next_block:
        return True
    return next_block != last.next_block and now_s - last.taken_at_s >= AGAIN_S


def _region(session: Session) -> tuple[memoryview, Copy, int] | None:
    """The session's memory, its copy and its next block; None where its bytes are not sure to be there now.

    The view outlives the slot: of memory that was given back meanwhile it shows zeros.
    """
    if not session.verbs.acquire(blocking=False):
        return None  # a move, or something else, is at work on it
    try:
        with session.cond:
            copy, runner = session.copy, session.runner
            if copy is None or runner is None or not session.at_boundary or not isinstance(copy.slot.arena, Arena):
                return None
            if not copy.slot.holds(runner.state_tree()):
                return None
            return memoryview(copy.slot.arena.map), copy, session.next_block
    finally:
        session.verbs.release()

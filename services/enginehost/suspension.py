"""Suspending: a session's state goes to host memory and its slot is freed; resuming brings it back into a slot.

The host copy is read back and compared with the slot before the slot is freed, and the new slot with what the old one
had before it is played: a copy that goes wrong, either way, is never played and never the only one. On a GPU, host
memory is pinned, and the slots' checksums are the device's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache

from enginehost.device import Memory
from enginehost.host import Host
from enginehost.loading import load
from enginehost.session import Copy, HostCopy, Session
from enginehost.slots import Slot
from enginehost.staging import Buffer
from enginehost.stream import ended
from worldline import telemetry
from worldline.errors import DataLoss, Internal, Owned, Unsupported
from worldline.plan import Chunk

# Long enough that a copy runs at the link's rate, short enough that little is left to check when the last one lands.
PIECE_BYTES = 16 << 20
_log = telemetry.log("suspension")


@dataclass(frozen=True, slots=True)
class Resumed:
    """Seconds of the copy back into a slot with its checksum, and of rehydrating; zeros if it had its slot."""

    copy_s: float
    load_s: float


def suspend(host: Host, session_id: str, timeout_s: float) -> tuple[Session, HostCopy]:
    """Stop at the next block boundary and go to host memory; a player's stream ends with SUSPENDED.

    Raises:
        Exhausted: SUSPEND_MEMORY; the session plays on.
        Owned: a move has it, or has registered for it.
        Unsupported: SUSPEND_OFF, the host sets no memory aside for this.
        DataLoss: the host copy is not what the slot has; the session plays on.
    """
    host.sessions.get(session_id)
    with host.sessions.verb(session_id, timeout_s) as session:
        session.require_copy()
        session.ownership.require_at_rest("suspend")
        if session.host_copy is not None:
            return session, session.host_copy
        session.halt(timeout_s)
        try:
            return session, _to_host(host, session)
        finally:
            session.go()
            host.scheduler.wake(session)


def suspend_abandoned(host: Host, session: Session) -> None:
    """Take an idle session's slot, if nobody came back and there is host memory for its state."""
    copy = session.require_copy()
    if session.host_copy is not None or copy.slot.layout.region_bytes > host.settings.suspend_bytes:
        return
    with host.sessions.verb(session.session_id, 0.0):
        session.halt(0.0)
        try:
            _to_host(host, session, abandoned=True)
        finally:
            session.go()
            host.scheduler.wake(session)


def resume(host: Host, session_id: str, timeout_s: float) -> tuple[Session, Resumed]:
    """Live again, in a slot.

    Raises:
        Exhausted: MEMORY_BUDGET, there is no room for a slot; the session stays suspended.
        Owned: a move has it.
        DataLoss: the bytes in the slot are not those that were suspended; nothing is played, the host copy is kept.
    """
    host.sessions.get(session_id)
    with host.sessions.verb(session_id, timeout_s) as session:
        session.require_copy()
        session.ownership.require_at_rest("resume")
        resumed = bring_back(host, session)
        with session.cond:
            session.ownership = session.ownership.wake()
            session.away_since_s = time.monotonic()
    host.scheduler.wake(session)
    return session, resumed


def bring_back(host: Host, session: Session) -> Resumed:
    """Into a slot again, if the state is in host memory; whether the session is suspended stays as it is.

    Holder of `verbs`. Raises as `resume` does.
    """
    held, copy = session.host_copy, session.require_copy()
    if held is None:
        return Resumed(0.0, 0.0)
    layout, what = copy.slot.layout, f"resuming session {session.session_id}"
    slot = Slot(layout, host.slot_memory(session.session_id, layout.region_bytes, what), host.device)
    started_s = time.monotonic()
    try:
        _fill(host, session.session_id, held, slot.arena)
        copied_s = time.monotonic()
        try:
            loaded = load(copy.engine, copy.preset, slot)
        except Exception as error:
            _log.error("the engine refused its own state", session_id=session.session_id, exc_info=True)
            raise Internal(
                f"session {session.session_id} stays suspended: its bytes are right, but make no session: {error}",
                reason="REHYDRATION_FAILED",
            ) from None
    except BaseException:
        slot.close()
        raise
    resumed = Resumed(copied_s - started_s, time.monotonic() - copied_s)
    with session.cond:
        session.copy, session.runner, session.host_copy = replace(copy, slot=slot), loaded.runner, None
    held.buffer.give_back(unmapped=True)
    _log.info("resumed", session_id=session.session_id, copy_s=resumed.copy_s, load_s=resumed.load_s)
    return resumed


def _to_host(host: Host, session: Session, *, abandoned: bool = False) -> HostCopy:
    """Holder of `verbs`, with the session halted."""
    copy = session.require_copy()
    size_bytes = copy.slot.layout.region_bytes
    if size_bytes > host.settings.suspend_bytes:
        raise Unsupported(
            f"a state of {size_bytes} bytes cannot be suspended: suspend_bytes of this host is "
            f"{host.settings.suspend_bytes}",
            reason="SUSPEND_OFF",
            numbers={"state_bytes": size_bytes, "suspend_bytes": host.settings.suspend_bytes},
        )
    with session.cond:
        _require_unwanted(host, session, abandoned=abandoned)
    buffer = host.suspended.lend(size_bytes, f"suspending session {session.session_id}")
    try:
        session.flatten()
        started_s = time.monotonic()
        crcs = _saved(session.session_id, copy, buffer)
        held = HostCopy(buffer, crcs, time.monotonic() - started_s, size_bytes)
        with session.cond:
            # Whoever came while it was copied.
            _require_unwanted(host, session, abandoned=abandoned)
            player, registered = session.stream, session.registered
            session.ownership = session.ownership.set_aside(registered[0] if registered is not None else "")
            session.host_copy, session.runner, session.stream = held, None, None
            if player is not None:
                session.away_since_s = time.monotonic()
    except BaseException:
        buffer.give_back(unmapped=True)
        raise
    if registered is not None:
        host.regions.revoke(registered[0])
    copy.slot.close()
    if player is not None:
        player.finish(ended("SUSPENDED"))
    _log.info("suspended", session_id=session.session_id, copy_s=held.copy_s, freed_bytes=size_bytes)
    return held


def _require_unwanted(host: Host, session: Session, *, abandoned: bool) -> None:
    """Refuse to take the slot of a session that a move has mapped, or whose player is back. Holder of `cond`."""
    by = "a move that has registered" if session.in_a_move(host.settings.stage_ttl_s) else ""
    if abandoned and session.stream is not None:
        by = "its player"
    if by:
        raise Owned(
            f"session {session.session_id} is wanted by {by}; ask again later",
            reason="SESSION_WANTED",
            retry_after_s=1.0,
        )


def _saved(session_id: str, copy: Copy, buffer: Buffer) -> tuple[int, ...]:
    pieces = pieces_of(copy.slot.layout.region_bytes)
    with buffer.using() as address:
        saved = copy.slot.arena.save(address, pieces)
    bad = [index for index, (left, there) in enumerate(zip(saved.crcs, saved.read_back, strict=True)) if left != there]
    if bad:
        raise DataLoss(
            f"the host copy of session {session_id} is not what its slot has, in {len(bad)} of {len(pieces)} pieces, "
            f"first {bad[0]}: it is not suspended",
            reason="HOST_COPY_DIFFERS",
            numbers={"pieces": len(bad), "first": bad[0]},
        )
    return saved.crcs


def _fill(host: Host, session_id: str, held: HostCopy, arena: Memory) -> None:
    """Every piece from the host copy, once more what does not arrive as it left. Raises DataLoss."""
    pieces = pieces_of(arena.size_bytes)
    wanted: Sequence[int] = range(len(pieces))
    with closing(host.device.read_from(held.buffer)) as source:
        for _ in range(2):
            chosen = [pieces[index] for index in wanted] if len(wanted) < len(pieces) else pieces
            found = source.pull(arena, chosen, flip=(), wanted=lambda: True).crcs
            wanted = [piece.index for piece, crc in zip(chosen, found, strict=True) if held.crcs[piece.index] != crc]
            if not wanted:
                return
    raise DataLoss(
        f"session {session_id} stays suspended: {len(wanted)} of {len(pieces)} pieces, first {wanted[0]}, do not come "
        "back into a slot as they left it",
        reason="HOST_COPY_DIFFERS",
        numbers={"pieces": len(wanted), "first": wanted[0]},
    )


@lru_cache(maxsize=64)
def pieces_of(size_bytes: int) -> tuple[Chunk, ...]:
    """A region in pieces; the same ones each time, so that the device makes their schedule once."""
    starts = range(0, size_bytes, PIECE_BYTES)
    return tuple(Chunk(i, at, min(PIECE_BYTES, size_bytes - at)) for i, at in enumerate(starts))

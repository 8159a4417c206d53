"""A live session looked at while it plays: checksums of its pieces at block boundaries, and what the codec makes of it.

The player decides when a block is played; the session is held up after each one only until its pieces are summed, on a
thread of the inspection's own, and the serving thread plays other sessions meanwhile. Nothing here waits for whoever
asked: what it has not taken yet is kept, and bounded.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

import torch

from enginehost.host import Host
from enginehost.ownership import State
from enginehost.session import Copy, Session
from worldline.errors import BadRequest, Exhausted, Owned, TimedOut, WrongState
from worldline.instruments import compress
from worldline.instruments.pieces import Pieces, cut, default_piece_bytes
from worldline.instruments.snapshot import Boundary, Coded, Subject

MAX_BLOCKS = 1024
# Of all boundaries together: 32 MiB.
MAX_CHECKSUMS = 1 << 23

Found: TypeAlias = "Subject | Boundary | tuple[Coded, ...]"


@dataclass(frozen=True, slots=True)
class Inspect:
    """What is asked for. `piece_bytes` 0: what suits the state."""

    session_id: str
    blocks: int
    piece_bytes: int
    one_in: int


class Inspections:
    """One at a time on a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._free = threading.BoundedSemaphore(1)

    def run(self, wanted: Inspect, timeout_s: float, on_end: Callable[[Callable[[], None]], bool]) -> Iterator[Found]:
        """The subject, its boundaries, and what the codec makes of the last one.

        `on_end` is given what to call when the caller has left, and says whether it will be.

        Raises:
            BadRequest: too many blocks or pieces.
            Exhausted: another session is being inspected.
            Owned: a move has the session.
            TimedOut: its player did not play all blocks in time.
            WrongState: it is not live here (any more).
        """
        if not 1 <= wanted.blocks <= MAX_BLOCKS:
            what = f"{wanted.blocks} blocks; 1 to {MAX_BLOCKS} are looked at"
            raise BadRequest(what, violations={"blocks": what})
        session = self._host.sessions.get(wanted.session_id)
        copy = session.require_copy()
        layout = copy.slot.layout
        pieces = cut(layout, wanted.piece_bytes or default_piece_bytes(layout.region_bytes), wanted.one_in)
        count = len(pieces.chunks) * (wanted.blocks + 1)
        if count > MAX_CHECKSUMS:
            what = f"{count} checksums; at most {MAX_CHECKSUMS} are taken: ask for larger pieces or fewer blocks"
            raise BadRequest(what, violations={"piece_bytes": what}, numbers={"checksums": count})
        if not self._free.acquire(blocking=False):
            raise Exhausted(
                f"engine host {self._host.host_id} inspects another session",
                reason="INSPECTING",
                violations={"inspections": "one at a time"},
                retry_after_s=1.0,
            )
        try:
            watch = _Watch(self._host, session, copy, pieces, wanted.blocks, time.monotonic() + timeout_s)
            if not on_end(watch.leave):
                watch.leave()
            yield from watch.found()
        finally:
            self._free.release()


class _Watch:
    """One inspection's thread."""

    def __init__(self, host: Host, session: Session, copy: Copy, pieces: Pieces, blocks: int, until_s: float) -> None:
        self._host = host
        self._session = session
        self._copy = copy
        self._pieces = pieces
        self._places = compress.places(copy.slot.layout)
        self._blocks = blocks
        self._until_s = until_s
        self._left = False
        self._pauses = False
        self._queue: SimpleQueue[Found | Exception | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="inspection", daemon=True)

    def leave(self) -> None:
        """Nobody wants more. Any thread."""
        with self._session.cond:
            self._left = True
            self._session.cond.notify_all()

    def found(self) -> Iterator[Found]:
        """What is found, as it is found."""
        self._thread.start()
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.leave()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._host.device.serve()
            self._host.device.prepare(self._pieces.chunks)
            self._watch()
        except Exception as error:
            self._queue.put(error)
        finally:
            if self._pauses:
                self._session.pause_at(None)
                self._host.scheduler.wake(self._session)
            self._queue.put(None)

    def _watch(self) -> None:
        boundary, sample = self._look(None, last=False)
        for number in range(self._blocks):
            self._queue.put(boundary)
            if not self._played(boundary.next_block):
                return
            boundary, sample = self._look(time.monotonic(), last=number + 1 == self._blocks)
        self._queue.put(boundary)
        parts = torch.split(sample, [place.size_bytes for place in self._places])
        samples = {place: part.numpy().tobytes() for place, part in zip(self._places, parts, strict=True)}
        self._queue.put(tuple(compress.code(self._copy.slot.layout, samples)))

    def _played(self, block: int) -> bool:
        """Wait until block `block` is played. False: nobody wants more."""
        session = self._session
        with session.cond:
            came = session.cond.wait_for(
                lambda: self._left or session.copy is None or session.next_block > block, self._remaining_s()
            )
            if self._left:
                return False
            session.require_copy()
        if not came:
            raise TimedOut(
                f"block {block} of session {session.session_id} was not played in time: is anybody playing it?",
                reason="NOT_PLAYED",
                numbers={"block": block},
            )
        return True

    def _look(self, still_since_s: float | None, *, last: bool) -> tuple[Boundary, torch.Tensor]:
        """Sum the pieces at a block boundary, then let the session play one block more; after the last, as it likes.

        `still_since_s`: when it came to this boundary; None: this is the first look, at whatever boundary is next.
        """
        host, slot = self._host, self._copy.slot
        with host.sessions.verb(self._session.session_id, self._remaining_s()) as session:
            session.halt(self._remaining_s())
            since_s = time.monotonic() if still_since_s is None else still_since_s
            try:
                self._require_live(session)
                if still_since_s is None:
                    self._queue.put(self._subject(session))
                session.flatten()
                crcs = array("I", slot.crcs(self._pieces.chunks).chunks)
                sample = self._sample() if last else torch.empty(0, dtype=torch.uint8)
                session.pause_at(None if last else session.next_block + 1)
                self._pauses = not last
                return Boundary(session.next_block, crcs, time.monotonic() - since_s), sample
            finally:
                session.go()
                host.scheduler.wake(session)

    def _require_live(self, session: Session) -> None:
        with session.cond:
            owner = session.ownership
            if session.require_copy() is not self._copy:
                raise WrongState(f"session {session.session_id} lies in another slot by now: inspect it again")
        if owner.move_id:
            raise Owned(
                f"move {owner.move_id} has session {session.session_id}: inspect it when the move is over",
                retry_after_s=1.0,
                resource=("session", session.session_id),
            )
        if owner.state is not State.LIVE:
            raise WrongState(f"session {session.session_id} is {owner.state.name}; only a live one is inspected")

    def _subject(self, session: Session) -> Subject:
        runner, descriptor = session.runner, self._copy.descriptor
        return Subject(
            name=session.session_id,
            engine=descriptor.engine,
            preset=descriptor.preset,
            layout=self._copy.slot.layout,
            piece_bytes=self._pieces.piece_bytes,
            cold_paths=frozenset(runner.cold_paths() if runner is not None else ()),
            dirty_bytes_per_block=session.dirty_bytes_per_block,
            block_s=session.block_s,
        )

    def _sample(self) -> torch.Tensor:
        """What the codec is tried on, one place after another, fetched at once."""
        slot = self._copy.slot
        with slot.device.aside():
            base = slot.arena.tensor()
            parts = [base[place.offset : place.offset + place.size_bytes] for place in self._places]
            return torch.cat([base[:0], *parts]).cpu()

    def _remaining_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

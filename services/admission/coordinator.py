"""All open moves: a thread each, and what concerns several of them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from admission.active import ActiveMove, Means, cannot_cancel
from admission.effects import Route
from admission.fleet import Fleet
from admission.journal_rows import Caps, Lease
from admission.machine import Event
from admission.record import MoveRecord
from admission.workers import Workers
from worldline.errors import Exhausted, NotFound


class Coordinator:
    """Runs moves. A move is in the journal before its thread starts."""

    def __init__(self, means: Means, fleet: Fleet) -> None:
        self._means = means
        self._fleet = fleet
        self._lock = threading.Lock()
        self._active: dict[str, ActiveMove] = {}
        self._workers = Workers("move")

    def open(self, record: MoveRecord, lease: Lease, route: Route, asked_s: float) -> MoveRecord:
        """Journal a new move and its lease, and start it. `asked_s`: when it was asked for, monotonic seconds.

        Raises:
            Exhausted: too many open moves, or moves into its receiver. Owned: another move has the session.
            SessionLost: it is lost by now.
        """
        with self._lock:
            if len(self._active) >= self._means.settings.max_moves:
                raise Exhausted(
                    f"{len(self._active)} moves are open, at most {self._means.settings.max_moves} may be",
                    reason="TOO_MANY_MOVES",
                    retry_after_s=1.0,
                )
        mover = self._fleet.mover(route.destination_mover)
        caps = Caps(self._means.settings.receiver_cap, mover.facts.max_receives if mover else 0)
        record = self._means.journal.add_move(record, replace(lease, mover_id=route.destination_mover), caps)
        record = replace(record, stages=replace(record.stages, admission_s=time.monotonic() - asked_s))
        self.start(record, route)
        # Whoever died between the decision and now was not told of this move.
        for host in (record.source, record.destination):
            if self._fleet.dead(host.host_id, host.incarnation):
                self.died(host.host_id, host.incarnation)
        return record

    def start(self, record: MoveRecord, route: Route | None, news: tuple[Event, ...] = ()) -> None:
        """Start the thread of a journaled move."""
        active = ActiveMove(self._means, record, route, news)
        with self._lock:
            self._active[record.move_id] = active
        self._workers.run(lambda: self._run(active))

    def _run(self, active: ActiveMove) -> None:
        try:
            active.run()
        finally:
            with self._lock:
                del self._active[active.record.move_id]
            self._means.changed()

    def record(self, move_id: str) -> MoveRecord:
        """One move, open or closed. Raises NotFound."""
        active = self._find(move_id)
        record = active.record if active else self._means.journal.move(move_id)
        if record is None:
            raise NotFound(f"there is no move {move_id}", reason="UNKNOWN_MOVE", resource=("move", move_id))
        return record

    def records(self) -> list[MoveRecord]:
        """The open moves as they are now."""
        with self._lock:
            return [active.record for active in self._active.values()]

    def newest(self, record: MoveRecord) -> MoveRecord:
        """The record as it is now, for one that was read from the journal."""
        active = self._find(record.move_id)
        return active.record if active else record

    def _find(self, move_id: str) -> ActiveMove | None:
        with self._lock:
            return self._active.get(move_id)

    def cancel(self, move_id: str) -> MoveRecord:
        """Cancel a move that is in OPEN. Raises NotFound, WrongState."""
        active = self._find(move_id)
        if active is not None:
            active.cancel()
            return active.record
        record = self.record(move_id)
        if record.state.reason != "CANCELLED":
            raise cannot_cancel(record)
        return record

    def died(self, host_id: str, incarnation: int) -> list[str]:
        """Incarnations of a host up to this one are proven dead. Returns the moves that this lets go on."""
        with self._lock:
            moves = list(self._active.values())
        return [active.record.move_id for active in moves if active.died(host_id, incarnation)]

    def stop(self, grace_s: float = 2.0) -> None:
        """Stop all threads; their moves stay open in the journal."""
        with self._lock:
            moves = list(self._active.values())
        for active in moves:
            active.stop()
        self._workers.stop(grace_s)

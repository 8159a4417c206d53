"""What the moves in flight hold at their destinations and use of the wire, as the next decision sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from admission.fleet import Fleet, Host
from admission.journal import Journal
from admission.journal_rows import Lease
from admission.machine import Phase
from admission.record import MoveRecord
from admission.rules import InFlight, PortMove

# A move in flight that is past its prediction is expected to take at least this much longer.
_SOONEST_S = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, the mover that its bytes come in through, and what it means to the next move.

    `record` is its move as it is now; None for a moment, while that move begins or ends.
    """

    lease: Lease
    mover_id: str
    move: InFlight
    record: MoveRecord | None

    def on_port(self, bandwidth_Bps: float) -> PortMove:
        """As the fleet test sees it: it may take what its plan allows, and takes what it was predicted to."""
        state_bytes, record = self.lease.slot_bytes, self.record
        if record is None or record.plan is None:
            return PortMove(self.lease.move_id, state_bytes, 0.0, self.move.left_s)
        state_bytes -= record.plan.made_bytes
        setup_s = max(record.verdict.predicted_s - state_bytes / bandwidth_Bps, 0.0)
        horizon_s = min(record.plan.deadline_s, record.plan.max_freeze_s)
        return PortMove(record.move_id, state_bytes, horizon_s, setup_s)


@dataclass(frozen=True, slots=True)
class Traffic:
    """All leases, and those of moves that still receive by host and by mover; `out_of_mover`: moves on the wire."""

    held: list[Held] = field(default_factory=list)
    into_host: dict[str, list[Held]] = field(default_factory=dict)
    into_mover: dict[str, list[Held]] = field(default_factory=dict)
    out_of_mover: dict[str, list[Held]] = field(default_factory=dict)

    def opposite(self, source_mover: str, destination_mover: str) -> tuple[InFlight, ...]:
        """Moves on the wire out of the destination's node or into the source's; none for a move within a node."""
        if source_mover == destination_mover:
            return ()
        out = self.out_of_mover.get(destination_mover, [])
        into = [item for items in self.out_of_mover.values() for item in items if item.mover_id == source_mover]
        return tuple({item.move.move_id: item.move for item in (*out, *into)}.values())

    def leaving(self, source_mover: str, destination_mover: str) -> tuple[InFlight, ...]:
        """Moves on the wire out of the source's node; none for a move within a node."""
        if source_mover == destination_mover:
            return ()
        return tuple(item.move for item in self.out_of_mover.get(source_mover, []))

    def free_bytes(self, destination: Host, now_s: float) -> int:
        """Bytes free at the destination for one more session."""
        unix_s, silent_s = time.time(), destination.silent_s(now_s)
        # A lease younger than the host's last word is not in its free bytes yet.
        unseen = sum(
            item.lease.slot_bytes
            for item in self.held
            if item.lease.host_id == destination.host_id and unix_s - item.lease.begins_s < silent_s
        )
        return max(destination.status.free_bytes - unseen, 0)


def traffic_now(journal: Journal, fleet: Fleet, open_moves: Sequence[MoveRecord], stall_s: float) -> Traffic:
    """The traffic at this moment. A stalled move is looked at again after as long as it was silent, or `stall_s`."""
    unix_s, found = time.time(), Traffic()
    records = {record.move_id: record for record in open_moves}
    for lease in journal.leases():
        record = records.get(lease.move_id)
        waits = record is not None and record.stalled
        left_s = max(unix_s - lease.ends_s, stall_s) if waits else max(lease.ends_s - unix_s, _SOONEST_S)
        mover_id = lease.mover_id or fleet.host(lease.host_id).facts.mover_id
        item = Held(lease, mover_id, InFlight(lease.move_id, left_s, waits, lease.slot_bytes), record)
        found.held.append(item)
        if not lease.receives:
            continue
        found.into_host.setdefault(lease.host_id, []).append(item)
        found.into_mover.setdefault(mover_id, []).append(item)
        if record is not None and record.phase is Phase.OPEN:
            out_of = fleet.host(record.source.host_id).facts.mover_id
            if out_of != mover_id:
                found.out_of_mover.setdefault(out_of, []).append(item)
    return found

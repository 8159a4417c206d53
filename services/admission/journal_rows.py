"""The rows of the journal as values. A move has columns for what is asked by SQL or secret; the rest is its Move."""

from __future__ import annotations

from dataclasses import dataclass, replace

from admission.machine import EventKind, Phase, State, Transition
from admission.record import MoveRecord, move_to
from admission.rules import Mode
from worldline import wire
from worldline.move import HostRef
from worldline.v1 import move_pb2


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Who owns a session. `info` is the serialized SessionInfo that was last journaled; `move_id` is empty if none."""

    session_id: str
    host_id: str
    incarnation: int
    epoch: int
    lost: bool
    move_id: str
    info: bytes


@dataclass(frozen=True, slots=True)
class HostRow:
    """The highest incarnation of a host and whether an operator fenced it; `registration` is serialized."""

    host_id: str
    incarnation: int
    fenced: bool
    registration: bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """What a move holds at its destination; Unix seconds.

    `receives`: it takes one of the receiver's places. A move that is being given up only holds its bytes.
    """

    move_id: str
    host_id: str
    slot_bytes: int
    begins_s: float
    ends_s: float
    receives: bool = True


@dataclass(frozen=True, slots=True)
class PathRow:
    """What was measured of a path."""

    source_mover: str
    destination_mover: str
    transport: str
    bandwidth_Bps: float
    setup_s: float
    moves: int


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Which host a placement was asked of; it is journaled before it is asked."""

    request_id: str
    request_digest: bytes
    host_id: str
    incarnation: int


MOVE_COLUMNS = (
    "move_id",
    "request_id",
    "request_digest",
    "session_id",
    "phase",
    "closed",
    "source_dead",
    "destination_dead",
    "source_incarnation",
    "source_address",
    "destination_incarnation",
    "destination_address",
    "grant_token",
    "traceparent",
    "move",
)

Cell = str | int | float | bytes
Row = tuple[Cell, ...]


def move_to_row(record: MoveRecord) -> Row:
    """The cells of `MOVE_COLUMNS`; transitions have their own table."""
    message = move_to(replace(record, transitions=()))
    return (
        record.move_id,
        record.request_id,
        record.request_digest,
        record.session_id,
        int(record.phase),
        int(record.phase.closed),
        int(record.state.source_dead),
        int(record.state.destination_dead),
        record.source.incarnation,
        record.source.address,
        record.destination.incarnation,
        record.destination.address,
        record.grant,
        record.traceparent,
        message.SerializeToString(),
    )


def move_from_row(row: tuple, transitions: tuple[Transition, ...]) -> MoveRecord:  # type: ignore[type-arg]
    """The record of (sequence, *MOVE_COLUMNS)."""
    cells = dict(zip(("sequence", *MOVE_COLUMNS), row, strict=True))
    message = move_pb2.Move.FromString(cells["move"])
    has = message.HasField
    return MoveRecord(
        move_id=cells["move_id"],
        request_id=cells["request_id"],
        request_digest=cells["request_digest"],
        session_id=cells["session_id"],
        source=HostRef(message.source_host_id, cells["source_incarnation"], cells["source_address"]),
        destination=HostRef(
            message.destination_host_id, cells["destination_incarnation"], cells["destination_address"]
        ),
        epoch=message.epoch,
        mode=Mode(message.mode),
        state_bytes=message.total_bytes,
        verdict=wire.verdict_from(message.verdict),
        state=State(
            Phase(cells["phase"]),
            bool(cells["source_dead"]),
            bool(cells["destination_dead"]),
            freed=bool(cells["source_dead"]),
            session_closed=any(line.event == EventKind.SOURCE_CLOSED.value for line in transitions),
            reason=message.reason,
            message=message.message,
        ),
        requested_at_s=message.requested_at_s,
        sequence=cells["sequence"],
        plan=wire.plan_from(message.plan) if has("plan") else None,
        trace_id=message.trace_id,
        traceparent=cells["traceparent"],
        grant=cells["grant_token"],
        source_receipt=wire.receipt_from(message.source_receipt) if has("source_receipt") else None,
        destination_receipt=wire.receipt_from(message.destination_receipt) if has("destination_receipt") else None,
        stages=wire.stages_from(message.stages),
        transitions=transitions,
        stage=message.stage,
        stalled=message.stalled,
        landed_bytes=message.landed_bytes,
        retried_chunks=message.retried_chunks,
    )


def session_from_row(row: tuple[str, str, int, int, int, str, bytes]) -> SessionRow:
    """The value of a row of `sessions`."""
    session_id, host_id, incarnation, epoch, lost, move_id, info = row
    return SessionRow(session_id, host_id, incarnation, epoch, bool(lost), move_id, info)

"""The rows of the journal as values. A move has columns for what is asked by SQL or secret; the rest is its Move."""

from __future__ import annotations

from dataclasses import dataclass

from admission.estimators import EstimateRow
from admission.journal_database import Cell, Row
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
    `mover_id`: the mover that the bytes come in through; "" if it is not known.
    """

    move_id: str
    host_id: str
    slot_bytes: int
    begins_s: float
    ends_s: float
    receives: bool = True
    mover_id: str = ""


@dataclass(frozen=True, slots=True)
class Caps:
    """How many moves may come in at once, into a lease's engine host and through its mover; 0 is no bound."""

    receiver: int = 0
    mover: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Which host a placement was asked of; it is journaled before it is asked."""

    request_id: str
    request_digest: bytes
    host_id: str
    incarnation: int


SESSION_COLUMNS = ("session_id", "host_id", "incarnation", "epoch", "lost", "move_id", "info")

# What of a move is written once, and what at each transition.
_FIXED = (
    "move_id",
    "request_id",
    "request_digest",
    "session_id",
    "source_incarnation",
    "source_address",
    "destination_incarnation",
    "destination_address",
    "traceparent",
    "move",
    "receipts",
)
_CHANGING = ("phase", "closed", "source_dead", "destination_dead", "grant_token", "progress")
MOVE_COLUMNS = (*_FIXED, *_CHANGING)


def fixed_cells(record: MoveRecord) -> dict[str, Cell]:
    """The cells of a new move that stay as they are. `receipts` come later, by `receipts_cell`."""
    return {
        "move_id": record.move_id,
        "request_id": record.request_id,
        "request_digest": record.request_digest,
        "session_id": record.session_id,
        "source_incarnation": record.source.incarnation,
        "source_address": record.source.address,
        "destination_incarnation": record.destination.incarnation,
        "destination_address": record.destination.address,
        "traceparent": record.traceparent,
        "move": move_to(record, brief=True).SerializeToString(),
        "receipts": b"",
    }


def receipts_cell(record: MoveRecord) -> bytes:
    """Both receipts, as they follow `move`."""
    message = move_pb2.Move()
    if record.source_receipt is not None:
        message.source_receipt.CopyFrom(wire.receipt_to(record.source_receipt))
    if record.destination_receipt is not None:
        message.destination_receipt.CopyFrom(wire.receipt_to(record.destination_receipt))
    return message.SerializeToString()


def changing_cells(record: MoveRecord) -> dict[str, Cell]:
    """The cells that a transition changes."""
    # Read after `move`: what is set here counts. None of it ever goes back to nothing.
    progress = move_pb2.Move(
        stages=wire.stages_to(record.stages),
        reason=record.state.reason,
        message=record.state.message,
        landed_bytes=record.landed_bytes,
        retried_chunks=record.retried_chunks,
        stage=record.stage,
        wire_at_s=record.wire_at_s,
    )
    return {
        "phase": int(record.phase),
        "closed": int(record.phase.closed),
        "source_dead": int(record.state.source_dead),
        "destination_dead": int(record.state.destination_dead),
        "grant_token": record.grant,
        "progress": progress.SerializeToString(),
    }


def move_from_row(row: Row, transitions: tuple[Transition, ...]) -> MoveRecord:
    """The record of (sequence, *MOVE_COLUMNS)."""
    cells = dict(zip(("sequence", *MOVE_COLUMNS), row, strict=True))
    message = move_pb2.Move.FromString(cells["move"] + cells["receipts"] + cells["progress"])
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
        decided_at_s=message.decided_at_s,
        wire_at_s=message.wire_at_s,
    )


def estimate_cells(row: EstimateRow) -> dict[str, Cell]:
    """The cells of a row of `estimates`."""
    return {
        "source_mover": row.source_mover,
        "destination_mover": row.destination_mover,
        "idiom": row.idiom,
        "quantity": row.quantity,
        "mean": row.mean,
        "deviation": row.deviation,
        "weight": row.weight,
        "suspect_mean": row.suspect_mean,
        "suspects": row.suspects,
        "sampled_at_s": row.sampled_at_s,
    }


def session_from_row(row: Row) -> SessionRow:
    """The value of a row of `sessions`."""
    session_id, host_id, incarnation, epoch, lost, move_id, info = row
    return SessionRow(session_id, host_id, incarnation, epoch, bool(lost), move_id, info)

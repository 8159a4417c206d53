"""A move as admission keeps it: one immutable value, replaced at each change; and its form on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from admission.machine import Phase, State, Transition
from admission.rules import Mode
from worldline import wire
from worldline.move import HostRef, StageTimes
from worldline.plan import Plan
from worldline.receipt import Receipt
from worldline.v1 import move_pb2
from worldline.verdict import Verdict


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One move. `source` and `destination` are pinned to the incarnations it began with; `sequence` orders moves.

    `stage`, `stalled`, bytes and retries are progress: they are not journaled at each change. `decided_at_s` and
    `wire_at_s` (0 before its bytes were on the wire) are Unix seconds: the gap between them is what a decision waits.
    """

    move_id: str
    request_id: str
    request_digest: bytes
    session_id: str
    source: HostRef
    destination: HostRef
    epoch: int
    mode: Mode
    state_bytes: int
    verdict: Verdict
    state: State
    requested_at_s: float
    sequence: int = 0
    plan: Plan | None = None
    trace_id: str = ""
    traceparent: str = ""
    grant: bytes = b""
    source_receipt: Receipt | None = None
    destination_receipt: Receipt | None = None
    stages: StageTimes = field(default_factory=StageTimes)
    transitions: tuple[Transition, ...] = ()
    stage: str = ""
    stalled: bool = False
    landed_bytes: int = 0
    retried_chunks: int = 0
    decided_at_s: float = 0.0
    wire_at_s: float = 0.0

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self.state.phase


def move_to(record: MoveRecord, *, brief: bool = False) -> move_pb2.Move:
    """To the wire; `brief` leaves out receipts and transitions."""
    message = move_pb2.Move(
        move_id=record.move_id,
        request_id=record.request_id,
        session_id=record.session_id,
        source_host_id=record.source.host_id,
        destination_host_id=record.destination.host_id,
        state=int(record.phase),  # type: ignore[arg-type]
        stalled=record.stalled,
        verdict=wire.verdict_to(record.verdict),
        plan=wire.plan_to(record.plan) if record.plan else None,
        epoch=record.epoch,
        stages=wire.stages_to(record.stages),
        reason=record.state.reason,
        message=record.state.message,
        landed_bytes=record.landed_bytes,
        total_bytes=record.state_bytes,
        retried_chunks=record.retried_chunks,
        trace_id=record.trace_id,
        requested_at_s=record.requested_at_s,
        mode=int(record.mode),  # type: ignore[arg-type]
        stage=record.stage,
        decided_at_s=record.decided_at_s,
        wire_at_s=record.wire_at_s,
    )
    if brief:
        return message
    if record.source_receipt is not None:
        message.source_receipt.CopyFrom(wire.receipt_to(record.source_receipt))
    if record.destination_receipt is not None:
        message.destination_receipt.CopyFrom(wire.receipt_to(record.destination_receipt))
    message.transitions.extend(_transitions_to(record.transitions))
    return message


def _transitions_to(lines: Iterable[Transition]) -> list[move_pb2.Transition]:
    return [
        move_pb2.Transition(
            at_s=line.at_s,
            from_state=int(line.before),  # type: ignore[arg-type]
            event=line.event,
            to_state=int(line.after),  # type: ignore[arg-type]
            effects=line.effects,
        )
        for line in lines
    ]

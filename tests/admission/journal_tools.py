"""Sessions, moves and leases for tests of the journal, and a move's way through it."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

from admission.journal import Journal
from admission.journal_database import PostgresUrl
from admission.journal_rows import Lease, SessionRow
from admission.leadership import Candidate, Tenure
from admission.machine import Event, EventKind, Phase, State, Transition, step
from admission.record import MoveRecord
from admission.rules import Mode
from worldline.move import HostRef
from worldline.plan import Placement, Plan
from worldline.verdict import Clause, Kind, Verdict

PLAN = Plan("tcp", 4096, 2, Placement.PIPELINED, 1.0, 2.0, 3.0)


def session(session_id: str = "s-1", host_id: str = "host-a", incarnation: int = 1, epoch: int = 1) -> SessionRow:
    return SessionRow(session_id, host_id, incarnation, epoch, False, "", b"info")


def record(session_id: str = "s-1", phase: Phase = Phase.OPEN, epoch: int = 1) -> MoveRecord:
    return MoveRecord(
        move_id=str(uuid.uuid4()),
        request_id=str(uuid.uuid4()),
        request_digest=b"d" * 32,
        session_id=session_id,
        source=HostRef("host-a", 1, "127.0.0.1:1"),
        destination=HostRef("host-b", 4, "127.0.0.1:2"),
        epoch=epoch,
        mode=Mode.FROZEN,
        state_bytes=8192,
        verdict=Verdict(Kind.ADMIT, (Clause("flux", Kind.ADMIT, "1 > 0", {"a": 1.5}),), 0.0, 0.25, 0.75),
        state=State(phase),
        requested_at_s=1000.5,
        plan=PLAN,
        trace_id="ab" * 16,
        traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        transitions=(Transition(1000.5, phase, "admit", phase, ("mover: move",)),),
        stage=phase.name.lower(),
    )


def lease(of: MoveRecord) -> Lease:
    return Lease(of.move_id, of.destination.host_id, of.state_bytes, 1000.5, 1001.0)


def advance(journal: Journal, before: MoveRecord, *kinds: EventKind) -> MoveRecord:
    for kind in kinds:
        state, effects = step(before.state, Event(kind, "R", "m"))
        line = Transition(1001.0, before.phase, kind.value, state.phase, tuple(effect.value for effect in effects))
        before = replace(before, state=state, transitions=(*before.transitions, line), grant=b"g" * 32)
        journal.save_move(before, 1)
    return before


def compact(journal: Journal) -> None:
    while journal.compact():
        pass


def register(journal: Journal) -> None:
    journal.register_host("host-a", 1, b"a")
    journal.register_host("host-b", 4, b"b")


def lead(url: str, address: str = "a:1", lease_s: float = 3.0) -> Tenure:
    """The seat of a journal on a server, once it is free."""
    tenure = Candidate(PostgresUrl(url), lease_s, address).stand(threading.Event(), lambda: None)
    assert tenure is not None
    return tenure

"""What a move asks of movers and hosts, and what their answers mean to it. Every ask may be repeated.

An ask that brings no answer raises `NoAnswer`: nothing is known of its outcome, and it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import grpc

from admission.coding import CodedMove, coded_move
from admission.line import Interrupted, Line
from admission.machine import Effect, Event, EventKind
from admission.record import MoveRecord
from worldline import errors, rpc, wire
from worldline.errors import DataLoss, WorldlineError
from worldline.manifest import Manifest
from worldline.move import TOKEN_BYTES, Fault, Fence, HostRef
from worldline.receipt import Receipt, require_match
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc
from worldline.v1 import move_pb2
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1 import mover_service_pb2_grpc as mover_grpc

R = TypeVar("R")

# Re-verifying and rehydrating a state is at least this fast, bytes/s: what a commit's budget grows by.
_COMMIT_BPS = 0.5e9
# The host did not speak, or will be followed by a new incarnation.
_SILENT = (errors.Unavailable, errors.TimedOut, errors.Cancelled, errors.StaleFence)
# Errors that leave the outcome open. Everything else is the host's own refusal.
_OPEN_ENDED = (
    *_SILENT,
    errors.Exhausted,
    errors.Unauthenticated,
    errors.NotAllowed,
    errors.Unsupported,
    errors.Internal,
)
_LIVE = (host_pb.SESSION_STATE_LIVE, host_pb.SESSION_STATE_SUSPENDED)
_EMPTY = (host_pb.SESSION_STATE_UNSPECIFIED, host_pb.SESSION_STATE_GONE)


class NoAnswer(Exception):
    """An ask without an answer; `error` says why. It is asked again."""

    def __init__(self, error: WorldlineError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Answer:
    """What an ask brought: the event, and what it carries besides."""

    event: Event
    grant: bytes = b""
    source_receipt: Receipt | None = None
    destination_receipt: Receipt | None = None
    coded: CodedMove | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The movers of a move, their addresses, and the faults it is to meet."""

    source_mover: str
    source_address: str
    destination_mover: str
    destination_address: str
    faults: tuple[Fault, ...] = ()

    def with_faults(self, faults: tuple[Fault, ...]) -> Route:
        """The same route with these faults."""
        return replace(self, faults=faults)


@dataclass(frozen=True, slots=True)
class Effects:
    """Asks movers and hosts for one admission process of one term."""

    channels: rpc.Channels
    term: int
    call_timeout_s: float
    public_address: Callable[[str], str]
    _stubs: dict[str, host_grpc.EngineHostServiceStub] = field(default_factory=dict, init=False)

    def expected_s(self, effect: Effect, record: MoveRecord) -> float:
        """Seconds an ask takes because of the state's size."""
        return record.state_bytes / _COMMIT_BPS if effect is Effect.COMMIT else 0.0

    def perform(self, effect: Effect, record: MoveRecord, line: Line) -> Answer:
        """Ask a host. Raises NoAnswer or Interrupted."""
        return _ASKS[effect](self, record, line)

    def move(
        self,
        record: MoveRecord,
        route: Route,
        line: Line,
        timeout_s: float,
        progress: Callable[[mover_pb.MoveResponse], None],
    ) -> Answer:
        """Have the source's mover carry the state; `progress` gets each of its messages. Raises Interrupted."""
        if record.plan is None:
            raise errors.Internal(f"move {record.move_id} has no plan")
        request = mover_pb.MoveRequest(
            fence=self._fence(record, record.source),
            plan=wire.plan_to(record.plan),
            source=wire.host_to(record.source),
            destination=wire.host_to(record.destination),
            destination_mover_address=route.destination_address,
            faults=wire.faults_to(route.faults),
        )
        stub = mover_grpc.MoverServiceStub(self.channels.to(route.source_address))
        last: mover_pb.MoveResponse | None = None
        try:
            with rpc.calling("the source's mover"):
                call = stub.Move(request, timeout=timeout_s)
                line.hold(call)
                for last in call:
                    progress(last)
            line.end()
            if last is None:
                raise DataLoss("the mover ended without receipts", reason="RECEIPT_MISSING")
            source, destination = _receipts(record, last)
        except WorldlineError as error:
            line.end()
            return Answer(Event(EventKind.MOVER_FAILED, error.reason, error.message))
        except Interrupted:
            raise
        except Exception as error:
            # Whatever this is, nothing was committed yet: the move is given up, and the source plays on.
            line.break_off()
            what = f"the mover's answer could not be understood: {type(error).__name__}: {error}"
            return Answer(Event(EventKind.MOVER_FAILED, "INTERNAL", what))
        coded = coded_move(last, record.plan.streams, record.plan.made_bytes)
        return Answer(Event(EventKind.VERIFIED), source_receipt=source, destination_receipt=destination, coded=coded)

    def _fence(self, record: MoveRecord, host: HostRef) -> move_pb2.Fence:
        return wire.fence_to(Fence(record.move_id, record.session_id, record.epoch, host.incarnation, self.term))

    def _stub(self, host: HostRef) -> host_grpc.EngineHostServiceStub:
        # Making a stub costs as much as a call does.
        stub = self._stubs.get(host.address)
        if stub is None:
            stub = self._stubs[host.address] = host_grpc.EngineHostServiceStub(self.channels.to(host.address))
        return stub

    def _ask(self, peer: str, line: Line, start: Callable[[], grpc.CallFuture[R]]) -> R:
        """One unary call that can be broken off. Raises the host's refusal, NoAnswer or Interrupted."""
        try:
            with rpc.calling(peer):
                call = start()
                line.hold(call)
                answer = call.result()
        except grpc.FutureCancelledError:
            line.end()
            raise NoAnswer(errors.Cancelled(f"the call to {peer} was cancelled")) from None
        except WorldlineError as error:
            line.end()
            if isinstance(error, _OPEN_ENDED) or type(error) is WorldlineError:
                raise NoAnswer(error) from error
            raise
        # An answer that came counts, even if the call was to be broken off.
        line.settle()
        return answer

    def _release(self, record: MoveRecord, line: Line) -> Answer:
        request = host_pb.ReleaseRequest(fence=self._fence(record, record.source))
        try:
            answer = self._ask(
                f"source {record.source.host_id}",
                line,
                lambda: self._stub(record.source).Release.future(request, timeout=self.call_timeout_s),
            )
        except WorldlineError as error:
            return Answer(Event(EventKind.RELEASE_REFUSED, error.reason, error.message))
        if answer.resumed:
            return Answer(
                Event(EventKind.RESUMED, "SOURCE_RESUMED", "the source's freeze was over before it was asked to give")
            )
        if len(answer.grant) != TOKEN_BYTES:
            raise NoAnswer(errors.Internal(f"the grant has {len(answer.grant)} bytes, {TOKEN_BYTES} are needed"))
        return Answer(Event(EventKind.GRANTED), grant=answer.grant)

    def _commit(self, record: MoveRecord, line: Line) -> Answer:
        if record.source_receipt is None:
            raise errors.Internal(f"move {record.move_id} has no receipt to commit with")
        request = host_pb.CommitRequest(
            fence=self._fence(record, record.destination),
            grant=record.grant,
            source_receipt=wire.receipt_to(record.source_receipt),
        )
        peer = f"destination {record.destination.host_id}"
        budget_s = self.call_timeout_s + self.expected_s(Effect.COMMIT, record)
        try:
            answer = self._ask(
                peer, line, lambda: self._stub(record.destination).Commit.future(request, timeout=budget_s)
            )
        except DataLoss as error:
            # It has dropped its copy.
            return Answer(Event(EventKind.COMMIT_REFUSED, error.reason, error.message))
        except NoAnswer as missing:
            if isinstance(missing.error, _SILENT):
                raise
            return self._refused(record, line, missing.error)
        except WorldlineError as error:
            return self._refused(record, line, error)
        manifest = wire.manifest_from(answer.manifest)
        if answer.epoch != record.epoch + 1 or manifest.digest != record.source_receipt.manifest_digest:
            raise NoAnswer(
                errors.Internal(
                    f"{peer} took epoch {answer.epoch} of manifest {manifest.digest.hex()[:16]}, "
                    f"not {record.epoch + 1} of {record.source_receipt.manifest_digest.hex()[:16]}"
                )
            )
        return Answer(Event(EventKind.COMMITTED))

    def _refused(self, record: MoveRecord, line: Line, error: WorldlineError) -> Answer:
        """A refusal counts only once the destination has said that it holds nothing that a late commit could take."""
        dropped = self._rollback(record, record.destination, host_pb.ROLLBACK_ACTION_DROP, error.reason, line)
        if dropped.state not in _EMPTY:
            raise NoAnswer(error)
        return Answer(Event(EventKind.COMMIT_REFUSED, error.reason, error.message))

    def _activate(self, record: MoveRecord, line: Line) -> Answer:
        request = host_pb.ActivateRequest(fence=self._fence(record, record.destination))
        self._once_there(
            f"destination {record.destination.host_id}",
            line,
            lambda: self._stub(record.destination).Activate.future(request, timeout=self.call_timeout_s),
        )
        return Answer(Event(EventKind.ACTIVATED))

    def _free(self, record: MoveRecord, line: Line) -> Answer:
        request = host_pb.FreeRequest(
            fence=self._fence(record, record.source),
            destination_host_id=record.destination.host_id,
            destination_public_address=self.public_address(record.destination.host_id),
            destination_epoch=record.epoch + 1,
        )
        self._once_there(
            f"source {record.source.host_id}",
            line,
            lambda: self._stub(record.source).Free.future(request, timeout=self.call_timeout_s),
        )
        return Answer(Event(EventKind.FREED))

    def _once_there(self, peer: str, line: Line, start: Callable[[], grpc.CallFuture[R]]) -> None:
        """Ask until acknowledged. A host that no longer knows the session was asked before: its player closed it."""
        try:
            self._ask(peer, line, start)
        except errors.NotFound:
            return
        except WorldlineError as error:
            raise NoAnswer(error) from error

    def _resume(self, record: MoveRecord, line: Line) -> Answer:
        return self._to_live(record, host_pb.ROLLBACK_ACTION_RESUME, line)

    def _reinstate(self, record: MoveRecord, line: Line) -> Answer:
        return self._to_live(record, host_pb.ROLLBACK_ACTION_REINSTATE, line)

    def _to_live(self, record: MoveRecord, action: host_pb.RollbackAction.ValueType, line: Line) -> Answer:
        answer = self._rollback(record, record.source, action, record.state.reason, line)
        if answer.state in _LIVE:
            return Answer(Event(EventKind.SOURCE_LIVE))
        if answer.state == host_pb.SESSION_STATE_UNSPECIFIED and answer.closed:
            closed = f"session {record.session_id} was closed on host {record.source.host_id} during its move"
            return Answer(Event(EventKind.SOURCE_CLOSED, message=closed))
        if answer.state == host_pb.SESSION_STATE_UNSPECIFIED:
            gone = f"host {record.source.host_id} does not have session {record.session_id}, and did not close it"
            return Answer(Event(EventKind.SOURCE_EMPTY, message=gone))
        raise NoAnswer(errors.WrongState(f"the source answered {_named(answer.state)} when it was asked to be live"))

    def _drop(self, record: MoveRecord, line: Line) -> Answer:
        reason = record.state.reason
        try:
            answer = self._rollback(record, record.destination, host_pb.ROLLBACK_ACTION_DROP, reason, line)
        except NoAnswer as missing:
            # The session lives there without this move, or is another move's: nothing of this one is staged.
            if isinstance(missing.error, errors.WrongState | errors.Owned):
                return Answer(Event(EventKind.DROPPED))
            raise
        if answer.state not in _EMPTY:
            what = f"the destination answered {_named(answer.state)} when it was asked to drop its copy"
            raise NoAnswer(errors.WrongState(what))
        return Answer(Event(EventKind.DROPPED))

    def _rollback(
        self,
        record: MoveRecord,
        host: HostRef,
        action: host_pb.RollbackAction.ValueType,
        reason: str,
        line: Line,
    ) -> host_pb.RollbackResponse:
        """Where the session stands on `host` after the rollback; UNSPECIFIED if it has nothing of it."""
        request = host_pb.RollbackRequest(fence=self._fence(record, host), action=action, reason=reason)
        try:
            return self._ask(
                f"host {host.host_id}",
                line,
                lambda: self._stub(host).Rollback.future(request, timeout=self.call_timeout_s),
            )
        except errors.NotFound:
            return host_pb.RollbackResponse()
        except WorldlineError as error:
            raise NoAnswer(error) from error


_ASKS: dict[Effect, Callable[[Effects, MoveRecord, Line], Answer]] = {
    Effect.RELEASE: Effects._release,
    Effect.COMMIT: Effects._commit,
    Effect.ACTIVATE: Effects._activate,
    Effect.FREE: Effects._free,
    Effect.RESUME: Effects._resume,
    Effect.REINSTATE: Effects._reinstate,
    Effect.DROP: Effects._drop,
}


def _named(state: int) -> str:
    known = host_pb.SessionState.values()
    return host_pb.SessionState.Name(state) if state in known else f"the unknown state {state}"  # type: ignore[arg-type]


def _receipts(record: MoveRecord, last: mover_pb.MoveResponse) -> tuple[Receipt, Receipt]:
    """Both receipts, if they are equal in every field and are of this very move.

    Raises:
        DataLoss: with the field or chunk that differs. BadRequest: a message whose parts do not belong together.
    """
    if record.plan is None or not (last.HasField("source_receipt") and last.HasField("destination_receipt")):
        raise DataLoss("the mover ended without both receipts; nothing is installed", reason="RECEIPT_MISSING")
    source, destination = wire.receipt_from(last.source_receipt), wire.receipt_from(last.destination_receipt)
    manifest: Manifest = wire.manifest_from(last.manifest)
    require_match(source, destination, record.plan.chunks(record.state_bytes))
    expected: dict[str, tuple[object, object]] = {
        "move_id": (source.move_id, record.move_id),
        "epoch": (source.epoch, record.epoch),
        "manifest.epoch": (manifest.epoch, record.epoch),
        "manifest.session_id": (manifest.session_id, record.session_id),
        "manifest_digest": (source.manifest_digest, manifest.digest),
        "layout_digest": (source.layout_digest, manifest.layout_digest),
        "plan_digest": (source.plan_digest, record.plan.digest),
        "size_bytes": (source.size_bytes, record.state_bytes),
        "source.host_id": (source.host_id, record.source.host_id),
        "source.incarnation": (source.incarnation, record.source.incarnation),
        "destination.host_id": (destination.host_id, record.destination.host_id),
        "destination.incarnation": (destination.incarnation, record.destination.incarnation),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            shown = [value.hex()[:16] if isinstance(value, bytes) else value for value in (found, wanted)]
            raise DataLoss(
                f"the receipts are of another move: {name} is {shown[0]}, not {shown[1]}; nothing is installed",
                reason="RECEIPT_MISMATCH",
                numbers={"field": name},
            )
    return source, destination

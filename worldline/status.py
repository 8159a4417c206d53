"""The one place where our errors become gRPC statuses with `google.rpc` details, and back."""

from __future__ import annotations

from typing import TypeVar, cast

import grpc
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from worldline import errors
from worldline.errors import WorldlineError

M = TypeVar("M", bound=message.Message)

DOMAIN = "worldline"
MAX_MESSAGE_CHARS = 2_000

# Most specific first: the first class that an error is an instance of gives its code.
_CODES: tuple[tuple[type[WorldlineError], grpc.StatusCode], ...] = (
    (errors.BadRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.NotAllowed, grpc.StatusCode.PERMISSION_DENIED),
    (errors.SessionLost, grpc.StatusCode.NOT_FOUND),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.Mismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.StaleFence, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.WrongState, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Unmovable, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Precondition, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Owned, grpc.StatusCode.ABORTED),
    (errors.Exhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.DataLoss, grpc.StatusCode.DATA_LOSS),
    (errors.TimedOut, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.Internal, grpc.StatusCode.INTERNAL),
)
_BY_CODE: dict[grpc.StatusCode, type[WorldlineError]] = {
    **{code: kind for kind, code in reversed(_CODES)},
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Precondition,
}


def code_of(error: WorldlineError) -> grpc.StatusCode:
    """The canonical code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def to_status(error: WorldlineError) -> status_pb2.Status:
    """The `google.rpc.Status` of an error, each kind of detail at most once."""
    code = code_of(error)
    metadata = {name: str(value) for name, value in error.numbers.items()}
    metadata["error"] = type(error).__name__
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    details: list[message.Message] = [info]
    if isinstance(error, errors.BadRequest) and error.violations:
        bad = error_details_pb2.BadRequest()
        for field, what in error.violations.items():
            bad.field_violations.add(field=field, description=what)
        details.append(bad)
    elif isinstance(error, errors.Precondition):
        failure = error_details_pb2.PreconditionFailure()
        for subject, what in (error.violations or {error.reason.lower(): error.message}).items():
            failure.violations.add(type=error.reason, subject=subject, description=what)
        details.append(failure)
    elif isinstance(error, errors.Exhausted):
        quota = error_details_pb2.QuotaFailure()
        for subject, what in (error.violations or {error.reason.lower(): error.message}).items():
            quota.violations.add(subject=subject, description=what)
        details.append(quota)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.resource is not None:
        kind, name = error.resource
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type=kind, resource_name=name, description=error.message[:MAX_MESSAGE_CHARS]
            )
        )
    status = status_pb2.Status(
        code=code_pb2.Code.Value(code.name),
        message=error.message[:MAX_MESSAGE_CHARS],
    )
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def from_rpc(error: grpc.RpcError, peer: str) -> WorldlineError:
    """Our error from a failed call to `peer`, with its reason, numbers and details kept."""
    call = cast("grpc.Call", error)  # every RpcError that a stub raises is one
    code = call.code()
    text = call.details() or code.name
    try:
        status = rpc_status.from_call(call)
    except ValueError:
        status = None
    if status is None:
        return _plain(code, text, peer)
    reason, numbers, violations = "", {}, {}
    retry_after_s: float | None = None
    resource: tuple[str, str] | None = None
    for detail in status.details:
        if (info := _unpack(detail, error_details_pb2.ErrorInfo)) is not None:
            reason, numbers = info.reason, dict(info.metadata)
        elif (bad := _unpack(detail, error_details_pb2.BadRequest)) is not None:
            violations = {violation.field: violation.description for violation in bad.field_violations}
        elif (failure := _unpack(detail, error_details_pb2.PreconditionFailure)) is not None:
            violations = {violation.subject: violation.description for violation in failure.violations}
        elif (quota := _unpack(detail, error_details_pb2.QuotaFailure)) is not None:
            violations = {violation.subject: violation.description for violation in quota.violations}
        elif (retry := _unpack(detail, error_details_pb2.RetryInfo)) is not None:
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        elif (about := _unpack(detail, error_details_pb2.ResourceInfo)) is not None:
            resource = (about.resource_type, about.resource_name)
    named = getattr(errors, numbers.pop("error", ""), None)
    ours = isinstance(named, type) and issubclass(named, WorldlineError)
    kind: type[WorldlineError] = cast("type[WorldlineError]", named) if ours else _BY_CODE.get(code, WorldlineError)
    return kind(
        text,
        reason=reason or None,
        numbers=numbers,
        violations=violations,
        retry_after_s=retry_after_s,
        resource=resource,
    )


def _plain(code: grpc.StatusCode, text: str, peer: str) -> WorldlineError:
    """A status that gRPC itself made: it has no details."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.Unavailable(f"{peer} cannot be reached: {text}", reason="PEER_GONE", retry_after_s=1.0)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.TimedOut(f"{peer} did not answer in time: {text}", reason="PEER_SILENT")
    return _BY_CODE.get(code, errors.Internal)(f"{peer}: {text}")


def _unpack(packed: any_pb2.Any, kind: type[M]) -> M | None:
    value = kind()
    return value if packed.Unpack(value) else None

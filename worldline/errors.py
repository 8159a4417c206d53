"""Every error Worldline raises.

WorldlineError
├── BadRequest            a field is wrong
├── Unauthenticated       no or wrong credentials
├── NotAllowed            not permitted
├── NotFound              no such session, move or host
│   └── SessionLost       the session died with its host
├── Precondition          the request is right, the state of things is not
│   ├── Mismatch          fingerprint, layout, manifest or plan differ
│   ├── StaleFence        an old epoch, incarnation or term
│   ├── WrongState        the session or move is in another state
│   └── Unmovable         a leaf that cannot be moved as bytes
├── Owned                 another move owns the session
├── Exhausted             memory, receiver or quota is used up
├── DataLoss              bytes are not what they were: nothing is installed
├── TimedOut              a deadline or the no-progress bound passed
├── Cancelled             somebody asked to stop
├── Unavailable           a peer is gone, silent or draining
├── Unsupported           not built into this release or not enabled on this server
└── Internal              a bug of ours

An error carries what a machine needs beside its message: `reason` (UPPER_SNAKE, stable), `numbers` (every number of
the message), `violations` (field or clause -> what is wrong), `retry_after_s` and `resource`. `worldline.rpc` maps
each class to its gRPC status; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping


class WorldlineError(Exception):
    """Base of all errors.

    Args:
        message: what was wrong, with the numbers, and what to do.
        reason: UPPER_SNAKE, stable; the class's own if not given.
        numbers: the numbers of the message by name.
        violations: field, clause or subject -> what is wrong with it.
        retry_after_s: seconds after which asking again may help; None if it will not.
        resource: (type, name) of what the error is about.
    """

    default_reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        numbers: Mapping[str, str | int | float] | None = None,
        violations: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
        resource: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.numbers = dict(numbers or {})
        self.violations = dict(violations or {})
        self.retry_after_s = retry_after_s
        self.resource = resource


class BadRequest(WorldlineError):
    """A field of the request is wrong."""

    default_reason = "BAD_REQUEST"


class Unauthenticated(WorldlineError):
    """No credentials, or wrong ones."""

    default_reason = "UNAUTHENTICATED"


class NotAllowed(WorldlineError):
    """The caller is known and may not do this."""

    default_reason = "NOT_ALLOWED"


class NotFound(WorldlineError):
    """There is no such session, move or host."""

    default_reason = "NOT_FOUND"


class SessionLost(NotFound):
    """The session died with its host before its host had given it away."""

    default_reason = "SESSION_LOST"


class Precondition(WorldlineError):
    """The request is well formed, but the state of things does not allow it."""

    default_reason = "PRECONDITION"


class Mismatch(Precondition):
    """Fingerprints, layouts, manifests or plans differ; `violations` lists every difference."""

    default_reason = "MISMATCH"


class StaleFence(Precondition):
    """The message carries an old epoch, incarnation or term."""

    default_reason = "STALE_FENCE"


class WrongState(Precondition):
    """The session or the move is not in a state that allows this."""

    default_reason = "WRONG_STATE"


class Unmovable(Precondition):
    """A leaf of the state tree cannot be moved as bytes; `violations` has its path."""

    default_reason = "UNMOVABLE_LEAF"


class Owned(WorldlineError):
    """Another move owns the session."""

    default_reason = "SESSION_OWNED"


class Exhausted(WorldlineError):
    """Memory, a receiver or a quota is used up."""

    default_reason = "EXHAUSTED"


class DataLoss(WorldlineError):
    """Bytes are not what they were. Nothing is installed."""

    default_reason = "DATA_LOSS"


class TimedOut(WorldlineError):
    """A deadline or the no-progress bound passed."""

    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(WorldlineError):
    """Somebody asked to stop."""

    default_reason = "CANCELLED"


class Unavailable(WorldlineError):
    """A peer is gone, silent or draining."""

    default_reason = "UNAVAILABLE"


class Unsupported(WorldlineError):
    """Not part of this release, or not enabled on this server."""

    default_reason = "UNSUPPORTED"


class Internal(WorldlineError):
    """A bug of ours."""

    default_reason = "INTERNAL"

"""What every message of a move carries: its fence; and who and what a move concerns."""

from __future__ import annotations

import enum
import re
import secrets
import uuid
from dataclasses import dataclass

from worldline.errors import BadRequest
from worldline.settings import ID_PATTERN

_ID = re.compile(ID_PATTERN)
TOKEN_BYTES = 32


def require_id(value: str, field: str) -> str:
    """An id of a session, host or mover: 1 to 64 of [a-z0-9-]. Raises BadRequest naming `field`."""
    if not _ID.fullmatch(value):
        raise BadRequest(
            f"{field} {value[:64]!r} is not 1 to 64 of a-z, 0-9 and -",
            violations={field: "1 to 64 of a-z, 0-9 and -, not starting with -"},
        )
    return value


def require_uuid(value: str, field: str) -> str:
    """A UUID in its canonical form. Raises BadRequest naming `field`."""
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise BadRequest(f"{field} {value[:64]!r} is not a UUID", violations={field: "a UUID is needed"}) from None


def new_token() -> bytes:
    """A secret of 32 bytes."""
    return secrets.token_bytes(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Fence:
    """Guards one message of a move: stale ones are refused, equal ones are answered alike.

    `incarnation` is that of the engine host asked, `term` that of the controller that asks.
    """

    move_id: str
    session_id: str
    epoch: int
    incarnation: int
    term: int


@dataclass(frozen=True, slots=True)
class HostRef:
    """An engine host to call, and the incarnation that is meant."""

    host_id: str
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class RegionRef:
    """The region of an engine host on the same node; `device_id` is empty for memory that every process can map."""

    host_id: str
    ticket: bytes
    device_id: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds spent in each stage; `downtime_s` is freeze to playable, `admission_s` admission's own share.

    `boundary_s` is the part of `freeze_s` in which the session still played, up to its block boundary.
    """

    reserve_s: float = 0.0
    freeze_s: float = 0.0
    wire_s: float = 0.0
    verify_s: float = 0.0
    release_s: float = 0.0
    commit_s: float = 0.0
    downtime_s: float = 0.0
    admission_s: float = 0.0
    boundary_s: float = 0.0


class FaultKind(enum.IntEnum):
    """What a fault does; values are those of the wire."""

    FLIP = 1
    DROP = 2
    DELAY = 3
    TRUNCATE = 4
    STALL = 5
    HOLD = 6


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject at a named chunk or step. `times` 0 means each time, also on the retry."""

    kind: FaultKind
    chunk: int = 0
    times: int = 1
    seconds: float = 0.0
    step: str = ""

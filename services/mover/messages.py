"""What a mover and its data plane say to each other: framed JSON over a socket pair, descriptors beside it.

A frame is four bytes of length and one JSON object; a region's descriptor rides on the length. Sizes are bounded.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from mover.codec.counts import Coding
from mover.descriptors import receive_with_descriptor
from mover.transports.rdma.config import RdmaConfig
from worldline import errors
from worldline.errors import Internal, WorldlineError
from worldline.made import Made
from worldline.plan import Placement, Plan
from worldline.transport import Terms

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Message: TypeAlias = dict[str, Json]

# Two lists of 2**20 checksums are the longest there is.
MAX_FRAME_BYTES = 32 << 20
_LENGTH = struct.Struct(">I")


class Pipe:
    """One end of the socket pair. `send` may be called from any thread, `receive` from one."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Json], descriptor: int | None = None) -> None:
        """Send a message, with a descriptor, which stays the caller's. Raises OSError if the other end is gone."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > MAX_FRAME_BYTES:
            raise Internal(f"a message of {len(data)} bytes is over {MAX_FRAME_BYTES}", reason="FRAME_TOO_LONG")
        with self._sending:
            length = _LENGTH.pack(len(data))
            if descriptor is None:
                self._socket.sendall(length)
            else:
                socket.send_fds(self._socket, [length], [descriptor])
            self._socket.sendall(data)

    def receive(self) -> tuple[Message, int | None]:
        """The next message and its descriptor, now the caller's. Raises EOFError when the other end is gone."""
        head, descriptor = receive_with_descriptor(self._socket, _LENGTH.size)
        if head and len(head) < _LENGTH.size:
            head += self._exactly(_LENGTH.size - len(head))
        if not head:
            raise EOFError
        (size,) = _LENGTH.unpack(head)
        if size > MAX_FRAME_BYTES:
            raise EOFError(f"a frame of {size} bytes")
        message = json.loads(self._exactly(size))
        if not isinstance(message, dict):
            raise EOFError("a frame that is no object")
        return message, descriptor

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        with memoryview(data) as view:
            got = 0
            while got < size:
                with view[got:] as rest:
                    came = self._socket.recv_into(rest)
                if not came:
                    raise EOFError
                got += came
        return bytes(data)

    def close(self) -> None:
        """Close, and wake a blocked `receive`."""
        with suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(frozen=True, slots=True)
class PlaneConfig:
    """What a data plane is told at its start; see `mover.settings` for the meaning."""

    transports: tuple[str, ...] = ("tcp", "local")
    data_listen: str = "127.0.0.1:0"
    data_host: str = ""
    congestion: str = ""
    pace_Bps: int = 0
    lane_threads: int = 1
    codec_threads: int = 1
    rdma: RdmaConfig = field(default_factory=RdmaConfig)


@dataclass(frozen=True, slots=True)
class WireFault:
    """A fault for the data plane: `kind` is the name of a `worldline.move.FaultKind`."""

    kind: str
    chunk: int
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. `faults` counts those that were injected."""

    moved_bytes: int = 0
    retried_chunks: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended well: checksums by chunk, seconds from first to last byte and from there to the last check.

    `checked_bytes` took the threads of the lane `checking_s`, added up; `coding` is None where no codec was at work.
    """

    crcs: tuple[int, ...]
    retried_chunks: int
    wire_s: float
    verify_s: float
    traceparents: tuple[str, ...] = ()
    checked_bytes: int = 0
    checking_s: float = 0.0
    coding: Coding | None = None


def plan_to(plan: Plan) -> Message:
    """A plan as JSON."""
    return {
        "transport": plan.transport,
        "chunk_bytes": plan.chunk_bytes,
        "streams": plan.streams,
        "placement": plan.placement.name,
        "deadline_s": plan.deadline_s,
        "max_freeze_s": plan.max_freeze_s,
        "no_progress_s": plan.no_progress_s,
        "codec": plan.codec,
        "tail_bytes": list(plan.tail_bytes),
        "made": [[item.offset, item.size_bytes, item.fill.hex()] for item in plan.made],
    }


def terms_to(terms: Terms) -> Message:
    """Terms as JSON."""
    return {
        "move_id": terms.move_id,
        "token": terms.token.hex(),
        "streams": terms.streams,
        "no_progress_s": terms.no_progress_s,
        "traceparent": terms.traceparent,
    }


def error_to(error: BaseException) -> Message:
    """An error as JSON; one that is not ours becomes Internal."""
    if not isinstance(error, WorldlineError):
        error = Internal(f"the data plane failed: {type(error).__name__}: {error}")
    return {
        "error": type(error).__name__,
        "message": error.message[:2_000],
        "reason": error.reason,
        "numbers": dict(error.numbers),
        "violations": dict(error.violations),
        "retry_after_s": error.retry_after_s,
    }


def error_from(message: Message) -> WorldlineError:
    """The error that `error_to` wrote."""
    fields = Fields(message)
    kind = getattr(errors, fields.text("error"), Internal)
    retry = message.get("retry_after_s")
    numbers = {
        name: value
        for name, value in fields.inner("numbers").items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    error: WorldlineError = kind(
        fields.text("message"),
        reason=fields.text("reason"),
        numbers=numbers,
        violations={name: str(value) for name, value in fields.inner("violations").items()},
        retry_after_s=float(retry) if isinstance(retry, int | float) else None,
    )
    return error


class Fields:
    """Typed access to a message. A field of another type is a bug: both ends are of one release."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def text(self, name: str) -> str:
        """A string."""
        return str(self._message[name])

    def whole(self, name: str) -> int:
        """An integer."""
        value = self._message[name]
        if not isinstance(value, int):
            raise Internal(f"field {name} of a data plane's message is {type(value).__name__}, not a whole number")
        return value

    def real(self, name: str) -> float:
        """A number."""
        value = self._message[name]
        if not isinstance(value, int | float):
            raise Internal(f"field {name} of a data plane's message is {type(value).__name__}, not a number")
        return float(value)

    def has(self, name: str) -> bool:
        """Whether a field says something."""
        return self._message.get(name) is not None

    def inner(self, name: str) -> Message:
        """An object."""
        value = self._message[name]
        if not isinstance(value, dict):
            raise Internal(f"field {name} of a data plane's message is {type(value).__name__}, not an object")
        return value

    def items(self, name: str) -> list[Json]:
        """A list."""
        value = self._message[name]
        if not isinstance(value, list):
            raise Internal(f"field {name} of a data plane's message is {type(value).__name__}, not a list")
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(item for item in self.items(name) if isinstance(item, int))


def coding_from(message: Message) -> Coding:
    """The counts that `dataclasses.asdict` wrote."""
    return Coding(**message)  # type: ignore[arg-type]  # both ends are of one release


def rdma_from(message: Message) -> RdmaConfig:
    """The settings of rdma that `dataclasses.asdict` wrote."""
    return RdmaConfig(**message)  # type: ignore[arg-type]  # both ends are of one release


def plan_from(message: Message) -> Plan:
    """The plan that `plan_to` wrote."""
    fields = Fields(message)
    return Plan(
        transport=fields.text("transport"),
        chunk_bytes=fields.whole("chunk_bytes"),
        streams=fields.whole("streams"),
        placement=Placement[fields.text("placement")],
        deadline_s=fields.real("deadline_s"),
        max_freeze_s=fields.real("max_freeze_s"),
        no_progress_s=fields.real("no_progress_s"),
        codec=fields.text("codec"),
        tail_bytes=fields.wholes("tail_bytes"),
        made=tuple(_made_from(item) for item in fields.items("made")),
    )


def _made_from(item: Json) -> Made:
    match item:
        case [int(offset), int(size_bytes), str(fill)]:
            return Made(offset, size_bytes, bytes.fromhex(fill))
    raise Internal("a made stretch of a data plane's plan is not offset, size and fill")


def terms_from(message: Message) -> Terms:
    """The terms that `terms_to` wrote."""
    fields = Fields(message)
    return Terms(
        move_id=fields.text("move_id"),
        token=bytes.fromhex(fields.text("token")),
        streams=fields.whole("streams"),
        no_progress_s=fields.real("no_progress_s"),
        traceparent=fields.text("traceparent"),
    )

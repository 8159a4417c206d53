"""What hosts and movers say of themselves, as values; what comes in is checked here."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from worldline.compressibility import Compressibility
from worldline.errors import BadRequest
from worldline.made import Made, faults_of
from worldline.manifest import Descriptor, Fingerprint
from worldline.move import require_id
from worldline.plan import DEVICE_CODECS, MAX_STREAMS, Placement
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.wire import address_from, descriptor_from, fingerprint_from, made_from

MAX_SESSIONS = 10_000
MAX_ENGINES = 1_024
MAX_TRANSPORTS = 16
MAX_PEERS = 1_024
MAX_TEXT = 256
# What the journal can keep, and what no epoch, incarnation or size ever reaches.
MAX_NUMBER = (1 << 63) - 1


class HostState(enum.IntEnum):
    """Where a session stands on a host; values are those of the wire."""

    UNSPECIFIED = 0
    LIVE = 1
    FROZEN = 2
    RELEASED = 3
    STAGED = 4
    READY = 5
    SUSPENDED = 6
    GONE = 7

    @property
    def owns(self) -> bool:
        """Whether a host in this state may play the session, now or after a freeze."""
        return self in (HostState.LIVE, HostState.FROZEN, HostState.SUSPENDED)


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session as its host reports it: S, dirty and cold bytes in bytes, `block_s` in seconds (0 before the first
    block), what a codec would leave of what is sent, if the host has looked, and what a move may make instead.
    """

    descriptor: Descriptor
    state: HostState
    epoch: int
    state_bytes: int
    dirty_bytes_per_block: int
    block_s: float
    cold_bytes: int = 0
    next_block: int = 0
    smoothed_Bps: float | None = None
    made: tuple[Made, ...] = ()
    compressibility: Compressibility | None = None

    @property
    def sent_bytes(self) -> int:
        """Of S, what a move sends."""
        return self.state_bytes - sum(item.size_bytes for item in self.made)

    @property
    def preset(self) -> str:
        """ "engine/preset", as hosts register what they serve."""
        return f"{self.descriptor.engine}/{self.descriptor.preset}"

    @property
    def dirty_rate_Bps(self) -> float | None:
        """D as it was over the last blocks, or in the last one; None before the first block was timed."""
        return self.measured_Bps if self.smoothed_Bps is None else self.smoothed_Bps

    @property
    def measured_Bps(self) -> float | None:
        """D in the last block, by the engine's own counters; None before the first block was timed."""
        return self.dirty_bytes_per_block / self.block_s if self.block_s > 0 else None


@dataclass(frozen=True)
class HostFacts:
    """What an engine host registered; `instance_id` tells processes apart, `state_id` the directories that keep their
    incarnations; each is empty if the host did not tell.

    `device_id` is empty for memory that movers map; `peers`: what its self-test says of each device that it sees;
    `codecs`: those of its device.
    """

    host_id: str
    incarnation: int
    cluster_address: str
    public_address: str
    mover_id: str
    fingerprint: Fingerprint
    presets: frozenset[str]
    budget_bytes: int
    instance_id: str
    device_id: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)
    codecs: frozenset[str] = frozenset()
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class MoverFacts:
    """What a mover registered; `max_receives`, the seconds of a retransmit freeze on rdma, the bytes/s and threads of
    its verification lane, the threads of its codec and the streams that suit it are 0 where it did not tell.
    """

    mover_id: str
    address: str
    transports: frozenset[str]
    max_receives: int
    retransmit_floor_s: float = 0.0
    verify_Bps: float = 0.0
    verify_threads: int = 0
    placements: frozenset[Placement] = frozenset({Placement.PIPELINED})
    codecs: frozenset[str] = frozenset({"raw"})
    codec_threads: int = 0
    streams: int = 0


def session_from(message: host_pb.SessionInfo) -> SessionFacts:
    """From the wire. Raises BadRequest naming the field."""
    descriptor = descriptor_from(message.descriptor)
    if not math.isfinite(message.block_s) or message.block_s < 0:
        raise BadRequest(
            f"block_s {message.block_s} of session {descriptor.session_id} is not a time",
            violations={"session.block_s": "a finite number of seconds from 0 on is needed"},
        )
    for name, number in (("epoch", message.epoch), ("state_bytes", message.state_bytes)):
        _require_number(number, f"session.{name}")
    if message.state not in host_pb.SessionState.values():
        raise BadRequest(f"session.state {message.state} is unknown", violations={"session.state": "unknown"})
    made = _made_from(message)
    return SessionFacts(
        descriptor,
        HostState(message.state),
        message.epoch,
        message.state_bytes,
        message.dirty_bytes_per_block,
        message.block_s,
        message.cold_bytes,
        message.next_block,
        compressibility=_compressibility_from(message, made),
        made=made,
    )


def _compressibility_from(message: host_pb.SessionInfo, made: tuple[Made, ...]) -> Compressibility | None:
    """What a codec leaves of what is sent: what is made is in the host's sample, but leaves nothing there."""
    if not message.HasField("compressibility"):
        return None
    told = message.compressibility
    sent_bytes = message.state_bytes - sum(item.size_bytes for item in made)
    ratio = min(1.0, told.ratio * message.state_bytes / sent_bytes) if made and sent_bytes else told.ratio
    return Compressibility(ratio, told.encode_bytes_per_s, told.decode_bytes_per_s)


def _made_from(message: host_pb.SessionInfo) -> tuple[Made, ...]:
    made = made_from(message.made)
    what = faults_of(made)
    if not what and made and made[-1].end > message.state_bytes:
        what = f"a made stretch that ends at {made[-1].end} leaves a state of {message.state_bytes} bytes"
    if what:
        raise BadRequest(f"session.made was refused: {what}", violations={"session.made": what})
    return made


def status_from(message: pb.EngineHostStatus) -> dict[str, SessionFacts]:
    """The sessions of a host's status by id. Raises BadRequest."""
    if len(message.sessions) > MAX_SESSIONS:
        what = f"{len(message.sessions)} sessions; at most {MAX_SESSIONS} are taken"
        raise BadRequest(f"the status was refused: {what}", violations={"status.sessions": what})
    if len(message.presets) > MAX_ENGINES:
        what = f"{len(message.presets)} presets; at most {MAX_ENGINES} are taken"
        raise BadRequest(f"the status was refused: {what}", violations={"status.presets": what})
    for entry in message.presets:
        require_amount(entry.first_touch_s, "status.presets.first_touch_s")
    sessions = [session_from(item) for item in message.sessions]
    return {session.descriptor.session_id: session for session in sessions}


def host_from(message: pb.EngineHostRegistration) -> HostFacts:
    """From the wire. Raises BadRequest naming the field."""
    if message.incarnation < 1:
        raise BadRequest("incarnation 0 is none", violations={"registration.incarnation": "1 or more is needed"})
    _require_number(message.incarnation, "registration.incarnation")
    for name in ("instance_id", "state_id"):
        if not re.fullmatch("[0-9a-f]{32}|", getattr(message, name)):
            what = "32 lower-case hex digits, or nothing"
            raise BadRequest(f"registration.{name} was refused", violations={f"registration.{name}": what})
    if len(message.engines) > MAX_ENGINES or any(not 0 < len(name) <= 257 for name in message.engines):
        what = f'at most {MAX_ENGINES} of "engine/preset"'
        raise BadRequest("the engines were refused", violations={"registration.engines": what})
    return HostFacts(
        require_id(message.host_id, "registration.host_id"),
        message.incarnation,
        address_from(message.cluster_address, "registration.cluster_address"),
        address_from(message.public_address, "registration.public_address"),
        require_id(message.mover_id, "registration.mover_id"),
        fingerprint_from(message.fingerprint),
        frozenset(message.engines),
        message.budget_bytes,
        message.instance_id,
        _text(message.device_id, "registration.device_id"),
        _peers_from(message.peers),
        frozenset(message.codecs) & frozenset(DEVICE_CODECS),
        message.state_id,
    )


def _peers_from(told: Collection[pb.PeerAccess]) -> dict[str, str]:
    if len(told) > MAX_PEERS:
        what = f"at most {MAX_PEERS} devices"
        raise BadRequest("the peers were refused", violations={"registration.peers": what})
    return {_text(peer.device_id, "registration.peers"): _text(peer.verdict, "registration.peers") for peer in told}


def _text(value: str, field_name: str) -> str:
    """At most `MAX_TEXT` characters. Raises BadRequest naming the field."""
    if len(value) > MAX_TEXT:
        what = f"at most {MAX_TEXT} characters"
        raise BadRequest(f"{field_name} was refused: {what}", violations={field_name: what})
    return value


def mover_from(message: pb.MoverRegistration) -> MoverFacts:
    """From the wire. Raises BadRequest naming the field."""
    for name, given in (("transports", message.transports), ("codecs", message.codecs)):
        if len(given) > MAX_TRANSPORTS or any(not 0 < len(item) <= 32 for item in given):
            what = f"at most {MAX_TRANSPORTS} names of at most 32 characters"
            raise BadRequest(f"the {name} were refused", violations={f"registration.{name}": what})
    for name in ("retransmit_floor_s", "verify_bytes_per_s"):
        require_amount(getattr(message, name), f"registration.{name}")
    known = {int(placement): placement for placement in Placement}
    placements = frozenset(known[item] for item in message.placements if item in known)
    return MoverFacts(
        require_id(message.mover_id, "registration.mover_id"),
        address_from(message.address, "registration.address"),
        frozenset(message.transports),
        message.max_receives,
        message.retransmit_floor_s,
        message.verify_bytes_per_s,
        message.verify_threads,
        placements or frozenset({Placement.PIPELINED}),
        frozenset(message.codecs) | {"raw"},
        message.codec_threads,
        min(message.streams, MAX_STREAMS),
    )


def require_amount(value: float, field: str) -> None:
    """A finite number from 0 on. Raises BadRequest naming the field."""
    if not math.isfinite(value) or value < 0:
        raise BadRequest(f"{field} {value} was refused", violations={field: "a finite number from 0 on is needed"})


def _require_number(number: int, field: str) -> None:
    if number > MAX_NUMBER:
        raise BadRequest(f"{field} {number} is over {MAX_NUMBER}", violations={field: f"at most {MAX_NUMBER}"})

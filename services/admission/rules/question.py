"""What a rule is asked: everything it may look at, as plain values. No clock, no I/O, no gRPC.

A field that is None was not told. A rule then says that it could not charge it; it never makes a number up.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from admission.rules import paper
from worldline.contract import Contract, Tier
from worldline.manifest import Fingerprint
from worldline.plan import DEVICE_CODECS, Placement
from worldline.verdict import Clause


class Mode(enum.IntEnum):
    """How the source behaves while its bytes leave; values are those of the wire."""

    FROZEN = 1
    LIVE = 2


class UpdateRule(enum.Enum):
    """How an engine writes its state (paper §3.3): what decides which escapes from a move are open."""

    APPEND_ONLY = "append-only"
    FRAME_BANK = "frame bank"
    WINDOW_REWRITE = "window rewrite"


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that a move needs: how long it has been silent (s), and why it cannot take part, if it cannot."""

    name: str
    silent_s: float
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A move into a receiver: the seconds it is still predicted to take.

    `stalled`: it waits for a silent process, and `left_s` is only when to look again. `state_bytes` is what it moves,
    0 if not told.
    """

    move_id: str
    left_s: float
    stalled: bool = False
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum engine: what one thread checks (bytes/s) and the threads one move gets."""

    thread_Bps: float
    threads: int = 1

    @property
    def rate_Bps(self) -> float:
        """B_crc in bytes/s."""
        return self.thread_Bps * self.threads


@dataclass(frozen=True, slots=True)
class Codec:
    """A lossless codec: coded share of the bytes (0 < ratio <= 1), and its rates over decoded bytes (bytes/s).

    None where nobody knows: charged as if it left every byte and took no time. `beside`: it works while bytes cross,
    and what it has not begun when the wire is free goes raw; else its two steps come before and after the wire.
    """

    name: str
    ratio: float | None = None
    encode_Bps: float | None = None
    decode_Bps: float | None = None
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """One way between the two movers. Not told which placements or codecs it goes with: with any that is offered.

    `bandwidth_Bps` is B, `ceiling_Bps` what the transport can do at most, `stream_Bps` what one stream of it can.
    `verified`: B was measured with verification at work, which is not charged again.
    """

    transport: str
    bandwidth_Bps: float
    setup_s: float
    refusal: str = ""
    ceiling_Bps: float | None = None
    stream_Bps: float | None = None
    retransmit_floor_s: float | None = None
    placements: tuple[Placement, ...] = ()
    codecs: tuple[Codec | None, ...] = ()
    verified: bool = False


@dataclass(frozen=True, slots=True)
class PortMove:
    """A move that shares the destination's port: S (bytes), D (bytes/s, 0 while frozen), H (s, 0: no deadline).

    `period_s` is the shortest time between two moves of that session; infinite for one that is asked for once.
    `setup_s` is what it costs beside its bytes.
    """

    move_id: str
    state_bytes: int
    horizon_s: float
    setup_s: float
    dirty_rate_Bps: float = 0.0
    period_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Resident:
    """A session with a deadline that plays at the destination: what its block takes now and may take (s)."""

    session_id: str
    block_s: float
    horizon_s: float


@dataclass(frozen=True, slots=True)
class Escapes:
    """What a session may do instead of moving (paper §4.1): each None if not told.

    `replay_s` rebuilds it from its history, `restart_s` starts it anew, `reduced_ratio` is the share of the state
    that a reduction its tier allows leaves.
    """

    update_rule: UpdateRule | None = None
    replay_s: float | None = None
    restart_s: float | None = None
    reduced_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Episodes:
    """What checksums on the receive path risk (paper §6.5): probability p of a freeze, and its length E (s)."""

    probability: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Offers:
    """What a plan may be made of, the simplest first. An empty tuple pins what the question itself names."""

    modes: tuple[Mode, ...] = ()
    paths: tuple[Path, ...] = ()
    placements: tuple[Placement, ...] = ()
    codecs: tuple[Codec | None, ...] = ()
    chunk_bytes: tuple[int, ...] = ()
    streams: tuple[int, ...] = ()
    tail: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """One move under one plan, as the rules see it; `choose` asks it once for each plan that `offers` allows.

    `state_bytes` is S, `made_bytes` what of it the destination makes itself, `dirty_rate_Bps` D (None before the first
    block was timed), `bandwidth_Bps` B of the path, `setup_s` its fixed seconds, `exposed_s` further verification that
    the wire does not hide, `bound_s` what its plan allows from freeze to commit. `host_moves` and `mover_moves` are the
    moves in flight into the destination host and into its mover, each with its cap; a `mover_cap` of 0 is not known.
    """

    contract: Contract
    mode: Mode
    state_bytes: int
    dirty_rate_Bps: float | None
    bandwidth_Bps: float
    setup_s: float
    bound_s: float
    preset: str
    source_fingerprint: Fingerprint
    destination_fingerprint: Fingerprint
    destination_presets: frozenset[str]
    destination_free_bytes: int
    destination_has_id: bool
    host_moves: tuple[InFlight, ...]
    receiver_cap: int
    mover_moves: tuple[InFlight, ...]
    mover_cap: int
    peers: tuple[Peer, ...]
    transport: str
    transport_refusal: str
    patience_s: float
    silent_s: float
    silent_grace_s: float
    heartbeat_s: float
    exposed_s: float = 0.0

    # The plan: how the bytes go and where they are checked.
    placement: Placement = Placement.PIPELINED
    codec: Codec | None = None
    chunk_bytes: int = 4 << 20
    chunk_s: float | None = None  # fixed seconds of one chunk on one stream
    tail_bytes: tuple[int, ...] = ()
    streams: int = 1
    verified: bool = False  # B was measured with this verification at work
    offers: Offers = Offers()

    # The path and its two ends.
    ceiling_Bps: float | None = None
    stream_Bps: float | None = None
    retransmit_floor_s: float | None = None  # 0: the transport sends nothing again on a timer
    source_crc: Checksum | None = None
    destination_crc: Checksum | None = None
    in_path_wire_fraction: float = paper.IN_PATH_WIRE_FRACTION  # of its rate that checksums in its path leave the wire
    episodes: Episodes | None = None

    # The state: bytes that no block writes or reads, what of them is not sent, and when pre-copy stops.
    cold_bytes: int = 0
    made_bytes: int = 0
    precopy_stop_fraction: float = paper.PRECOPY_STOP_CHUNKS / paper.PRECOPY_CHUNKS  # of S, for the last, frozen round
    precopy_rounds: int = paper.PRECOPY_ROUNDS

    # The destination.
    slot_warm: bool | None = None
    first_touch_s: float | None = None
    quantum_s: float | None = None  # longest quantum that may run there when the state is installed
    inexact_tiers: frozenset[Tier] = frozenset()  # tiers that it takes from another fingerprint
    readout_floor_dB: float | None = None  # worst readout measured between the two fingerprints
    residents: tuple[Resident, ...] = ()
    host_link_shared: bool | None = None  # whether checksums and generation share one link
    suspending: tuple[InFlight, ...] = ()  # suspends and resumes on that link

    # Others on the wire: moves that share the destination's port, those that share the source's line, and those that go
    # the other way on either node.
    port_moves: tuple[PortMove, ...] = ()
    period_s: float = math.inf  # shortest time between two moves of this session
    sender_moves: tuple[InFlight, ...] = ()
    opposite_moves: tuple[InFlight, ...] = ()
    duplex_bytes: int = 64 << 20  # from this size on a move fills its link

    # Why state on devices goes through host memory at both ends, by name and in words; "" where it need not.
    staged_because: str = ""

    # Whether it is worth it.
    escapes: Escapes = Escapes()
    benefit_s: float | None = None  # seconds of stall that the move saves
    hysteresis: float = 0.0  # share of its cost that it must save beyond it

    @property
    def dirty_Bps(self) -> float:
        """D as far as it is charged: a frozen source dirties nothing, and None counts as nothing until it is told."""
        return (self.dirty_rate_Bps or 0.0) if self.mode is Mode.LIVE else 0.0

    @property
    def sent_bytes(self) -> int:
        """Of S, what is sent: the motion set. A codec on the device has all of S to code."""
        if self.codec and self.codec.name in DEVICE_CODECS:
            return self.state_bytes
        return max(self.state_bytes - self.made_bytes, 0)

    @property
    def allowed_s(self) -> float:
        """Seconds from freeze to commit: the horizon, but never more than the plan bears."""
        return min(self.contract.horizon_s, self.bound_s) if self.contract.has_deadline else self.bound_s


Rule = Callable[[Question], Clause]

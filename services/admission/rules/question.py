"""What a rule is asked: everything it may look at, as plain values. No clock, no I/O, no gRPC."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from worldline.contract import Contract
from worldline.manifest import Fingerprint
from worldline.verdict import Clause


class Mode(enum.IntEnum):
    """How the source behaves while its bytes leave; values are those of the wire."""

    FROZEN = 1
    LIVE = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that a move needs: how long it has been silent (s), and why it cannot take part, if it cannot."""

    name: str
    silent_s: float
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A move into a receiver: the seconds it is still predicted to take.

    `stalled`: it waits for a silent process, and `left_s` is only when to look again.
    """

    move_id: str
    left_s: float
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """One move as the rules see it.

    `state_bytes` is S, `dirty_rate_Bps` D (None before the first block was timed), `bandwidth_Bps` B of the path,
    `setup_s` its fixed seconds, `exposed_s` verification that the wire does not hide, `bound_s` what its plan allows
    from freeze to commit. `host_moves` and `mover_moves` are the moves in flight into the destination host and into its
    mover, each with its cap; a `mover_cap` of 0 is not known.
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


Rule = Callable[[Question], Clause]

"""Which of many destinations are judged first: a glance at each, until enough of them are free.

So a decision takes as long in a fleet of thousands as in one of a hundred, unless most of it is busy or unfit.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from admission.facts import SessionFacts
from admission.fleet import Fleet, Host
from admission.profile import Profile
from admission.traffic import Traffic

# Free destinations among which the best is taken.
GLANCES = 64


class Promise(enum.IntEnum):
    """What a glance says of a destination."""

    FREE = 0
    BUSY = 1
    UNFIT = 2


@dataclass(frozen=True, slots=True)
class Sight:
    """What a glance looks at beside the destination itself."""

    fleet: Fleet
    profile: Profile
    receiver_cap: int


# Promise, seconds, free bytes (negated), id, host: the first four in the order of preference.
_Glance = tuple[Promise, float, int, str, Host]


def ranked(
    hosts: Iterable[Host], source: Host, facts: SessionFacts, traffic: Traffic, sight: Sight, count: int
) -> list[tuple[Promise, Host]]:
    """The `count` hosts that promise most, the best first: by how long the move would take, then by free bytes.

    Hosts after the first `GLANCES` free ones are not looked at.
    """
    found: list[_Glance] = []
    free = 0
    for glance in _glances(hosts, source, facts, traffic, sight):
        found.append(glance)
        free += glance[0] is Promise.FREE
        if free >= GLANCES:
            break
    return [(glance[0], glance[4]) for glance in heapq.nsmallest(count, found, key=lambda glance: glance[:4])]


def _glances(
    hosts: Iterable[Host], source: Host, facts: SessionFacts, traffic: Traffic, sight: Sight
) -> Iterator[_Glance]:
    fingerprint, preset, state_bytes = source.facts.fingerprint, facts.preset, facts.state_bytes
    movers: dict[str, tuple[bool, bool, float]] = {}
    for host in hosts:
        told, status = host.facts, host.status
        mover_id = told.mover_id
        if mover_id not in movers:
            movers[mover_id] = _mover(mover_id, source.facts.mover_id, facts.sent_bytes, traffic, sight)
        known, busy, takes_s = movers[mover_id]
        free_bytes = status.free_bytes
        fits = known and free_bytes >= state_bytes and not status.draining and preset in told.presets
        if not fits or told.fingerprint != fingerprint:
            promise = Promise.UNFIT
        elif busy or len(traffic.into_host.get(told.host_id, ())) >= sight.receiver_cap:
            promise = Promise.BUSY
        else:
            promise = Promise.FREE
        yield promise, takes_s, -free_bytes, told.host_id, host


def _mover(
    mover_id: str, source_mover: str, sent_bytes: int, traffic: Traffic, sight: Sight
) -> tuple[bool, bool, float]:
    """Whether a mover has registered, whether it is at its cap, and the seconds that a move to it would take."""
    mover = sight.fleet.mover(mover_id)
    path = sight.profile.path(source_mover, mover_id, "local" if mover_id == source_mover else "tcp")
    cap = mover.facts.max_receives if mover else 0
    busy = bool(cap) and len(traffic.into_mover.get(mover_id, ())) >= cap
    return mover is not None, busy, path.setup_s + sent_bytes / path.bandwidth_Bps

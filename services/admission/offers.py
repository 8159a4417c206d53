"""What a plan between two movers may be made of: their transports, placements and codecs, with what was measured.

The default way is always offered. Another one is offered once it was measured on this path, or where the caller pins
it: what nobody has tried is no alternative to what works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from admission.facts import MoverFacts
from admission.profile import Profile
from admission.rules import Codec, Path
from worldline.manifest import Fingerprint
from worldline.plan import Placement

RAW = "raw"


@dataclass(frozen=True, slots=True)
class Pins:
    """What a caller pins; "" and None leave it to admission."""

    transport: str = ""
    placement: Placement | None = None
    codec: str = ""


# Links between GPUs carry this in less time than a call takes, and whatever is done for each chunk is done less often.
DEVICE_CHUNK_BYTES = 32 << 20


def pins_for(source: Fingerprint, pins: Pins) -> Pins:
    """What is left to choose: state on a GPU is carried by its engine hosts, and no mover can map it."""
    if source.fields.get("device", "cpu") == "cpu":
        return pins
    return Pins(pins.transport or "local", pins.placement or Placement.DEVICE, pins.codec or RAW)


def chunk_bytes_for(pins: Pins, chunk_bytes: int) -> int:
    """The size of chunks, where `chunk_bytes` is what fits other placements."""
    return max(chunk_bytes, DEVICE_CHUNK_BYTES) if pins.placement is Placement.DEVICE else chunk_bytes


@dataclass(frozen=True, slots=True)
class _Way:
    transport: str
    placement: Placement
    codec: str


def paths_between(
    profile: Profile, source_mover: str, destination_mover: str, movers: tuple[MoverFacts, ...], pins: Pins
) -> tuple[Path, ...]:
    """The ways from one mover to another, the default first; at least that one. `movers`: those that registered."""
    together = source_mover == destination_mover
    found: list[Path] = []
    for way in _ways(movers, pins, together=together):
        measured = profile.path(source_mover, destination_mover, way.transport, way.placement, way.codec)
        if found and measured.samples <= 0:
            continue
        refusal = _refusal(way, movers)
        if way.transport == "local" and not together:
            apart = f"{source_mover} and {destination_mover}"
            refusal = f"transport local needs both hosts beside one mover, not {apart}"
        found.append(
            Path(
                way.transport,
                measured.bandwidth_Bps,
                measured.setup_s,
                refusal,
                retransmit_floor_s=_retransmit_floor_s(way.transport, movers),
                placements=(way.placement,),
                codecs=(None if way.codec == RAW else Codec(way.codec),),
                verified=measured.samples > 0,
            )
        )
    return tuple(found)


def _ways(movers: tuple[MoverFacts, ...], pins: Pins, *, together: bool) -> Iterator[_Way]:
    """Every way that all movers have, as far as it is not pinned; the default first."""
    transports = set.intersection(*(set(mover.transports) for mover in movers)) if movers else set()
    placements = set.intersection(*(set(mover.placements) for mover in movers)) if movers else set()
    placements.discard(Placement.DEVICE)  # only where it is the one way, or pinned
    codecs = set.intersection(*(set(mover.codecs) for mover in movers)) if movers else set()
    if not together:
        transports.discard("local")
    default = "local" if "local" in transports else "tcp"
    for transport in [pins.transport] if pins.transport else [default, *sorted(transports - {default})]:
        pipelined = Placement.PIPELINED
        for placement in [pins.placement] if pins.placement else [pipelined, *sorted(placements - {pipelined})]:
            for codec in [pins.codec] if pins.codec else [RAW, *sorted(codecs - {RAW})]:
                yield _Way(transport, placement, codec)


def _refusal(way: _Way, movers: tuple[MoverFacts, ...]) -> str:
    """What of a way some mover does not have, in words; "" if all have it."""
    for what, lacks in (
        (f"transport {way.transport!r}", {mover.mover_id for mover in movers if way.transport not in mover.transports}),
        (
            f"placement {way.placement.name}",
            {mover.mover_id for mover in movers if way.placement not in mover.placements},
        ),
        (f"codec {way.codec!r}", {mover.mover_id for mover in movers if way.codec not in mover.codecs}),
    ):
        if lacks:
            return f"{what} is not offered by {' and '.join(sorted(lacks))}"
    return ""


def _retransmit_floor_s(transport: str, movers: tuple[MoverFacts, ...]) -> float | None:
    """What a lost packet costs at worst; None for tcp, whose timers are the kernel's."""
    if transport == "local":
        return 0.0
    floor_s = max((mover.retransmit_floor_s for mover in movers), default=0.0)
    return floor_s if transport == "rdma" and floor_s > 0 else None

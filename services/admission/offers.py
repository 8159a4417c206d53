"""What a plan between two movers may be made of: their transports, placements and codecs, with what was measured.

The default way is always offered. Another one is offered once it was measured on this path, or where the caller pins
it: what nobody has tried is no alternative to what works. A coded way is its raw way with a codec beside it: it is
offered once the raw way was measured and somebody knows what the codec leaves, from a sample or from moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from admission.carriage import is_staged, staged_because
from admission.coding import codec_for
from admission.facts import HostFacts, MoverFacts
from admission.profile import Profile
from admission.rules import Codec, Path
from worldline.compressibility import Compressibility
from worldline.plan import DEVICE_CODECS, Placement

RAW = "raw"


@dataclass(frozen=True, slots=True)
class Pins:
    """What a caller pins; "" and None leave it to admission.

    `on_device`: the state lies on a GPU; `staged_because`: why it goes through host memory, if it must;
    `device_codecs`: those that both devices have.
    """

    transport: str = ""
    placement: Placement | None = None
    codec: str = ""
    on_device: bool = False
    staged_because: str = ""
    device_codecs: frozenset[str] = frozenset()


# Copies in memory and links between GPUs carry this in milliseconds: with smaller chunks, what is done for each of them
# (a wake-up, a call) shows.
COPIED_CHUNK_BYTES = 32 << 20
# Of a move whose movers do not say what suits them, or of a small state.
FEW_STREAMS = 2


def pins_for(source: HostFacts, destination: HostFacts, pins: Pins) -> Pins:
    """What is left to choose: no mover can map state on a GPU. Its engine hosts carry it, or it is staged."""
    codecs = source.codecs & destination.codecs
    if pins.codec in DEVICE_CODECS:
        pins = replace(pins, placement=pins.placement or Placement.DEVICE)
    if source.fingerprint.fields.get("device", "cpu") == "cpu":
        return replace(pins, device_codecs=codecs)
    default = "local" if source.mover_id == destination.mover_id else ""
    return Pins(
        pins.transport or default,
        pins.placement or Placement.DEVICE,
        pins.codec or RAW,
        on_device=True,
        staged_because=staged_because(source, destination),
        device_codecs=codecs,
    )


def chunk_bytes_for(path: Path, pins: Pins, chunk_bytes: int) -> int:
    """The size of chunks on a path, where `chunk_bytes` is what fits movers."""
    (placement,), (codec,) = path.placements, path.codecs
    name = codec.name if codec else RAW
    staged = is_staged(path.transport, placement, name, pins.staged_because)
    copied = path.transport == "local" and name == RAW and not staged
    return max(chunk_bytes, COPIED_CHUNK_BYTES) if copied else chunk_bytes


def streams_for(movers: tuple[MoverFacts, ...], *, large: bool) -> int:
    """Parallel streams of a move between these movers; a small state is over before more than a few pay."""
    told = [mover.streams for mover in movers if mover.streams] if large else []
    return min(told) if told and len(told) == len(movers) else FEW_STREAMS


@dataclass(frozen=True, slots=True)
class _Way:
    transport: str
    placement: Placement
    codec: str


def paths_between(
    profile: Profile,
    source_mover: str,
    destination_mover: str,
    movers: tuple[MoverFacts, ...],
    pins: Pins,
    sample: Compressibility | None = None,
) -> tuple[Path, ...]:
    """The ways from one mover to another, the default first; at least that one. `movers`: those that registered, the
    source's first. `sample`: what a codec would leave of the session.
    """
    together = source_mover == destination_mover
    found: list[Path] = []
    for way in _ways(movers, pins, together=together):
        measured = profile.path(source_mover, destination_mover, way.transport, way.placement)
        if found and measured.samples <= 0:
            continue
        codec = None
        if way.codec != RAW:
            known = profile.codec(source_mover, destination_mover, way.transport, way.placement, way.codec)
            codec = codec_for(way.codec, sample, known, movers)
            if codec is None and found:
                continue
            codec = codec or Codec(way.codec)
        refusal = _refusal(way, movers) or _carrier_refusal(way, pins)
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
                codecs=(codec,),
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
        (
            f"codec {way.codec!r}",
            {mover.mover_id for mover in movers if way.codec not in (*mover.codecs, *DEVICE_CODECS)},
        ),
    ):
        if lacks:
            return f"{what} is not offered by {' and '.join(sorted(lacks))}"
    return ""


def _carrier_refusal(way: _Way, pins: Pins) -> str:
    """Why nobody carries a state this way, in words; "" if somebody does. What movers take is in `mover.carriers`."""
    if pins.on_device and way.placement is not Placement.DEVICE:
        return f"state on a device cannot be mapped by movers for placement {way.placement.name}: use DEVICE"
    if way.codec in DEVICE_CODECS and way.codec not in pins.device_codecs:
        return f"codec {way.codec!r} is not on the devices of both hosts"
    return ""


def _retransmit_floor_s(transport: str, movers: tuple[MoverFacts, ...]) -> float | None:
    """What a lost packet costs at worst; None for tcp, whose timers are the kernel's."""
    if transport == "local":
        return 0.0
    floor_s = max((mover.retransmit_floor_s for mover in movers), default=0.0)
    return floor_s if transport == "rdma" and floor_s > 0 else None

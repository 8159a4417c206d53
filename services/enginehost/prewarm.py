"""What a session needs that no session brings along: weights, compiled kernels, library workspaces, a slot.

At the start, by setting, or on request. A destination that has none of it yet would load weights while a move waits to
reserve, and that wait is bounded.
"""

from __future__ import annotations

import time

from enginehost import tree
from enginehost.host import Host
from enginehost.warmth import FirstTouch
from worldline import telemetry
from worldline.engine import Engine, Preset
from worldline.errors import BadRequest

MAX_SLOTS = 64
_log = telemetry.log("prewarm")


def names_of(listed: str, setting: str = "prewarm") -> list[tuple[str, str]]:
    """Engine and preset of each `engine/preset` of a setting, separated by commas. Raises BadRequest."""
    return [_names(entry, setting, "engine/preset") for entry in _entries(listed)]


def counts_of(listed: str) -> dict[tuple[str, str], int]:
    """Slots wanted, by engine and preset, of each `engine/preset:count`, separated by commas. Raises BadRequest."""
    found = {}
    for entry in _entries(listed):
        name, _, count = entry.partition(":")
        if not (count.isascii() and count.isdigit() and int(count) <= MAX_SLOTS):
            what = f"{entry[:64]!r} is not engine/preset:count, with a count up to {MAX_SLOTS}"
            raise BadRequest(what, violations={"warm_slots": what})
        found[_names(name, "warm_slots", "engine/preset:count")] = int(count)
    return found


def _entries(listed: str) -> list[str]:
    return [entry for part in listed.split(",") if (entry := part.strip())]


def _names(entry: str, setting: str, form: str) -> tuple[str, str]:
    engine, slash, preset = entry.partition("/")
    if not (engine and slash and preset):
        what = f"{entry[:64]!r} is not {form}"
        raise BadRequest(what, violations={setting: what})
    return engine, preset


def prewarm(host: Host) -> None:
    """Make warm what the settings name.

    Raises:
        NotFound: no such engine or preset.
        Exhausted: the budget has no room for a session of it.
    """
    slots = counts_of(host.settings.warm_slots)
    for engine_name, preset_name in {**dict.fromkeys(names_of(host.settings.prewarm)), **slots}:
        make_warm(host, engine_name, preset_name, slots.get((engine_name, preset_name), 0))


def make_warm(host: Host, engine_name: str, preset_name: str, slots: int) -> FirstTouch:
    """Load what a preset needs, play one block of it in a session that nobody sees, and keep slots allocated ahead.

    Raises:
        BadRequest: more than `MAX_SLOTS` slots.
        NotFound: no such engine or preset.
        Exhausted: the budget has no room for a session of it.
    """
    if slots > MAX_SLOTS:
        what = f"{slots} slots; at most {MAX_SLOTS} are kept ahead for a preset"
        raise BadRequest(what, violations={"slots": what})
    engine, preset = host.engine(engine_name, preset_name)
    name = f"{engine.name}/{preset.name}"
    started_s = time.monotonic()
    host.fingerprints.of(engine.name, preset.name)
    load_s = time.monotonic() - started_s
    # Its tree beside one slot, as when a session is created.
    charge = host.budget.reserve(2 * preset.state_bytes, f"prewarming {name}")
    try:
        region_bytes, first_block_s = _play_a_block(host, engine, preset)
        started_s = time.monotonic()
        host.device.allocate("prewarm", region_bytes, charge.split(region_bytes)).close()
        slot_s = time.monotonic() - started_s
    finally:
        charge.release()
    took = FirstTouch(load_s, slot_s, first_block_s)
    host.warmth.touched(name, took)
    host.warm_slots.keep(name, region_bytes, slots)
    _log.info(
        "prewarmed",
        engine=engine.name,
        preset=preset.name,
        load_s=load_s,
        slot_s=slot_s,
        first_block_s=first_block_s,
        slots=host.warm_slots.count(name),
    )
    return took


def _play_a_block(host: Host, engine: Engine, preset: Preset) -> tuple[int, float]:
    """Returns the bytes of a region of the preset, and the seconds from creating a session to its first readout."""
    started_s = time.monotonic()
    host.device.serve()
    made = engine.create(preset.name, 0)
    region_bytes = tree.capture(made, host.device.torch_device).layout.region_bytes
    session = engine.load(preset.name, made)
    session.begin_block(bytes(preset.action_bytes))
    for quantum in range(preset.quanta_per_block):
        session.step(quantum)
    session.end_block()
    session.readout()
    host.device.settle()
    return region_bytes, time.monotonic() - started_s

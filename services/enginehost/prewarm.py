"""What a session needs that no session brings along: weights, compiled kernels, library workspaces. Done at the start.

A destination that has none of it yet would load weights while a move waits to reserve, and that wait is bounded.
"""

from __future__ import annotations

import time

from enginehost.host import Host
from worldline import telemetry
from worldline.errors import BadRequest

_log = telemetry.log("prewarm")


def names_of(listed: str) -> list[tuple[str, str]]:
    """Engine and preset of each `engine/preset`, separated by commas. Raises BadRequest."""
    found = []
    for entry in filter(None, (part.strip() for part in listed.split(","))):
        engine, slash, preset = entry.partition("/")
        if not (engine and slash and preset):
            raise BadRequest(
                f"{entry[:64]!r} is not engine/preset", violations={"prewarm": f"{entry[:64]!r} is not engine/preset"}
            )
        found.append((engine, preset))
    return found


def prewarm(host: Host) -> None:
    """Load what the presets of the setting need, and play one block of each in a session that nobody sees.

    Raises:
        NotFound: no such engine or preset.
        Exhausted: the budget has no room for a session of it.
    """
    for engine_name, preset_name in names_of(host.settings.prewarm):
        engine, preset = host.engine(engine_name, preset_name)
        started_s = time.monotonic()
        host.fingerprints.of(engine.name, preset.name)
        loaded_s = time.monotonic()
        charge = host.budget.reserve(preset.state_bytes, f"prewarming {engine.name}/{preset.name}")
        try:
            host.device.serve()
            session = engine.load(preset.name, engine.create(preset.name, 0))
            session.begin_block(bytes(preset.action_bytes))
            for quantum in range(preset.quanta_per_block):
                session.step(quantum)
            session.end_block()
            session.readout()
            host.device.settle()
        finally:
            charge.release()
        _log.info(
            "prewarmed",
            engine=engine.name,
            preset=preset.name,
            load_s=loaded_s - started_s,
            first_block_s=time.monotonic() - loaded_s,
        )

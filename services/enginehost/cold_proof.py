"""Which engines' cold leaves moves may make instead of sending: those of the setting `motion_set`, once proven.

The proof is played at each start, by the very code and weights that will serve: one kept in a file would have to be
trusted, and could be of other ones. A host whose proof fails does not start.
"""

from __future__ import annotations

import time

from enginehost.host import Host
from enginehost.prewarm import names_of
from worldline import telemetry
from worldline.instruments.cold import prove_cold

_log = telemetry.log("cold_proof")


def prove(host: Host) -> None:
    """Prove the cold leaves of every engine and preset of the setting, and have their moves make them from now on.

    Raises:
        NotFound: no such engine or preset.
        BadRequest: NO_COLD_LEAVES.
        Mismatch: COLD_NOT_PROVEN, with the leaves that are not cold.
        Exhausted: the budget has no room for two sessions of it.
    """
    for engine_name, preset_name in names_of(host.settings.motion_set, "motion_set"):
        engine, preset = host.engine(engine_name, preset_name)
        started_s = time.monotonic()
        charge = host.budget.reserve(2 * preset.state_bytes, f"proving cold leaves of {engine.name}/{preset.name}")
        try:
            host.device.serve()
            proof = prove_cold(engine, preset.name, blocks=host.settings.motion_set_blocks)
            host.device.settle()
        finally:
            charge.release()
        proof.require()
        host.constants[engine.name, preset.name] = proof.constants
        _log.info(
            "cold leaves proven",
            engine=engine.name,
            preset=preset.name,
            blocks=proof.blocks,
            cold_bytes=proof.cold_bytes,
            constant_bytes=proof.constant_bytes,
            state_bytes=proof.state_bytes,
            proof_s=time.monotonic() - started_s,
        )

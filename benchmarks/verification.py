"""Suite `verification`: every placement beside verify off, and whole moves, on a link slower than the processors.

At 10 Gb/s checksums and wire do not fight for the same cores, as on fabrics; `--link 0` shows the fight. Arms
take turns.
"""

from __future__ import annotations

import dataclasses

from benchmarks.fleet_moves import moves_of
from benchmarks.namespaces import link
from benchmarks.report import Row
from benchmarks.suite import CHUNK_BYTES, Figures, Setup, plan
from benchmarks.wire import Arms
from mover.capacity import measured_verify_Bps
from worldline.plan import Placement, tail_schedule

LINK_GBIT = 10.0


def run(setup: Setup) -> Figures:
    """Run all arms."""
    gbit = LINK_GBIT if setup.link_gbit is None else setup.link_gbit
    size_bytes = setup.size_bytes
    bare, off = Row("raw socket", size_bytes), Row("verify off", size_bytes, "raw socket")
    verify_Bps = measured_verify_Bps()
    piped = plan()
    with link(["receiver", "a", "b"], gbit) as made:
        whole = moves_of(made, setup.preset, setup.runs, Placement.PIPELINED)
        there = made.places["receiver"]
        with Arms(size_bytes, piped, host=there.address, within=there.within) as arms:
            wire_Bps = made.bandwidth_Bps or size_bytes / arms.bare()
            tail = tail_schedule(CHUNK_BYTES, wire_Bps, verify_Bps)
            plans = {
                "PIPELINED": piped,
                "PIPELINED, tail schedule": dataclasses.replace(piped, tail_bytes=tail),
                "IN_PATH": plan(Placement.IN_PATH),
                "SEQUENTIAL": plan(Placement.SEQUENTIAL),
            }
            rows = {name: Row(f"verified {name}", size_bytes, "verify off") for name in plans}
            for number in range(setup.runs + 1):
                taken = {bare.name: arms.bare(), off.name: arms.job(verified=False)}
                taken |= {rows[name].name: arms.job(verified=True, plan=each) for name, each in plans.items()}
                if number:
                    for row in (bare, off, *rows.values()):
                        row.seconds.append(taken[row.name])
    receipts, commit = (Row(f"move until {what}", size_bytes, "verify off") for what in ("receipts", "commit"))
    for move in whole:
        stages = move.stages
        receipts.seconds.append(stages.wire_s + stages.verify_s)
        commit.seconds.append(stages.wire_s + stages.verify_s + stages.release_s + stages.commit_s)
    facts: dict[str, str | int | float] = {
        "link_gbit": gbit,
        "verify_Bps": round(verify_Bps),
        "tail_bytes": str(list(tail)),
    }
    return Figures([bare, off, *rows.values(), receipts, commit], facts)

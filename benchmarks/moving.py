"""Suite `move`: one move over loopback TCP, beside what the machine can do at all.

All arms take turns within one run. `verified` and `verify off` are the mover's own pipeline between two processes, with
and without checksums; `raw socket` is the same bytes in the same chunks and streams without the pipeline; the `move`
rows are whole moves of a session through the three services. `verify off + both checksums` adds what the checksums of
both ends cost by themselves on all cores: where the wire fills the cores, as over loopback, nothing verified is faster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

from benchmarks.fleet_moves import moves_of
from benchmarks.local_end import LocalEnd
from benchmarks.namespaces import link
from benchmarks.report import Row
from benchmarks.suite import Figures, Setup
from benchmarks.wire import Arms, memory
from mover.memory import Region
from worldline import wire
from worldline.plan import Plan
from worldline.v1 import move_pb2


def run(setup: Setup) -> Figures:
    """Run all arms."""
    with link("ab", 0) as made:
        moves = moves_of(made, setup.preset, setup.runs)
    plan = wire.plan_from(moves[0].plan)
    rows = [*transfers(setup.size_bytes, plan, setup.runs), *_of_moves(moves, setup.size_bytes)]
    facts: dict[str, str | int | float] = {
        "transport": plan.transport,
        "chunk_bytes": plan.chunk_bytes,
        "streams": plan.streams,
        "placement": plan.placement.name,
    }
    return Figures(rows, facts)


def _of_moves(moves: Sequence[move_pb2.Move], size_bytes: int) -> list[Row]:
    """Rows of whole moves, from the stage times that they report."""
    receipts = Row("move until receipts", size_bytes, "verify off")
    commit = Row("move until commit", size_bytes, "verify off")
    downtime = Row("move, freeze to playable", size_bytes, "verify off")
    own = Row("admission's own share", 0)
    for move in moves:
        stages = move.stages
        receipts.seconds.append(stages.wire_s + stages.verify_s)
        commit.seconds.append(stages.wire_s + stages.verify_s + stages.release_s + stages.commit_s)
        downtime.seconds.append(stages.downtime_s)
        own.seconds.append(stages.admission_s)
    return [receipts, commit, downtime, own]


def transfers(size_bytes: int, plan: Plan, runs: int) -> list[Row]:
    """The arms without services take turns; one round before the first is not counted."""
    copies = Row("memcpy", size_bytes, "raw socket")
    bare = Row("raw socket", size_bytes)
    off = Row("verify off", size_bytes, "raw socket")
    sums = Row("verify off + both checksums", size_bytes, "verify off")
    alone = Row("the checksums of both ends", size_bytes, "raw socket")
    on = Row("verified", size_bytes, "verify off")
    here_off = Row("local, verify off", size_bytes, "memcpy")
    here_on = Row("local, verified", size_bytes, "memcpy")
    rows = (copies, bare, off, alone, sums, on, here_off, here_on)
    with Arms(size_bytes, plan) as arms, closing(LocalEnd(size_bytes, plan)) as here:
        descriptor = memory(size_bytes)
        target = Region(descriptor, size_bytes, writable=True)
        target.populate()
        for number in range(runs + 1):
            taken = {
                copies.name: here.copy(),
                bare.name: arms.bare(),
                off.name: arms.job(verified=False),
                on.name: arms.job(verified=True),
                here_off.name: here.move(verified=False),
                here_on.name: here.move(verified=True),
            }
            taken[alone.name] = arms.checksums(target)
            taken[sums.name] = taken[off.name] + taken[alone.name]
            if number:
                for row in rows:
                    row.seconds.append(taken[row.name])
        target.close()
        os.close(descriptor)
    return list(rows)

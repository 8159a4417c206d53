"""`make bench`: one move of `mg2` over loopback TCP, beside what the machine can do at all.

All arms take turns within one run. `verified` and `verify off` are the mover's own pipeline between two processes, with
and without checksums; `raw socket` is the same bytes in the same chunks and streams without the pipeline; the `move`
rows are whole moves of a session through the three services. `verify off + both checksums` adds what the checksums of
both ends cost by themselves on all cores: where the wire fills the cores, as over loopback, nothing verified is faster.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.report import Row
from benchmarks.wire import Arms, memory
from mover.memory import Region
from worldline import engine, wire
from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.plan import Plan
from worldline.v1 import move_pb2

ENGINE = "window-rewrite"


def main() -> None:
    """Run all arms and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="mg2")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    facts = report.host()
    size_bytes = engine.preset_of(engine.installed()[ENGINE], options.preset).state_bytes
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as directory:
        moves = _moves(Path(directory), options.preset, options.runs)
    plan = wire.plan_from(moves[0].plan)
    rows = [
        *_transfers(size_bytes, plan, options.runs),
        *_of_moves(moves, size_bytes),
        _save_load(options.preset, size_bytes),
    ]
    facts.update(
        {
            "preset": options.preset,
            "transport": plan.transport,
            "chunk_bytes": plan.chunk_bytes,
            "streams": plan.streams,
            "placement": plan.placement.name,
        }
    )
    report.write("latest", rows, facts)


def _moves(directory: Path, preset: str, runs: int) -> list[move_pb2.Move]:
    """A session moved to and fro between two nodes, a block played between moves."""
    moves = []
    with Fleet(directory, TWO_NODES) as fleet, Client(fleet.target) as client:
        session = client.place(ENGINE, preset, 1, host_id="host-a")
        with client.play(session, patience_s=120) as play:
            for number in range(runs):
                play.step(bytes(play.action_bytes))
                move = client.move(session.session_id, ("host-b", "host-a")[number % 2], timeout_s=120)
                if move.state != move_pb2.MOVE_STATE_MOVED:
                    raise SystemExit(f"a move failed: {move.reason}: {move.message}")
                moves.append(move)
        client.close_session(session)
    return moves


def _of_moves(moves: list[move_pb2.Move], size_bytes: int) -> list[Row]:
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


def _transfers(size_bytes: int, plan: Plan, runs: int) -> list[Row]:
    """The arms without services take turns; one round before the first is not counted."""
    copies = Row("memcpy", size_bytes, "raw socket")
    bare = Row("raw socket", size_bytes)
    off = Row("verify off", size_bytes, "raw socket")
    sums = Row("verify off + both checksums", size_bytes, "verify off")
    on = Row("verified", size_bytes, "verify off")
    here_off = Row("local, verify off", size_bytes, "memcpy")
    here_on = Row("local, verified", size_bytes, "memcpy")
    arms = Arms(size_bytes, plan)
    descriptor = memory(size_bytes)
    target = Region(descriptor, size_bytes, writable=True)
    target.populate()
    for number in range(runs + 1):
        taken = {
            copies.name: arms.copy_to(target),
            bare.name: arms.bare(),
            off.name: arms.job(verified=False),
            on.name: arms.job(verified=True),
            here_off.name: arms.local(target, descriptor, verified=False),
            here_on.name: arms.local(target, descriptor, verified=True),
        }
        taken[sums.name] = taken[off.name] + arms.checksums(target)
        if number:
            for row in (copies, bare, off, sums, on, here_off, here_on):
                row.seconds.append(taken[row.name])
    target.close()
    os.close(descriptor)
    arms.close()
    return [copies, bare, off, sums, on, here_off, here_on]


def _save_load(preset: str, size_bytes: int, runs: int = 3) -> Row:
    """What people do today: `torch.save` of the same tree to a file in memory, and `torch.load` of it."""
    row = Row("torch.save + load", size_bytes, "move until commit")
    tree = engine.installed()[ENGINE].create(preset, 1)
    for _ in range(runs):
        file = io.BytesIO()
        start = time.perf_counter()
        torch.save(tree, file)
        file.seek(0)
        torch.load(file, weights_only=False)  # our own bytes, made a line above
        row.seconds.append(time.perf_counter() - start)
    return row


if __name__ == "__main__":
    main()

"""`python -m benchmarks.shaped`: moves over a link that is slower than the processors, as fabrics are.

At 10 Gb/s checksums and wire do not fight for the same cores: verified against verify off, by placement and with a tail
schedule, and whole moves of a session through the three services. At 2.5 Gb/s a coded move against a raw one, with the
bytes of a session of `mg2`. Arms take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.namespaces import Place, hub_address, places
from benchmarks.report import Row
from benchmarks.wire import Arms
from mover.capacity import measured_verify_Bps
from mover.codec.runs import Run
from worldline import engine
from worldline.client import Client
from worldline.engine import StateTree
from worldline.fleet import TWO_NODES, Fleet
from worldline.plan import Placement, Plan, tail_schedule
from worldline.v1 import move_pb2

ENGINE = "window-rewrite"
PATIENT_S = 60.0
CHUNK_BYTES = 4 << 20
VERIFIED_BPS, CODED_BPS = 10e9 / 8, 2.5e9 / 8


def main() -> None:
    """Run both links and report each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="mg2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("verified", "coded"), help="one of the two")
    options = parser.parse_args()
    if options.only != "coded":
        with places(["receiver", "a", "b"], VERIFIED_BPS) as made:
            whole = moved(made, options.preset, options.runs)
            verified(made["receiver"], options.preset, options.runs, whole)
    if options.only != "verified":
        with places(["receiver"], CODED_BPS) as made:
            coded(made["receiver"], options.preset, options.runs)


def moved(made: Mapping[str, Place], preset: str, runs: int) -> list[move_pb2.Move]:
    """A session moved to and fro between two nodes on the link, a block played between moves."""
    # Rates are measured here, not patience: a busy machine makes a slow one, not a failed one.
    admission: dict[str, str | int | float | bool] = {"listen": f"{hub_address()}:0", "no_progress_s": 20.0}
    settings = {"admission": admission}
    within: dict[str, Sequence[str]] = {}
    for name in "ab":
        address = f"{made[name].address}:0"
        settings[f"mover-{name}"] = {"listen": address, "data_listen": address}
        settings[f"host-{name}"] = {"listen": address}
        within[f"mover-{name}"] = within[f"host-{name}"] = made[name].within
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="worldline-shaped-") as directory,
        Fleet(Path(directory), TWO_NODES, options=settings, within=within) as fleet,
        Client(fleet.target) as client,
    ):
        session = client.place(ENGINE, preset, 1, host_id="host-a")
        with client.play(session, patience_s=120) as play:
            for number in range(runs + 1):
                play.step(bytes(play.action_bytes))
                asked = client.request_move(
                    session.session_id,
                    ("host-b", "host-a")[number % 2],
                    transport="tcp",
                    codec="raw",
                    placement=Placement.PIPELINED,
                )
                move = client.wait(asked.move_id, timeout_s=120)
                if move.state != move_pb2.MOVE_STATE_MOVED:
                    raise SystemExit(f"a move failed: {move.reason}: {move.message}")
                found.append(move)
        client.close_session(session)
    return found[1:]


def verified(there: Place, preset: str, runs: int, whole: Sequence[move_pb2.Move]) -> None:
    """Checksums beside the wire: what they cost until both ends have all of them, and until a move's commit."""
    facts = report.host()
    size_bytes = engine.preset_of(engine.installed()[ENGINE], preset).state_bytes
    plan = Plan("tcp", CHUNK_BYTES, 2, Placement.PIPELINED, PATIENT_S, PATIENT_S, PATIENT_S)
    verify_Bps = measured_verify_Bps()
    tail = tail_schedule(CHUNK_BYTES, VERIFIED_BPS, verify_Bps)
    plans = {
        "PIPELINED": plan,
        "PIPELINED, tail schedule": dataclasses.replace(plan, tail_bytes=tail),
        "IN_PATH": dataclasses.replace(plan, placement=Placement.IN_PATH),
        "SEQUENTIAL": dataclasses.replace(plan, placement=Placement.SEQUENTIAL),
    }
    bare, off = Row("raw socket", size_bytes), Row("verify off", size_bytes, "raw socket")
    rows = {name: Row(f"verified {name}", size_bytes, "verify off") for name in plans}
    arms = Arms(size_bytes, plan, host=there.address, within=there.within)
    for number in range(runs + 1):
        taken = {bare.name: arms.bare(), off.name: arms.job(verified=False)}
        taken |= {rows[name].name: arms.job(verified=True, plan=each) for name, each in plans.items()}
        if number:
            for row in (bare, off, *rows.values()):
                row.seconds.append(taken[row.name])
    arms.close()
    receipts, commit = (Row(f"move until {what}", size_bytes, "verify off") for what in ("receipts", "commit"))
    for move in whole:
        stages = move.stages
        receipts.seconds.append(stages.wire_s + stages.verify_s)
        commit.seconds.append(stages.wire_s + stages.verify_s + stages.release_s + stages.commit_s)
    facts |= {"link_gbit": VERIFIED_BPS * 8 / 1e9, "verify_Bps": round(verify_Bps), "tail_bytes": str(list(tail))}
    report.write("shaped-verified", [bare, off, *rows.values(), receipts, commit], facts)


def coded(there: Place, preset: str, runs: int) -> None:
    """A coded move against a raw one. `wire_ratio` is bytes of the state over bytes on the wire, as measured."""
    facts = report.host()
    tree = engine.installed()[ENGINE].create(preset, 1)
    tensors = [leaf for leaf in _leaves(tree) if isinstance(leaf, torch.Tensor)]
    size_bytes = sum(tensor.nbytes for tensor in tensors)
    plan = Plan("tcp", CHUNK_BYTES, 2, Placement.PIPELINED, PATIENT_S, PATIENT_S, PATIENT_S)
    zstd = dataclasses.replace(plan, codec="zstd")
    raw, small = Row("raw", size_bytes), Row("zstd", size_bytes, "raw")

    def fill(view: memoryview) -> Sequence[Run]:
        return _fill(view, tensors)

    arms = Arms(size_bytes, plan, host=there.address, within=there.within, fill=fill)
    del tree, tensors[:]
    ratios, late = [], []
    for number in range(runs + 1):
        raw_s = arms.job(verified=True)
        coded_s, outcome = arms.outcome(verified=True, plan=zstd)
        if outcome.coding is None:
            raise SystemExit("a coded move says nothing of its codec")
        if number:
            raw.seconds.append(raw_s)
            small.seconds.append(coded_s)
            ratios.append(size_bytes / outcome.coding.wire_bytes)
            late.append(outcome.coding.late_pieces)
            encode_Bps = outcome.coding.rate_Bps
    arms.close()
    ratio = sorted(ratios)[len(ratios) // 2]
    facts |= {
        "link_gbit": CODED_BPS * 8 / 1e9,
        "wire_ratio": round(ratio, 4),
        "faster": round(raw.median_s / small.median_s, 4),
        "faster_over_wire_ratio": round(raw.median_s / small.median_s / ratio, 4),
        "late_pieces": str(late),
        "encode_Bps_a_thread": round(encode_Bps),
    }
    report.write("shaped-coded", [raw, small], facts)
    print(f"ratio {ratio:.3f} on the wire, {raw.median_s / small.median_s:.3f} times as fast")


def _leaves(tree: StateTree) -> list[object]:
    found: list[object] = []
    waiting: list[object] = [tree]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, dict):
            waiting.extend(item.values())
        else:
            found.append(item)
    return found


def _fill(view: memoryview, tensors: Sequence[torch.Tensor]) -> Sequence[Run]:
    """Lay the tensors down one after another; their runs."""
    runs = []
    at = 0
    for tensor in tensors:
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        with view[at : at + tensor.nbytes] as piece:
            torch.frombuffer(piece, dtype=torch.uint8).copy_(flat)
        at += tensor.nbytes
        runs.append(Run(at, tensor.element_size() if tensor.is_floating_point() else 1))
    return runs


if __name__ == "__main__":
    main()

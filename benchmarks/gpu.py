"""`make bench-gpu`: moves of `mg2` between two GPUs of this machine, beside what they can do at all.

The device's rows are measured in this process: a read of the whole state (the ceiling of a checksum), its CRC-32, one
peer copy, and the pull that a move does (copies with checksums behind them). The moves are of a session between two
engine hosts, each a process on its own GPU, through the three services. `torch.save + load` is the same tree from one
GPU to a file in memory and onto the other GPU, in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import torch

from benchmarks import gpu_suspend, report
from benchmarks.report import Row
from enginehost.charge import Budget
from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc
from enginehost.cuda.device import CudaDevice
from enginehost.engines.window_rewrite import WindowRewriteEngine
from worldline import engine, wire
from worldline.client import Client, Play
from worldline.fleet import ONE_NODE, Fleet
from worldline.plan import Plan
from worldline.v1 import move_pb2

ENGINE = "window-rewrite"
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
# Calls that are not counted: kernels are compiled, links wake up.
WARM = 3


def main() -> None:
    """Run all arms and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="mg2")
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--save-runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    last = torch.cuda.device_count() - 1
    with tempfile.TemporaryDirectory(prefix="worldline-bench-") as directory:
        rows, plan = _moves(Path(directory), options.preset, options.runs, last)
    size_bytes = engine.preset_of(WindowRewriteEngine(), options.preset).state_bytes
    rows = [
        *_on_devices(size_bytes, plan, options.runs, last),
        *gpu_suspend.in_this_process(CudaDevice(0), size_bytes, options.runs, WARM),
        *rows,
        _save_load(options.preset, size_bytes, options.save_runs, last),
    ]
    facts = {
        **report.host(),
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda_driver": driver.driver_version(),
        "preset": options.preset,
        "transport": plan.transport,
        "placement": plan.placement.name,
        "chunk_bytes": plan.chunk_bytes,
        "tail_bytes": ",".join(map(str, plan.tail_bytes)),
    }
    _write(options.out, rows, facts)


# --- in this process


def _on_devices(size_bytes: int, plan: Plan, runs: int, last: int) -> list[Row]:
    """Ceilings, checksums and pulls, without services."""
    here, there = CudaDevice(0), CudaDevice(last)
    chunks = plan.chunks(size_bytes)
    budget = Budget(4 * size_bytes)
    read, crc = Row("read of the state", size_bytes), Row("device CRC-32", size_bytes, "read of the state")
    host_crc = Row("device CRC-32, as called", size_bytes, "read of the state")
    copy = Row("peer copy, one", size_bytes)
    pull = Row("pull with checksums", size_bytes, "peer copy, one")
    with (
        closing(here.allocate("source", size_bytes, budget.reserve(size_bytes, "bench"))) as source,
        closing(there.allocate("slot", size_bytes, budget.reserve(size_bytes, "bench"))) as slot,
    ):
        here.serve()
        source.tensor().copy_(torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, device=here.torch_device))
        here.settle()
        module = driver.compile_module(Path(__file__).with_name("gpu_read.cu"), 0, {})
        kernel = driver.kernel(module, "read_all")
        found = torch.zeros(1, dtype=torch.int32, device=here.torch_device)
        stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
        blocks = torch.cuda.get_device_properties(0).multi_processor_count
        arguments = (
            (source.address, driver.POINTER),
            (size_bytes // 16, ctypes.c_longlong),
            (found.data_ptr(), driver.POINTER),
        )
        _timed(read, lambda: kernel.launch(blocks, 1024, stream, arguments), stream, runs)
        sums = DeviceCrc(0)
        run = sums.run(source.address, chunks)
        _timed(crc, lambda: run.add(0, len(chunks)), sums.stream, runs)
        _clocked(host_crc, lambda: source.crcs(chunks), runs)
        descriptor = source.read_only_fd()
        attached = there.attach(descriptor, size_bytes, here.device_id)
        os.close(descriptor)
        with closing(attached):
            there.serve()
            beside = torch.cuda.Stream(last)  # type: ignore[no-untyped-call]
            with attached.using() as mapped:
                _timed(copy, lambda: driver.copy(slot.address, mapped, size_bytes, beside), beside, runs)
            there.prepare(chunks)
            _clocked(pull, lambda: attached.pull(slot, chunks, flip=(), wanted=lambda: True), runs)
        if slot.crcs(chunks) != source.crcs(chunks):
            raise SystemExit("the pulled bytes are not the source's")
    return [read, crc, host_crc, copy, pull]


def _timed(row: Row, work: Callable[[], object], stream: torch.cuda.Stream, runs: int) -> None:
    """Seconds by the device's own events."""
    with torch.cuda.device(stream.device):
        for number in range(runs + WARM):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record(stream)
            work()
            after.record(stream)
            after.synchronize()
            if number >= WARM:
                row.seconds.append(before.elapsed_time(after) / 1e3)


def _clocked(row: Row, work: Callable[[], object], runs: int) -> None:
    for number in range(runs + WARM):
        start = time.perf_counter()
        work()
        if number >= WARM:
            row.seconds.append(time.perf_counter() - start)


# --- moves


def _moves(directory: Path, preset: str, runs: int, last: int) -> tuple[list[Row], Plan]:
    """A session moved to and fro between two GPUs, a block played between moves; then once more beside another one."""
    options: dict[str, dict[str, str | int | float | bool]] = {
        "host-a": {"device": "cuda:0"},
        "host-b": {"device": f"cuda:{last}"},
        "enginehost": {
            "prewarm": f"{ENGINE}/{preset},transformers/tiny-qwen2",
            "warm_slots": f"{ENGINE}/{preset}:1",
            "suspend_bytes": 4 << 30,
        },
    }
    _offer_heavy_engine(directory)
    with Fleet(directory, ONE_NODE, options=options) as fleet, Client(fleet.target) as client:
        session = client.place(ENGINE, preset, 1, host_id="host-a")
        with client.play(session, patience_s=120) as play:
            moves = [_move(client, play, session.session_id) for _ in range(runs + WARM)]
            cold = Row("the first move: freeze to committed", 0)
            cold.seconds.append(_committed_s(moves[0].stages))
            moves = moves[WARM:]
            rows = [*_of_moves(moves, directory), cold]
            for name, other_preset in ((ENGINE, preset), ("heavy", "matmul")):
                play.step(bytes(play.action_bytes))  # after which `play` knows where its session is
                neighbour = client.place(name, other_preset, 2, host_id="host-a")
                with client.play(neighbour, patience_s=120) as other:
                    rows += _beside(client, other, f"{name}/{other_preset}", session.session_id, play.host_id, runs)
                client.close_session(neighbour)
            rows += _language_model(client, runs)
            rows += gpu_suspend.of_a_session(client, ENGINE, preset, runs, WARM)
            rows += gpu_suspend.first_touch(directory / "host-b.log", preset)
        client.close_session(session)
    return rows, wire.plan_from(moves[0].plan)


def _offer_heavy_engine(directory: Path) -> None:
    """Engine hosts find the benchmark's own engine by an entry point, as they do any third party's."""
    metadata = directory / "site" / "heavy-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[worldline.engines]\nheavy = benchmarks.heavy_engine:HeavyEngine\n")
    root = Path(__file__).resolve().parents[1]
    paths = [str(metadata.parent), str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _move(client: Client, play: Play, session_id: str) -> move_pb2.Move:
    play.step(bytes(play.action_bytes))
    return _move_to(client, session_id, "host-a" if play.host_id == "host-b" else "host-b")


def _move_to(client: Client, session_id: str, there: str) -> move_pb2.Move:
    move = client.move(session_id, there, timeout_s=120)
    if move.state != move_pb2.MOVE_STATE_MOVED:
        raise SystemExit(f"a move to {there} failed: {move.reason}: {move.message}")
    return move


def _of_moves(moves: Sequence[move_pb2.Move], directory: Path) -> list[Row]:
    """Rows of whole moves: their stage times, and what the hosts and the mover wrote into their logs."""
    ids = {move.move_id for move in moves}
    frozen = _logged(directory, ("host-a", "host-b"), "frozen", ids)
    source = _logged(directory, ("host-a", "host-b"), "checksums", ids)
    received = _logged(directory, ("mover-a",), "received", ids)
    taken = _logged(directory, ("host-a", "host-b"), "taken", ids)
    size_bytes = moves[0].total_bytes
    path = Row("data path: copy, both CRCs, commit's CRC, swap", size_bytes, "peer copy, one")
    rows = {
        name: Row(name, 0)
        for name in (
            "of it: copy",
            "of it: last CRC",
            "of it: commit's CRC",
            "of it: swap",
            "source's CRC (beside the copy)",
            "freeze: flatten",
        )
    }
    receipts, commit = Row("freeze to receipts", 0), Row("freeze to committed, all RPCs", 0)
    own = Row("admission's own share", 0)
    downtime, reserve = Row("freeze to playable", 0), Row("reserve (before the freeze)", 0)
    stage_rows = {name: Row(f"stage: {name}", 0) for name in ("freeze", "wire", "verify", "release", "commit")}
    for move in moves:
        key, stages = move.move_id, move.stages
        parts = (received[key]["wire_s"], received[key]["verify_s"], taken[key]["verify_s"], taken[key]["swap_s"])
        path.seconds.append(sum(parts))
        values = (*parts, source[key]["checksum_s"], frozen[key]["flatten_s"])
        for row, value in zip(rows.values(), values, strict=True):
            row.seconds.append(value)
        for name, row in stage_rows.items():
            row.seconds.append(getattr(stages, f"{name}_s"))
        froze_s = stages.freeze_s - stages.boundary_s
        receipts.seconds.append(froze_s + stages.wire_s + stages.verify_s)
        commit.seconds.append(_committed_s(stages))
        downtime.seconds.append(stages.downtime_s)
        reserve.seconds.append(stages.reserve_s)
        own.seconds.append(stages.admission_s)
    return [path, *rows.values(), *stage_rows.values(), receipts, commit, downtime, reserve, own]


def _committed_s(stages: move_pb2.StageTimes) -> float:
    """From the block boundary to the swap at the destination, every call in between included."""
    return stages.freeze_s - stages.boundary_s + stages.wire_s + stages.verify_s + stages.release_s + stages.commit_s


def _logged(directory: Path, names: Sequence[str], event: str, ids: set[str]) -> dict[str, Mapping[str, float]]:
    """Log lines of one kind by move."""
    found = {}
    for name in names:
        for line in (directory / f"{name}.log").read_text().splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == event and entry.get("move_id") in ids:
                found[entry["move_id"]] = entry
    return found


def _beside(client: Client, other: Play, name: str, session_id: str, at: str, runs: int) -> list[Row]:
    """Blocks of a session that stays on the first GPU: alone, and while another one's state leaves and comes back.

    The state that moves is not played meanwhile, so that it takes no turn of the serving loop. Only blocks in which a
    state left count as beside.
    """
    alone, beside = Row(f"block of {name}, alone", 0), Row(f"block of {name}, while states leave and come", 0)
    beside.ratio_to = alone.name
    for number in range(runs + WARM):
        start = time.perf_counter()
        other.step(bytes(other.action_bytes))
        if number >= WARM:
            alone.seconds.append(time.perf_counter() - start)
    over = threading.Event()
    left: list[float] = []

    def move_on() -> None:
        here = at
        while not over.is_set():
            here = "host-a" if here == "host-b" else "host-b"
            _move_to(client, session_id, here)
            if here == "host-b":
                left.append(time.perf_counter())

    mover = threading.Thread(target=move_on, name="moves")
    mover.start()
    try:
        tried = 0
        while len(beside.seconds) < runs and tried < 8 * runs:
            tried += 1
            start = time.perf_counter()
            other.step(bytes(other.action_bytes))
            end = time.perf_counter()
            if any(start <= moment <= end for moment in left[-4:]):
                beside.seconds.append(end - start)
    finally:
        over.set()
        mover.join()
    return [alone, beside]


def _language_model(client: Client, runs: int) -> list[Row]:
    """Moves of a session of the engine `transformers`, and that it says what its twin says which stays."""
    row = Row("transformers/tiny-qwen2: freeze to playable", 0)
    moved, still = (client.place("transformers", "tiny-qwen2", 4, host_id="host-a") for _ in range(2))
    with client.play(moved, patience_s=120) as play, client.play(still, patience_s=120) as twin:
        for _ in range(min(runs + WARM, 14)):  # as long as its context has room
            if play.step(b"").readout != twin.step(b"").readout:
                raise SystemExit("the moved language model says something else")
            row.seconds.append(
                _move_to(client, moved.session_id, "host-a" if play.host_id == "host-b" else "host-b").stages.downtime_s
            )
    client.close_session(moved)
    client.close_session(still)
    row.seconds = row.seconds[WARM:]
    return [row]


# --- what people do today


def _save_load(preset: str, size_bytes: int, runs: int, last: int) -> Row:
    """`torch.save` of the same tree on one GPU to a file in memory, `torch.load` of it onto the other."""
    row = Row("torch.save + load", size_bytes, "freeze to committed, all RPCs")
    made = WindowRewriteEngine()
    made.use_device(torch.device("cuda", 0))
    tree = made.create(preset, 1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        file = Path(directory) / "state"
        for number in range(runs + 1):
            torch.cuda.synchronize(0)
            start = time.perf_counter()
            torch.save(tree, file)
            # Our own bytes, made a line above.
            torch.load(file, map_location={"cuda:0": f"cuda:{last}"}, weights_only=False)
            torch.cuda.synchronize(last)
            if number:
                row.seconds.append(time.perf_counter() - start)
    return row


def _write(directory: Path, rows: Sequence[Row], facts: Mapping[str, str | int | float]) -> None:
    name = str(facts["gpu"]).lower().replace(" ", "-")
    stored = report.as_json(rows)
    made = {"host": facts, "rows": stored}
    path = report.store(f"{name}-x{facts['gpus']}-{facts['preset']}", made, directory)
    print(f"{facts['gpus']} x {facts['gpu']}, driver's CUDA {facts['cuda_driver']}, torch {facts['torch']}")
    for row in stored:
        times = " ".join(f"{float(row[key]) * 1e3:9.3f}" for key in ("median_s", "min_s", "max_s"))
        rate = f"{float(row['bytes']) / float(row['median_s']) / 1e9:8.1f} GB/s" if row["bytes"] else " " * 13
        ratio = f"  {row['ratio']:.3f} of {row['ratio_to']}" if row["ratio_to"] else ""
        print(f"{row['name']:<48}{times} ms {rate}{ratio}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()

"""`make bench-gpu-staged`: moves between GPUs through pinned host memory, raw and coded on the devices.

Beside them, in the same run: copies between a device and pinned memory, the codec alone, and the byte entropy of the
tree. The moves are of a session between two engine hosts, each a process on its own GPU beside its own mover, over tcp:
over loopback as it is, and over a path that a process in user space paces to 25 Gb/s.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.report import Facts, Row
from enginehost import tree
from enginehost.charge import Budget
from enginehost.coded import decode, encode
from enginehost.cuda import driver
from enginehost.cuda.device import CudaDevice
from enginehost.engines.window_rewrite import WindowRewriteEngine
from enginehost.slots import Slot
from enginehost.staging import Staging
from worldline import engine
from worldline.client import Client, Play
from worldline.codec.parts import carried_bytes
from worldline.filling import complete
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2

ENGINE = "window-rewrite"
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PACED_BPS = 25e9 / 8
WARM = 2


def main() -> None:
    """Run all arms and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="mg2")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    last = torch.cuda.device_count() - 1
    rows, facts = _on_devices(options.preset, options.runs, last)
    for name, paced in (("loopback", False), ("25 Gb/s", True)):
        with tempfile.TemporaryDirectory(prefix="worldline-bench-") as directory:
            rows += _moves(Path(directory), options.preset, options.runs, last, name, paced=paced)
    _write(options.out, rows, {**report.host(), **facts, "preset": options.preset, "paced_bits_per_s": 8 * PACED_BPS})


# --- in this process


def _on_devices(preset: str, runs: int, last: int) -> tuple[list[Row], Facts]:
    """Copies, the codec, and what the tree is made of, after a block was played."""
    here, there = CudaDevice(0), CudaDevice(last)
    here.serve()
    made = WindowRewriteEngine()
    made.use_device(here.torch_device)
    captured = tree.capture(made.create(preset, 1), here.torch_device)
    size_bytes = captured.layout.region_bytes
    budget = Budget(4 * size_bytes)
    source = Slot(captured.layout, here.allocate("source", size_bytes, budget.reserve(size_bytes, "bench")), here)
    source.flatten(captured)
    session = made.load(preset, source.rehydrate())
    session.begin_block(bytes(engine.preset_of(made, preset).action_bytes))
    for quantum in range(engine.preset_of(made, preset).quanta_per_block):
        session.step(quantum)
    session.end_block()
    here.settle()
    pool = Staging(size_bytes + (4 << 20), here)
    out, back = Row("copy from the device to pinned memory", size_bytes), Row("copy back to a device", size_bytes)
    coded, whole = Row("code on the device into pinned memory", size_bytes), Row("decode on the device", size_bytes)
    facts: Facts = {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda_driver": driver.driver_version(),
        "region_bytes": size_bytes,
        **_entropy(source.arena.tensor()),
    }
    with (
        closing(source),
        closing(there.allocate("slot", size_bytes, budget.reserve(size_bytes, "bench"))) as slot,
        closing(pool),
    ):
        buffer = pool.lend(size_bytes, "bench")
        with buffer.using() as first:
            streams = [torch.cuda.Stream(ordinal) for ordinal in (0, last)]  # type: ignore[no-untyped-call]
            _clocked(out, lambda: _copied(first, source.arena.address, size_bytes, streams[0]), runs)
            there.serve()
            _clocked(back, lambda: _copied(slot.address, first, size_bytes, streams[1]), runs)
            rows = [out, back]
            if here.frames is not None and there.frames is not None:
                frames, others = here.frames, there.frames
                here.serve()
                _clocked(coded, lambda: encode(here, frames, source.arena, size_bytes, first), runs)
                # The same bytes are not coded alike each time.
                parts = encode(here, frames, source.arena, size_bytes, first)
                there.serve()
                held = complete(size_bytes, parts)
                _clocked(whole, lambda: decode(there, others, held, first, slot, size_bytes), runs)
                facts["coded_bytes"] = carried_bytes(parts)
                facts["coded_ratio"] = round(carried_bytes(parts) / size_bytes, 4)
                if slot.crc() != source.crc():
                    raise SystemExit("what was decoded is not what was coded")
                rows += [coded, whole]
        buffer.give_back(unmapped=True)
    torch.cuda.empty_cache()
    return rows, facts


def _copied(to: int, source: int, size_bytes: int, stream: torch.cuda.Stream) -> None:
    driver.copy(to, source, size_bytes, stream)
    stream.synchronize()


def _clocked(row: Row, work: Callable[[], object], runs: int) -> None:
    for number in range(runs + WARM):
        start = time.perf_counter()
        work()
        if number >= WARM:
            row.seconds.append(time.perf_counter() - start)


def _entropy(state: torch.Tensor) -> Facts:
    """Order-0 entropy of the tree's bytes, in bits a byte: of all, of each plane, and of each without the zeros."""
    zero = float((state == 0).double().mean())
    planes = {"all": state, "even": state[0::2], "odd": state[1::2]}
    return {
        "zero_byte_share": round(zero, 4),
        **{f"entropy_bits_{name}": round(_bits(plane), 3) for name, plane in planes.items()},
        **{f"entropy_bits_{name}_without_zeros": round(_bits(plane[plane != 0]), 3) for name, plane in planes.items()},
    }


def _bits(data: torch.Tensor) -> float:
    counts = torch.zeros(256, dtype=torch.int64, device=data.device)
    for at in range(0, data.numel(), 64 << 20):
        counts += torch.bincount(data[at : at + (64 << 20)], minlength=256)
    share = counts[counts > 0].double() / data.numel()
    return float(-(share * share.log2()).sum())


# --- moves


@contextmanager
def _pacer(pairs: Sequence[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.pacing", str(PACED_BPS), *pairs]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise SystemExit("the pacing process did not start")
        yield
    finally:
        process.kill()
        process.wait()


def _moves(directory: Path, preset: str, runs: int, last: int, name: str, *, paced: bool) -> list[Row]:
    """A session moved to and fro, a block played between moves: raw, then coded."""
    options: dict[str, Mapping[str, str | int | float | bool]] = {
        "host-a": {"device": "cuda:0"},
        "host-b": {"device": f"cuda:{last}"},
        "enginehost": {"prewarm": f"{ENGINE}/{preset}"},
        # What is told to others lies where the pacing process listens.
        "mover-a": {"data_listen": f"127.0.0.2:{_port()}", "data_host": "127.0.0.3" if paced else ""},
        "mover-b": {"data_listen": f"127.0.0.4:{_port()}", "data_host": "127.0.0.5" if paced else ""},
    }
    pairs = [
        f"{options[mover]['data_host']}:{str(options[mover]['data_listen']).rpartition(':')[2]}="
        f"{options[mover]['data_listen']}"
        for mover in ("mover-a", "mover-b")
    ]
    with _pacer(pairs if paced else ()), Fleet(directory, TWO_NODES, options=options) as fleet:
        with Client(fleet.target) as client:
            session = client.place(ENGINE, preset, 1, host_id="host-a")
            rows: list[Row] = []
            with client.play(session, patience_s=120) as play:
                for codec in ("raw", "ans"):
                    moves = [_move(client, play, session.session_id, codec) for _ in range(runs + WARM)][WARM:]
                    rows += _of_moves(moves, directory, f"{name}, {codec}")
            client.close_session(session)
    return rows


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _move(client: Client, play: Play, session_id: str, codec: str) -> move_pb2.Move:
    play.step(bytes(play.action_bytes))
    there = "host-a" if play.host_id == "host-b" else "host-b"
    asked = client.request_move(session_id, there, transport="tcp", codec=codec)
    move = client.wait(asked.move_id, timeout_s=120)
    if move.state != move_pb2.MOVE_STATE_MOVED:
        raise SystemExit(f"a move to {there} failed: {move.reason}: {move.message}")
    return move


def _of_moves(moves: Sequence[move_pb2.Move], directory: Path, name: str) -> list[Row]:
    """Rows of whole moves, and what the hosts wrote into their logs."""
    left = _logged(directory, "checksums", {move.move_id for move in moves})
    committed = Row(f"{name}: freeze to committed, all RPCs", moves[0].total_bytes)
    playable = Row(f"{name}: freeze to playable", 0)
    carried = Row(f"{name}: wire, and into the slot behind it", 0)
    filled = Row(f"{name}: beside it, device to buffer", 0)
    verify, commit = Row(f"{name}: until both receipts", 0), Row(f"{name}: release and commit", 0)
    for move in moves:
        stages = move.stages
        froze_s = stages.freeze_s - stages.boundary_s
        until_s = froze_s + stages.wire_s + stages.verify_s
        committed.seconds.append(until_s + stages.release_s + stages.commit_s)
        playable.seconds.append(stages.downtime_s)
        filled.seconds.append(left[move.move_id]["staged_s"])
        carried.seconds.append(stages.wire_s)
        verify.seconds.append(until_s)
        commit.seconds.append(stages.release_s + stages.commit_s)
    carried.note = f"{left[moves[-1].move_id]['carried_bytes']:.0f} bytes carried"
    return [committed, playable, carried, filled, verify, commit]


def _logged(directory: Path, event: str, ids: set[str]) -> dict[str, Mapping[str, float]]:
    found = {}
    for name in ("host-a", "host-b"):
        for line in (directory / f"{name}.log").read_text().splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == event and entry.get("move_id") in ids:
                found[entry["move_id"]] = entry
    return found


def _write(directory: Path, rows: Sequence[Row], facts: Mapping[str, str | int | float]) -> None:
    name = str(facts["gpu"]).lower().replace(" ", "-")
    stored = report.as_json(rows)
    made = {"host": facts, "rows": stored}
    path = report.store(f"{name}-x{facts['gpus']}-staged-{facts['preset']}", made, directory)
    print(json.dumps(facts))
    for row in stored:
        times = " ".join(f"{float(row[key]) * 1e3:9.2f}" for key in ("median_s", "min_s", "max_s"))
        rate = f"{float(row['bytes']) / float(row['median_s']) / 1e9:8.1f} GB/s" if row["bytes"] else " " * 13
        print(f"{row['name']:<52}{times} ms {rate}  {row.get('note', '')}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()

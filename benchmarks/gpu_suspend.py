"""Rows of `make bench-gpu`: suspending to pinned host memory and resuming, and what a first touch takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from benchmarks.report import Row
from enginehost.charge import Budget
from enginehost.cuda import driver
from enginehost.cuda.device import CudaDevice
from enginehost.staging import Staging
from enginehost.suspension import pieces_of
from worldline.client import Client


def in_this_process(here: CudaDevice, size_bytes: int, runs: int, warm: int) -> list[Row]:
    """Copies to and from pinned memory, plain and as a session's state goes; a slot allocated and given back."""
    budget = Budget(2 * size_bytes)
    plain_out, plain_in = Row("copy to pinned memory", size_bytes), Row("copy from pinned memory", size_bytes)
    out = Row("suspend: copy, read back, checksums", size_bytes, plain_out.name)
    back = Row("resume: copy, checksums", size_bytes, plain_in.name)
    made = Row("a slot: allocated and zeroed", size_bytes)
    pinned = Row("host memory: faulted in and pinned, once", size_bytes)
    pieces = pieces_of(size_bytes)
    here.serve()
    stream = torch.cuda.Stream(here.ordinal)  # type: ignore[no-untyped-call]
    with (
        closing(Staging(2 * size_bytes, here)) as pool,
        closing(here.allocate("suspended", size_bytes, budget.reserve(size_bytes, "bench"))) as slot,
    ):
        slot.tensor().copy_(torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, device=here.torch_device))
        here.settle()
        start = time.perf_counter()
        buffer = pool.lend(size_bytes, "bench")
        pinned.seconds.append(time.perf_counter() - start)
        crcs = slot.crcs(pieces).chunks

        def copied(to: int, source: int) -> None:
            driver.copy(to, source, size_bytes, stream)
            stream.synchronize()

        def saved(address: int) -> None:
            found = slot.save(address, pieces)
            if list(found.crcs) != crcs or list(found.read_back) != crcs:
                raise SystemExit("what lies in host memory is not the slot's")

        with buffer.using() as address:
            _clocked(plain_out, lambda: copied(address, slot.address), runs, warm)
            _clocked(plain_in, lambda: copied(slot.address, address), runs, warm)
            _clocked(out, lambda: saved(address), runs, warm)
        source = here.read_from(buffer)
        _clocked(back, lambda: source.pull(slot, pieces, flip=(), wanted=lambda: True), runs, warm)
        if slot.crcs(pieces).chunks != crcs:
            raise SystemExit("what came back is not what had left")
        source.close()
        buffer.give_back(unmapped=True)
    for number in range(runs + warm):
        start = time.perf_counter()
        slot = here.allocate("slot", size_bytes, budget.reserve(size_bytes, "bench"))
        if number >= warm:
            made.seconds.append(time.perf_counter() - start)
        slot.close()
    return [plain_out, out, plain_in, back, made, pinned]


def of_a_session(client: Client, engine: str, preset: str, runs: int, warm: int) -> list[Row]:
    """The calls, for a session of a whole fleet: its blocks before and after are those of a twin that stays."""
    names = (
        "SuspendSession, the call",
        "ResumeSession, the call",
        "of it: copy out",
        "of it: copy back",
        "of it: load",
    )
    rows = [Row(name, 0) for name in names]
    moved, still = (client.place(engine, preset, 5, host_id="host-a") for _ in range(2))
    for number in range(runs + warm):
        start = time.perf_counter()
        out = client.suspend(moved.session_id)
        between = time.perf_counter()
        back = client.resume(moved.session_id)
        end = time.perf_counter()
        if number >= warm:
            values = (between - start, end - between, out.copy_s, back.copy_s, back.load_s)
            for row, value in zip(rows, values, strict=True):
                row.seconds.append(value)
    with client.play(moved, patience_s=120) as play, client.play(still, patience_s=120) as twin:
        if play.step(bytes(play.action_bytes)).readout != twin.step(bytes(twin.action_bytes)).readout:
            raise SystemExit("the session that was suspended shows something else than its twin")
    for session in (moved, still):
        client.close_session(session)
    return rows


def first_touch(log: Path, preset: str) -> list[Row]:
    """What a host wrote of its prewarming."""
    entries = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    told = next(entry for entry in entries if entry.get("event") == "prewarmed" and entry["preset"] == preset)
    rows = []
    for name in ("load", "slot", "first_block"):
        row = Row(f"first touch: {name.replace('_', ' ')}", 0)
        row.seconds.append(told[f"{name}_s"])
        rows.append(row)
    return rows


def _clocked(row: Row, work: Callable[[], object], runs: int, warm: int) -> None:
    for number in range(runs + warm):
        start = time.perf_counter()
        work()
        if number >= warm:
            row.seconds.append(time.perf_counter() - start)

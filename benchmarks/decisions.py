"""`python -m benchmarks.decisions`: how long EvaluateMove takes, beside an empty call on the same server.

One admission process; hosts and sessions are registered over gRPC and say nothing further, so that what is timed is the
decision alone. Calls go one after another; the empty call is the standard health check. With `--moves` the journal
holds that many past moves before admission starts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table

from admission.journal import Journal
from admission.machine import Phase
from benchmarks import report
from benchmarks.journal import fill, made
from worldline import wire
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Descriptor, Fingerprint
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub

PRESET = "window-rewrite/small"
STATE_BYTES = 64_864_640
FINGERPRINT = Fingerprint({"torch": "2.13.0+cpu", "cpu": "AVX2", "threads": "2"})


def main() -> None:
    """All fleet sizes, one admission process each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="*", default=[2, 100, 1000])
    parser.add_argument("--moves", type=int, default=0, help="past moves in the journal")
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    facts = report.host() | {"past_moves": options.moves}
    rows = [row for hosts in options.hosts for row in _of_fleet(hosts, options.moves, options.calls)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("hosts", "call", "p50", "p99", "p99 / empty p99", "calls/s", "resident"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for row in rows:
        table.add_row(
            str(row["hosts"]),
            str(row["name"]),
            f"{float(row['p50_s']) * 1e3:.2f} ms",
            f"{float(row['p99_s']) * 1e3:.2f} ms",
            f"{float(row['p99_ratio']):.2f}",
            f"{float(row['calls_per_s']):.0f}",
            f"{int(row['resident_bytes']) / 1e6:.0f} MB",
        )
    out = Console(width=120, highlight=False)
    out.print(f"{facts['cpu']}, {facts['cores']} cores, {options.moves} past moves, {options.calls} calls each")
    out.print(table)
    out.print(f"written to {report.store('decisions', report.document(facts, rows))}")


def _of_fleet(hosts: int, moves: int, calls: int) -> list[dict[str, str | int | float]]:
    with tempfile.TemporaryDirectory(prefix="worldline-decisions-") as directory:
        journal = Path(directory, "journal.sqlite")
        if moves:
            with closing(Journal(journal, keep=10 * moves)) as past:
                fill(past, moves, made(Phase.REFUSED))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "admission", "--exit-with-parent", "--journal", str(journal)),
                *("--silent-s", "600", "--heartbeat-s", "60", "--log-level", "WARNING"),
                *("--keep-moves", "1000000"),
            ],
            stdout=subprocess.PIPE,
        )
        try:
            if process.stdout is None:
                raise RuntimeError("no pipe")
            address = json.loads(process.stdout.readline())["address"]
            with grpc.insecure_channel(address) as channel:
                return _timed(channel, process.pid, hosts, calls)
        finally:
            process.terminate()
            process.wait()


def _timed(channel: grpc.Channel, pid: int, hosts: int, calls: int) -> list[dict[str, str | int | float]]:
    admission = AdmissionServiceStub(channel)
    sessions = _register(admission, hosts)
    health = health_pb2_grpc.HealthStub(channel)
    asked = iter(range(10**9))

    def empty() -> None:
        health.Check(health_pb2.HealthCheckRequest(), timeout=10)

    def pinned() -> None:
        at = next(asked) % hosts
        _evaluate(admission, sessions[at], f"host-{(at + 1) % hosts:04}")

    def any_host() -> None:
        _evaluate(admission, sessions[next(asked) % hosts], "")

    arms: list[tuple[str, Callable[[], None]]] = [
        ("empty", empty),
        ("EvaluateMove, destination given", pinned),
        ("EvaluateMove, admission picks", any_host),
    ]
    taken: dict[str, list[float]] = {name: [] for name, _ in arms}
    for _, call in arms:  # warm
        for _ in range(50):
            call()
    for _ in range(calls):
        for name, call in arms:
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    resident = _resident_bytes(pid)
    empty_p99 = _p99(taken["empty"])
    return [
        {
            "name": name,
            "hosts": hosts,
            "calls": len(seconds),
            "p50_s": statistics.median(seconds),
            "p99_s": _p99(seconds),
            "p99_ratio": _p99(seconds) / empty_p99,
            "calls_per_s": len(seconds) / sum(seconds),
            "resident_bytes": resident,
        }
        for name, seconds in taken.items()
    ]


def _evaluate(admission: AdmissionServiceStub, session_id: str, destination: str) -> None:
    answer = admission.EvaluateMove(
        pb.EvaluateMoveRequest(session_id=session_id, destination_host_id=destination, mode=move_pb2.MOVE_MODE_FROZEN),
        timeout=10,
    )
    if answer.verdict.kind != move_pb2.VERDICT_KIND_ADMIT:
        raise SystemExit(f"not admitted: {answer.verdict}")


def _register(admission: AdmissionServiceStub, hosts: int) -> list[str]:
    """As many hosts, each with a mover and one session of its own."""
    sessions = []
    for number in range(hosts):
        host_id, mover_id, session_id = f"host-{number:04}", f"mover-{number:04}", f"s-{number:016x}"
        admission.RegisterMover(
            pb.RegisterMoverRequest(
                registration=pb.MoverRegistration(
                    mover_id=mover_id, address="127.0.0.1:9", transports=["tcp", "local"], max_receives=4
                )
            ),
            timeout=10,
        )
        contract = Contract(ContractClass.C1, 5.0, Tier.T0)
        token = hashlib.sha256(session_id.encode()).digest()
        descriptor = Descriptor(session_id, "window-rewrite", "1", "small", number, contract, token)
        session = host_pb.SessionInfo(
            descriptor=wire.descriptor_to(descriptor),
            state=host_pb.SESSION_STATE_LIVE,
            epoch=1,
            next_block=3,
            state_bytes=STATE_BYTES,
            dirty_bytes_per_block=STATE_BYTES // 2,
            block_s=0.3,
        )
        admission.RegisterEngineHost(
            pb.RegisterEngineHostRequest(
                registration=pb.EngineHostRegistration(
                    host_id=host_id,
                    incarnation=1,
                    cluster_address="127.0.0.1:9",
                    public_address="127.0.0.1:9",
                    mover_id=mover_id,
                    fingerprint=wire.fingerprint_to(FINGERPRINT),
                    engines=[PRESET],
                    budget_bytes=8 << 30,
                    instance_id=uuid.uuid4().hex,
                ),
                status=pb.EngineHostStatus(free_bytes=8 << 30, sessions=[session]),
            ),
            timeout=10,
        )
        sessions.append(session_id)
    return sessions


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()

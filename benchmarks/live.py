"""`python -m benchmarks.live`: real moves between three engine hosts at 0.5 to 2 times what their links carry.

Three nodes in network namespaces, each link shaped both ways by tbf. Moves are asked for at random times (Poisson) for
random sessions; admission picks the destination. What cannot be on time must leave as a REJECT, and what was admitted
must be on time. A caller waits for `--patience` seconds where it is told DEFER, and asks again when it is told to.
Capacity is that of node-disjoint moves, one after another: of three nodes one pair, at the speed of a move alone in the
same run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.namespaces import hub_address, places
from worldline import engine
from worldline.client import Client
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import Owned
from worldline.fleet import Fleet, Node
from worldline.playing import Session
from worldline.v1 import move_pb2

ENGINE, PRESET = "window-rewrite", "small"
NODES = tuple(Node(f"mover-{name}", (f"host-{name}",)) for name in "abc")
LOADS = (0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the moves asked for at one load. `late`: admitted, completed after the horizon."""

    load: float
    offered: int
    admitted: int
    on_time: int
    late: int
    aborted: int
    rejected: int
    deferred: int
    busy: int
    downtimes_s: tuple[float, ...]
    misses: tuple[str, ...]


def main() -> None:
    """All loads, one after another, over one fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbps", type=float, default=1.0, help="rate of each link, Gb/s")
    parser.add_argument("--sessions", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--slack", type=float, default=1.5, help="horizon as a multiple of one move alone")
    parser.add_argument("--patience", type=float, default=0.6, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    facts = report.host()
    with (
        places(["a", "b", "c"], options.gbps * 1e9 / 8) as made,
        tempfile.TemporaryDirectory(prefix="worldline-live-") as directory,
    ):
        settings: dict[str, dict[str, str | int | float | bool]] = {
            # The state is small, and fills these links all the same.
            "admission": {"listen": f"{hub_address()}:0", "large_region_bytes": 32 << 20}
        }
        within: dict[str, Sequence[str]] = {}
        for name, place in made.items():
            settings[f"mover-{name}"] = {"listen": f"{place.address}:0", "data_listen": f"{place.address}:0"}
            settings[f"host-{name}"] = {"listen": f"{place.address}:0"}
            within[f"mover-{name}"] = within[f"host-{name}"] = place.within
        with Fleet(Path(directory), NODES, options=settings, within=within) as fleet, Client(fleet.target) as client:
            alone_s = _alone(client)
            horizon_s = options.slack * alone_s
            contract = Contract(ContractClass.C1, horizon_s, Tier.T0)
            sessions = [
                client.place(ENGINE, PRESET, seed, contract=contract, host_id=f"host-{'abc'[seed % 3]}")
                for seed in range(options.sessions)
            ]
            _learn(client, sessions)
            capacity = (len(NODES) // 2) / alone_s
            chance = random.Random(options.seed)
            tallies = [_at_load(client, sessions, load, capacity, options, chance) for load in LOADS]
    _print(facts, options.gbps, alone_s, horizon_s, tallies)


def _alone(client: Client, moves: int = 5) -> float:
    """Median seconds from freeze to playable of a move with the links to itself."""
    session = client.place(ENGINE, PRESET, 0, host_id="host-a")
    with client.play(session) as play:
        play.step(bytes(play.action_bytes))
    taken = []
    for number in range(moves):
        move = client.move(session.session_id, ("host-b", "host-a")[number % 2], timeout_s=60)
        if move.state != move_pb2.MOVE_STATE_MOVED:
            raise SystemExit(f"a move alone failed: {move.reason}: {move.message}")
        taken.append(move.stages.downtime_s)
    client.close_session(session)
    return statistics.median(taken)


def _learn(client: Client, sessions: Sequence[Session]) -> None:
    """One block of each, so that D is known, and one move over each path, so that admission has measured it."""
    for session in sessions:
        with client.play(session) as play:
            play.step(bytes(play.action_bytes))
    for session in sessions[:3]:
        at = client.locate(session.session_id).host_id
        for name in [f"host-{name}" for name in "abcabc"]:
            if name != at and client.move(session.session_id, name, timeout_s=60).state == move_pb2.MOVE_STATE_MOVED:
                at = name


def _at_load(
    client: Client,
    sessions: Sequence[Session],
    load: float,
    capacity: float,
    options: argparse.Namespace,
    chance: random.Random,
) -> Tally:
    """Ask for moves for `options.seconds` at `load` times `capacity` (moves/s), then wait until all are over."""
    asked: list[move_pb2.Move] = []
    busy = 0
    lock = threading.Lock()

    def ask(session: Session) -> None:
        nonlocal busy
        end_s = time.monotonic() + options.patience
        try:
            while True:
                left_s = max(end_s - time.monotonic(), 0.0)
                move = client.request_move(session.session_id, patience_s=left_s)
                if move.verdict.kind != move_pb2.VERDICT_KIND_DEFER or not left_s:
                    break
                time.sleep(move.verdict.retry_after_s)
        except Owned:  # in a move already: the load has no session to move there
            with lock:
                busy += 1
            return
        with lock:
            asked.append(move)

    threads = []
    end_s = time.monotonic() + options.seconds
    next_s = time.monotonic()
    while next_s < end_s:
        time.sleep(max(0.0, next_s - time.monotonic()))
        thread = threading.Thread(target=ask, args=(chance.choice(sessions),))
        thread.start()
        threads.append(thread)
        next_s += chance.expovariate(load * capacity)
    for thread in threads:
        thread.join()
    admitted = [client.wait(move.move_id) for move in asked if move.verdict.kind == move_pb2.VERDICT_KIND_ADMIT]
    done = [move for move in admitted if move.state == move_pb2.MOVE_STATE_MOVED]
    late = [move for move in done if move.stages.downtime_s > _horizon_s(move)]
    return Tally(
        load,
        len(asked) + busy,
        len(admitted),
        len(done) - len(late),
        len(late),
        len(admitted) - len(done),
        sum(move.verdict.kind == move_pb2.VERDICT_KIND_REJECT for move in asked),
        sum(move.verdict.kind == move_pb2.VERDICT_KIND_DEFER for move in asked),
        busy,
        tuple(move.stages.downtime_s for move in done),
        tuple(_told(move) for move in admitted if move in late or move not in done),
    )


def _told(move: move_pb2.Move) -> str:
    stages = move.stages
    return (
        f"{move.source_host_id} to {move.destination_host_id}: {move.reason or 'late'}, predicted "
        f"{move.verdict.predicted_s:.3f} s, freeze {stages.freeze_s:.3f}, wire {stages.wire_s:.3f}, verify "
        f"{stages.verify_s:.3f}, release {stages.release_s:.3f}, commit {stages.commit_s:.3f}, downtime "
        f"{stages.downtime_s:.3f} s"
    )


def _horizon_s(move: move_pb2.Move) -> float:
    return move.plan.deadline_s


def _print(facts: report.Facts, gbps: float, alone_s: float, horizon_s: float, tallies: Sequence[Tally]) -> None:
    size_bytes = engine.preset_of(engine.installed()[ENGINE], PRESET).state_bytes
    out = Console(width=120, highlight=False)
    out.print(
        f"{facts['cpu']}, {facts['cores']} cores; 3 hosts, links of {gbps:g} Gb/s, {PRESET} ({size_bytes} bytes): "
        f"a move alone {alone_s * 1e3:.0f} ms, horizon {horizon_s * 1e3:.0f} ms"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("load", "offered", "admitted", "on time", "late", "aborted", "reject", "defer", "busy", "downtime"):
        table.add_column(name, justify="right")
    for tally in tallies:
        middle = f"{statistics.median(tally.downtimes_s) * 1e3:.0f} ms" if tally.downtimes_s else ""
        counts = (
            tally.offered,
            tally.admitted,
            tally.on_time,
            tally.late,
            tally.aborted,
            tally.rejected,
            tally.deferred,
            tally.busy,
        )
        table.add_row(f"{tally.load:g}", *map(str, counts), middle)
    out.print(table)
    for tally in tallies:
        for miss in tally.misses:
            out.print(f"missed at {tally.load:g}: {miss}")
    rows = [
        {
            "name": f"load {tally.load:g}",
            "bytes": size_bytes,
            "offered": tally.offered,
            "admitted": tally.admitted,
            "on_time": tally.on_time,
            "late": tally.late,
            "aborted": tally.aborted,
            "rejected": tally.rejected,
            "deferred": tally.deferred,
            "busy": tally.busy,
        }
        for tally in tallies
    ]
    told = {**facts, "link_gbps": gbps, "alone_s": alone_s, "horizon_s": horizon_s}
    out.print(f"written to {report.store('live', report.document(told, rows))}")


if __name__ == "__main__":
    main()

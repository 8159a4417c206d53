"""`python -m benchmarks.fan_in`: several verified moves into one receiver over one shaped link, chunk by chunk.

For each placement: how long all moves take, and the longest time in which one stream landed no chunk, beside what its
fair share of the link predicts. A figure shows every chunk as it landed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import report
from benchmarks.namespaces import places
from benchmarks.report import RESULTS, Row
from mover.job import Job
from mover.settings import default_congestion
from mover.transports import TransportConfig, open_transports
from worldline.plan import Chunk, Placement, Plan
from worldline.transport import Landed, Listener, ReceiveLink, SendLink, Terms, Transport

LINK_BPS = 10e9 / 8
PATIENT_S = 60.0
PLACEMENTS = (Placement.PIPELINED, Placement.IN_PATH)
# Seconds after the first chunk of all, for each chunk of one stream.
Times = list[float]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: seconds until every move was verified, and when chunks landed, by stream."""

    seconds: float
    streams: list[Times]

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which a stream landed nothing, between its first and its last chunk."""
        return max(later - earlier for times in self.streams for earlier, later in pairwise(times))


class _TimedLink:
    """A receiving end that notes when each chunk had landed."""

    def __init__(self, link: ReceiveLink, times: Times) -> None:
        self.traceparent = link.traceparent
        self._link = link
        self._times = times

    def next(self) -> Landed | None:
        landed = self._link.next()
        if landed is not None:
            self._times.append(time.monotonic())
        return landed

    def answer(self, wanted_again: Sequence[int]) -> None:
        self._link.answer(wanted_again)

    def busy(self) -> None:
        self._link.busy()

    def close(self) -> None:
        self._link.close()


class _TimedListener:
    def __init__(self, listener: Listener, streams: list[Times]) -> None:
        self.endpoint = listener.endpoint
        self._listener = listener
        self._streams = streams

    def accept(self) -> ReceiveLink:
        link = self._listener.accept()
        self._streams.append([])
        return _TimedLink(link, self._streams[-1])

    def close(self) -> None:
        self._listener.close()


class _Timed:
    """The transport whose receiving ends note times into `streams`."""

    name = "tcp"

    def __init__(self, transport: Transport) -> None:
        self.streams: list[Times] = []
        self._transport = transport

    def listen(self, region: memoryview, chunks: Sequence[Chunk], terms: Terms) -> Listener:
        return _TimedListener(self._transport.listen(region, chunks, terms), self.streams)

    def connect(
        self, region: memoryview, chunks: Sequence[Chunk], terms: Terms, endpoint: str, stream: int
    ) -> SendLink:
        return self._transport.connect(region, chunks, terms, endpoint, stream)

    def close(self) -> None:
        self._transport.close()


def _plan(placement: Placement, chunk_bytes: int, streams: int) -> Plan:
    return Plan("tcp", chunk_bytes, streams, placement, PATIENT_S, PATIENT_S, PATIENT_S)


def _terms(token: str, streams: int, number: int) -> Terms:
    return Terms(str(uuid.UUID(int=number)), bytes.fromhex(token), streams, PATIENT_S)


def _region(size_bytes: int, *, random: bool) -> int:
    descriptor = os.memfd_create("worldline-bench")
    os.ftruncate(descriptor, size_bytes)
    noise = os.urandom(1 << 20) if random else bytes(1 << 20)
    for at in range(0, size_bytes, 1 << 20):
        os.pwrite(descriptor, noise[: size_bytes - at], at)
    return descriptor


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def receive(size_bytes: int, chunk_bytes: int, streams: int, moves: int, *, host: str) -> None:
    """The receiving process: one command a line, for all moves at once."""
    regions = [_region(size_bytes, random=False) for _ in range(moves)]
    config = TransportConfig(data_listen=f"{host}:0", congestion=default_congestion())
    transport = open_transports(("tcp",), config)["tcp"]
    _say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        plan = _plan(Placement[command["placement"]], chunk_bytes, streams)
        jobs, endpoints, streams_of_all = [], [], []
        for number, token in enumerate(command["tokens"]):
            timed = _Timed(transport)
            streams_of_all.append(timed.streams)
            job = Job({"tcp": timed}, 1)
            job.map(os.dup(regions[number]), size_bytes, writable=True)
            endpoints.append(job.listen(plan, _terms(token, streams, number)))
            jobs.append(job)
        _say(endpoints)
        threads = [threading.Thread(target=job.run, args=(PATIENT_S, lambda progress: None)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        landed = [times for streams_of_one in streams_of_all for times in streams_of_one]
        first = min(times[0] for times in landed)
        _say([[at - first for at in times] for times in landed])
        for job in jobs:
            job.close()


def send(size_bytes: int, chunk_bytes: int, streams: int, number: int) -> None:
    """One sending process: one command a line."""
    region = _region(size_bytes, random=True)
    transports = open_transports(("tcp",), TransportConfig(congestion=default_congestion()))
    _say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        plan = _plan(Placement[command["placement"]], chunk_bytes, streams)
        job = Job(transports, 1)
        job.map(os.dup(region), size_bytes, writable=False)
        job.connect(plan, _terms(command["token"], streams, number), command["endpoint"], (), lambda kind, chunk: None)
        _say("connected")
        sys.stdin.readline()
        job.run(PATIENT_S, lambda progress: None)
        _say("done")
        job.close()


class Child:
    """A process of this module, seen from the driver."""

    def __init__(self, within: Sequence[str], *arguments: object) -> None:
        command = [*within, sys.executable, "-m", "benchmarks.fan_in", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hear()

    def ask(self, command: object) -> None:
        """Send a command."""
        if self._process.stdin is None:
            raise SystemExit("no pipe")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> object:
        """The next answer."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("a process of the benchmark has ended")
        answer: object = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def run_once(receiver: Child, senders: Sequence[Child], placement: Placement) -> Ran:
    """All moves at once."""
    tokens = [os.urandom(32).hex() for _ in senders]
    receiver.ask({"placement": placement.name, "tokens": tokens})
    endpoints = receiver.hear()
    if not isinstance(endpoints, list):
        raise SystemExit(f"the receiver said {endpoints}")
    for sender, endpoint, token in zip(senders, endpoints, tokens, strict=True):
        sender.ask({"placement": placement.name, "endpoint": endpoint, "token": token})
        sender.hear()
    start = time.perf_counter()
    for sender in senders:
        sender.ask("go")
    for sender in senders:
        sender.hear()
    streams = receiver.hear()
    taken_s = time.perf_counter() - start
    if not isinstance(streams, list):
        raise SystemExit(f"the receiver said {streams}")
    return Ran(taken_s, streams)


def figure(runs: dict[Placement, Ran], streams: int, fair_s: float) -> str:
    """Every chunk of one run of each placement. Returns where it was written."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 1.6 * len(runs) + 1), layout="constrained")
    axes = drawn.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (placement, ran) in zip(axes, runs.items(), strict=True):
        for number, times in enumerate(ran.streams):
            axis.plot(times, [number] * len(times), "|", color=f"C{number // streams}", markersize=12)
        longest = f"longest gap {ran.longest_gap_s * 1e3:.0f} ms, fair share {fair_s * 1e3:.0f} ms a chunk"
        axis.set_title(f"{placement.name}: {longest}", fontsize=9, loc="left")
        axis.set_yticks(range(len(ran.streams)))
        axis.set_ylabel("stream")
    axes[-1].set_xlabel("seconds since the first chunk; colour: move")
    path = RESULTS / "fan-in.svg"
    drawn.savefig(path)
    return str(path)


def main() -> None:
    """Run all placements in turns and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=512 << 20, help="of each move")
    parser.add_argument("--chunk-bytes", type=int, default=4 << 20)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--moves", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    facts = report.host()
    size_bytes, chunk_bytes, streams, moves = options.bytes, options.chunk_bytes, options.streams, options.moves
    fair_s = chunk_bytes * moves * streams / LINK_BPS
    ran: dict[Placement, list[Ran]] = {placement: [] for placement in PLACEMENTS}
    with places(["receiver"], LINK_BPS) as made:
        there = made["receiver"]
        shape = (size_bytes, chunk_bytes, streams)
        receiver = Child(there.within, "receive", *shape, moves, there.address)
        senders = [Child((), "send", *shape, number) for number in range(moves)]
        for number in range(options.runs + 1):
            for placement in PLACEMENTS:
                result = run_once(receiver, senders, placement)
                if number:
                    ran[placement].append(result)
        for child in (receiver, *senders):
            child.close()
    rows: list[Row] = []
    for placement, results in ran.items():
        first = rows[0].name if rows else ""
        rows.append(
            Row(f"{moves} moves, {placement.name}", moves * size_bytes, first, [item.seconds for item in results])
        )
        gaps = [item.longest_gap_s for item in results]
        facts[f"longest_gap_over_fair_share_{placement.name}"] = str([round(gap / fair_s, 2) for gap in gaps])
        print(f"{placement.name}: longest gap {statistics.median(gaps) / fair_s:.1f} fair shares (median of runs)")
    facts |= {"link_gbit": LINK_BPS * 8 / 1e9, "chunk_bytes": chunk_bytes, "streams": streams, "moves": moves}
    facts["fair_share_s_a_chunk"] = round(fair_s, 6)
    report.write("fan-in", rows, facts)
    middle = {
        placement: sorted(each, key=lambda item: item.longest_gap_s)[len(each) // 2] for placement, each in ran.items()
    }
    print(f"figure: {figure(middle, streams, fair_s)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["receive"]:
        receive(*map(int, sys.argv[2:6]), host=sys.argv[6])
    elif sys.argv[1:2] == ["send"]:
        send(*map(int, sys.argv[2:6]))
    else:
        main()

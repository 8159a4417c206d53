"""Suite `fan-in`: several verified moves into one receiver over one link, chunk by chunk.

For each placement: how long all moves take, and the longest time in which a move landed no chunk, beside what its fair
share of the link predicts. A figure shows every chunk as it landed. `python -m benchmarks.fan_in receive|send SIZE ...`
is one of the processes.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.child import Child, say
from benchmarks.namespaces import link
from benchmarks.report import Row
from benchmarks.suite import CHUNK_BYTES, PATIENT_S, STREAMS, Figures, Setup, plan
from benchmarks.wire import CONGESTION, Bare, in_short, memory, noise, together
from mover.job import Job
from mover.memory import Region
from mover.settings import default_lane_threads
from mover.transports import TransportConfig, open_transports
from worldline.cli.pictures import require_plots
from worldline.errors import DataLoss, Internal
from worldline.plan import Chunk, Placement
from worldline.transport import Landed, Listener, ReceiveLink, SendLink, Terms, Transport

LINK_GBIT = 10.0
MOVES = 2
# Of each move; more shows nothing new.
MOST_BYTES = 512 << 20
PLACEMENTS = (Placement.PIPELINED.name, Placement.IN_PATH.name)
RAW_SOCKET = "raw socket"
# Seconds after the first chunk of all, for each chunk of one stream.
Times = list[float]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: seconds until every move was verified, and when chunks landed, by stream; a move's streams together."""

    seconds: float
    streams: list[Times]

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which a stream landed nothing, between its first and its last chunk."""
        return max((later - earlier for times in self.streams for earlier, later in pairwise(times)), default=0.0)

    @property
    def longest_stall_s(self) -> float:
        """The longest time in which a move landed nothing, between the first chunk of all and its own last."""
        moves = [
            sorted(time_s for times in self.streams[at : at + STREAMS] for time_s in times)
            for at in range(0, len(self.streams), STREAMS)
        ]
        return max(later - earlier for times in moves for earlier, later in pairwise([0.0, *times]))


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


def _terms(token: str, number: int) -> Terms:
    return Terms(str(uuid.UUID(int=number)), bytes.fromhex(token), STREAMS, PATIENT_S)


class Receiver:
    """The receiving process: one command a line, for all moves at once."""

    def __init__(self, size_bytes: int, host: str) -> None:
        self._size_bytes, self._host = size_bytes, host
        self._memories = [memory(size_bytes) for _ in range(MOVES)]
        config = TransportConfig(data_listen=f"{host}:0", congestion=CONGESTION)
        self._transport = open_transports(("tcp",), config)["tcp"]

    def bare(self) -> None:
        """All over plain sockets."""
        listeners = [socket.create_server((self._host, 0)) for _ in self._memories]
        regions = [Region(descriptor, self._size_bytes, writable=True) for descriptor in self._memories]
        for region, listener in zip(regions, listeners, strict=True):
            region.populate()
            Bare.tune(listener)
        say([str(listener.getsockname()[1]) for listener in listeners])
        landed: list[list[Times]] = [[[] for _ in range(STREAMS)] for _ in regions]
        together(
            [
                partial(_bare(region, self._size_bytes).receive, listener, partial(_note, times))
                for region, listener, times in zip(regions, listeners, landed, strict=True)
            ]
        )
        say({"streams": _since_first(landed), "checksums": ["" for _ in regions]})
        for region, listener in zip(regions, listeners, strict=True):
            region.close()
            listener.close()

    def moves(self, placement: Placement, tokens: Sequence[str]) -> None:
        """All as moves, and when their chunks landed."""
        timed = [_Timed(self._transport) for _ in tokens]
        jobs = [Job({"tcp": each}, default_lane_threads()) for each in timed]
        endpoints = []
        for number, (job, token) in enumerate(zip(jobs, tokens, strict=True)):
            job.map(os.dup(self._memories[number]), self._size_bytes, writable=True)
            endpoints.append(job.listen(plan(placement), _terms(token, number)))
        say(endpoints)
        ended = together([partial(job.run, PATIENT_S, lambda progress: None) for job in jobs])
        streams = _since_first([each.streams for each in timed])
        say({"streams": streams, "checksums": [in_short(outcome.crcs) for outcome in ended]})
        for job in jobs:
            job.close()


def _note(streams: Sequence[Times], stream: int) -> None:
    streams[stream].append(time.monotonic())


def _since_first(moves: Sequence[Sequence[Times]]) -> list[Times]:
    """All streams, move by move, in seconds since the first chunk of all."""
    landed = [times for streams in moves for times in streams]
    first = min(times[0] for times in landed if times)
    return [[at - first for at in times] for times in landed]


def receive(size_bytes: int, host: str) -> None:
    """The receiving process."""
    receiver = Receiver(size_bytes, host)
    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        if command["arm"] == RAW_SOCKET:
            receiver.bare()
        else:
            receiver.moves(Placement[command["arm"]], command["tokens"])


def send(size_bytes: int, number: int, host: str) -> None:
    """One sending process: one command a line."""
    descriptor = memory(size_bytes)
    region = Region(descriptor, size_bytes, writable=True)
    region.populate()
    noise(region.view)
    transports = open_transports(("tcp",), TransportConfig(congestion=CONGESTION))
    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        if command["arm"] == RAW_SOCKET:
            say({"connected": "yes"})
            sys.stdin.readline()
            _bare(region, size_bytes).send(host, int(command["endpoint"]))
            say({"checksums": ""})
            continue
        job = Job(transports, default_lane_threads())
        job.map(os.dup(descriptor), size_bytes, writable=False)
        chosen = plan(Placement[command["arm"]])
        job.connect(chosen, _terms(command["token"], number), command["endpoint"], (), lambda kind, chunk: None)
        say({"connected": "yes"})
        sys.stdin.readline()
        outcome = job.run(PATIENT_S, lambda progress: None)
        say({"checksums": in_short(outcome.crcs)})
        job.close()


def _bare(region: Region, size_bytes: int) -> Bare:
    return Bare(region.view, plan().chunks(size_bytes), STREAMS)


def run_once(receiver: Child, senders: Sequence[Child], arm: str) -> Ran:
    """All moves at once, over plain sockets or with a placement. Raises DataLoss if checksums differ."""
    tokens = [os.urandom(32).hex() for _ in senders]
    receiver.ask({"arm": arm, "tokens": tokens})
    endpoints = receiver.answer()
    if not isinstance(endpoints, list):
        raise Internal(f"the receiver said {endpoints}")
    for sender, endpoint, token in zip(senders, endpoints, tokens, strict=True):
        sender.ask({"arm": arm, "endpoint": endpoint, "token": token})
        sender.told("connected")
    start = time.perf_counter()
    for sender in senders:
        sender.ask("go")
    sent = [sender.told("checksums") for sender in senders]
    received = receiver.answer()
    taken_s = time.perf_counter() - start
    if not isinstance(received, dict) or received["checksums"] != sent:
        raise DataLoss(f"the senders have checksums {sent}; the receiver said {str(received)[:200]}")
    return Ran(taken_s, received["streams"])


def draw(runs: dict[str, Ran], fair_s: float, path: Path) -> None:
    """Every chunk of one run of each placement."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 1.6 * len(runs) + 1), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (placement, ran) in zip(axes, runs.items(), strict=True):
        for number, times in enumerate(ran.streams):
            axis.plot(times, [number] * len(times), "|", color=f"C{number // STREAMS}", markersize=12)
        longest = f"longest stall of a move {ran.longest_stall_s * 1e3:.0f} ms, predicted {fair_s * 1e3:.0f} ms at most"
        axis.set_title(f"{placement}: {longest}", fontsize=9, loc="left")
        axis.set_yticks(range(len(ran.streams)))
        axis.set_ylabel("stream")
    axes[-1].set_xlabel("seconds since the first chunk; colour: move")
    drawn.savefig(path)


def run(setup: Setup) -> Figures:
    """Every placement in turns over one link. Raises Unsupported without plots."""
    require_plots([])
    gbit = LINK_GBIT if setup.link_gbit is None else setup.link_gbit
    size_bytes = min(setup.size_bytes, MOST_BYTES)
    ran: dict[str, list[Ran]] = {arm: [] for arm in (RAW_SOCKET, *PLACEMENTS)}
    with link(["receiver"], gbit) as made, ExitStack() as stack:
        there = made.places["receiver"]
        receiver = stack.enter_context(
            Child("benchmarks.fan_in", "receive", size_bytes, there.address, within=there.within)
        )
        senders = [
            stack.enter_context(Child("benchmarks.fan_in", "send", size_bytes, number, there.address))
            for number in range(MOVES)
        ]
        for number in range(setup.runs + 1):
            for arm in ran:
                result = run_once(receiver, senders, arm)
                if number:
                    ran[arm].append(result)
    rows = [
        Row(
            f"{MOVES} at once, {arm}",
            MOVES * size_bytes,
            "" if arm == RAW_SOCKET else f"{MOVES} at once, {RAW_SOCKET}",
            [item.seconds for item in results],
        )
        for arm, results in ran.items()
    ]
    # Of what the link carried in this run, headers left out.
    fair_s = CHUNK_BYTES * MOVES * STREAMS / (MOVES * size_bytes / rows[0].median_s)
    facts: dict[str, str | int | float] = {"link_gbit": gbit, "chunk_bytes": CHUNK_BYTES, "streams": STREAMS}
    facts |= {"moves": MOVES, "predicted_longest_stall_s": round(fair_s, 6)}
    notes = [
        f"prediction: {MOVES * STREAMS} streams that share fairly what raw sockets carried land a chunk each in "
        f"{fair_s * 1e3:.1f} ms; raw sockets, which check nothing, tell how fairly the link shares"
    ]
    for placement, results in ran.items():
        stalls = [item.longest_stall_s for item in results]
        gaps = [item.longest_gap_s for item in results]
        facts[f"longest_stall_s_{placement}"] = round(max(stalls), 6)
        facts[f"longest_stall_over_predicted_{placement}"] = str([round(each / fair_s, 2) for each in stalls])
        facts[f"longest_gap_over_fair_share_{placement}"] = str([round(each / fair_s, 2) for each in gaps])
        held = sum(each <= fair_s for each in stalls)
        notes.append(
            f"{placement}: longest stall of a move {max(stalls) * 1e3:.1f} ms, median "
            f"{statistics.median(stalls) * 1e3:.1f} ms: within the prediction in {held} of {len(stalls)} runs; of a "
            f"stream {max(gaps) * 1e3:.1f} ms"
        )
    middle = {
        placement: sorted(each, key=lambda item: item.longest_stall_s)[len(each) // 2]
        for placement, each in ran.items()
    }
    return Figures(rows, facts, notes, partial(draw, middle, fair_s))


def main(arguments: Sequence[str]) -> None:
    """One of the processes."""
    size_bytes = int(arguments[1])
    if arguments[0] == "receive":
        receive(size_bytes, arguments[2])
    else:
        send(size_bytes, int(arguments[2]), arguments[3])


if __name__ == "__main__":
    main(sys.argv[1:])

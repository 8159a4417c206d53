"""Suite `duplex`: two verified moves in opposite directions at once, beside one alone and beside raw sockets.

`python -m benchmarks.duplex SIZE HOST` is one of the two ends: it sends one region and receives into another. Each end
is one process, so that both directions share its processors as they would on a node.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from time import perf_counter

from benchmarks.child import Child, say
from benchmarks.report import Row
from benchmarks.suite import PATIENT_S, Figures, Setup, plan
from benchmarks.wire import CONGESTION, Bare, in_short, memory, noise, together
from mover.job import Job
from mover.memory import Region
from mover.settings import default_lane_threads
from mover.transports import TransportConfig, open_transports
from worldline.errors import DataLoss
from worldline.plan import Placement
from worldline.transport import Terms

HOST = "127.0.0.1"
_PLAN = plan(Placement.PIPELINED)


def run(setup: Setup) -> Figures:
    """One direction and both, over raw sockets and verified; arms take turns."""
    size_bytes = setup.size_bytes
    bare_one = Row("raw socket, one way", size_bytes)
    bare_both = Row("raw socket, both ways", 2 * size_bytes)
    one = Row("verified, one way", size_bytes, bare_one.name)
    both = Row("verified, both ways", 2 * size_bytes, bare_both.name)
    rows = (bare_one, bare_both, one, both)
    with Child("benchmarks.duplex", size_bytes, HOST) as a, Child("benchmarks.duplex", size_bytes, HOST) as b:
        for number in range(setup.runs + 1):
            taken = {
                bare_one.name: once((a,), (b,), "bare"),
                bare_both.name: once((a, b), (b, a), "bare"),
                one.name: once((a,), (b,), "job"),
                both.name: once((a, b), (b, a), "job"),
            }
            if number:
                for row in rows:
                    row.seconds.append(taken[row.name])
    of_one, of_both = bare_both.median_s / bare_one.median_s, both.median_s / one.median_s
    facts: dict[str, str | int | float] = {
        "both_over_one_raw": round(of_one, 3),
        "both_over_one_verified": round(of_both, 3),
    }
    notes = [f"both ways take {of_both:.2f} times as long as one way; over raw sockets {of_one:.2f} times"]
    return Figures(rows, facts, notes)


def once(senders: tuple[Child, ...], receivers: tuple[Child, ...], arm: str) -> float:
    """Seconds until every receiver has all, and all checksums where there are any; sender n sends to receiver n."""
    for sender, receiver in zip(senders, receivers, strict=True):
        token = os.urandom(32).hex()
        receiver.ask({"do": "receive", "arm": arm, "token": token})
        endpoint = receiver.told("endpoint")
        sender.ask({"do": "send", "arm": arm, "token": token, "endpoint": endpoint})
        sender.told("connected")
    ends = tuple({*senders, *receivers})
    start = perf_counter()
    for end in ends:
        end.ask({"do": "go"})
    told = {end: end.answer() for end in ends}
    taken_s = perf_counter() - start
    for sender, receiver in zip(senders, receivers, strict=True):
        sent, received = told[sender], told[receiver]
        if not (isinstance(sent, dict) and isinstance(received, dict) and sent["send"] == received["receive"]):
            raise DataLoss(f"the two ends of a move have different checksums: {sent} and {received}")
    return taken_s


class End:
    """One end; `prepare` answers, and what it returns runs at "go". `checksums` are those of the last run, in short."""

    def __init__(self, size_bytes: int, host: str) -> None:
        self.checksums = {"send": "", "receive": ""}
        self._host, self._size_bytes = host, size_bytes
        self._descriptors = {"send": memory(size_bytes), "receive": memory(size_bytes)}
        self._regions = {
            name: Region(descriptor, size_bytes, writable=True) for name, descriptor in self._descriptors.items()
        }
        for region in self._regions.values():
            region.populate()
        noise(self._regions["send"].view)
        self._transports = open_transports(("tcp",), TransportConfig(data_listen=f"{host}:0", congestion=CONGESTION))

    def prepare(self, command: Mapping[str, str]) -> Callable[[], object]:
        """Connect or listen, and answer."""
        what = command["do"]
        if command["arm"] == "bare":
            return self._bare(what, command)
        terms = Terms(str(uuid.UUID(int=0)), bytes.fromhex(command["token"]), _PLAN.streams, PATIENT_S)
        job = Job(self._transports, default_lane_threads())
        job.map(os.dup(self._descriptors[what]), self._size_bytes, writable=what == "receive")
        if what == "receive":
            say({"endpoint": job.listen(_PLAN, terms)})
        else:
            job.connect(_PLAN, terms, command["endpoint"], (), lambda kind, chunk: None)
            say({"connected": "yes"})

        def go() -> None:
            self.checksums[what] = in_short(job.run(PATIENT_S, lambda progress: None).crcs)
            job.close()

        return go

    def _bare(self, what: str, command: Mapping[str, str]) -> Callable[[], object]:
        bare = Bare(self._regions[what].view, _PLAN.chunks(self._size_bytes), _PLAN.streams)
        if what == "send":
            say({"connected": "yes"})
            return lambda: bare.send(self._host, int(command["endpoint"]))
        listener = socket.create_server((self._host, 0))
        Bare.tune(listener)
        say({"endpoint": str(listener.getsockname()[1])})

        def go() -> None:
            with listener:
                bare.receive(listener)

        return go


def main(size_bytes: int, host: str) -> None:
    """One end."""
    end = End(size_bytes, host)
    say("ready")
    waiting: list[Callable[[], object]] = []
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] != "go":
            waiting.append(end.prepare(command))
            continue
        together(waiting)
        waiting.clear()
        say(end.checksums)
        end.checksums = dict.fromkeys(end.checksums, "")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

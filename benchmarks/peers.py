"""Suite `peers`: NIXL and Mooncake over TCP beside a raw socket and the mover, bare and with checksums added.

None of them checks bytes by itself. A peer that is not installed has a row that says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from benchmarks.child import Child
from benchmarks.peer_end import PEERS, lack_of
from benchmarks.report import Row
from benchmarks.suite import Figures, Setup, plan
from benchmarks.wire import Arms
from worldline.errors import DataLoss

HOST = "127.0.0.1"


def run(setup: Setup) -> Figures:
    """Every peer that is here, in turns with the ceiling and the mover."""
    size_bytes = setup.size_bytes
    rows = [Row("raw socket", size_bytes), Row("verify off", size_bytes, "raw socket")]
    rows.append(Row("verified", size_bytes, "raw socket"))
    notes = ["peers have no checksums of their own: those added check all bytes at both ends, after the transfer"]
    with ExitStack() as stack:
        arms = stack.enter_context(Arms(size_bytes, plan()))
        timed: dict[str, Callable[[], float]] = {
            "raw socket": arms.bare,
            "verify off": partial(arms.job, verified=False),
            "verified": partial(arms.job, verified=True),
        }
        for name in PEERS:
            bare, checked = f"{name} over TCP", f"{name} over TCP, with checksums"
            lack = lack_of(name)
            rows += [Row(each, size_bytes, "raw socket", note=lack) for each in (bare, checked)]
            if not lack:
                ends = [stack.enter_context(Child("benchmarks.peer_end", name, size_bytes, HOST)) for _ in range(2)]
                introduce(*ends)
                for end in ends:
                    end.rest()
                timed[bare] = partial(once, *ends, checked=False)
                timed[checked] = partial(once, *ends, checked=True)
        for number in range(setup.runs + 1):
            for row in rows:
                if row.name in timed:
                    taken_s = timed[row.name]()
                    if number:
                        row.seconds.append(taken_s)
    return Figures(rows, {"cores": os.cpu_count() or 0}, notes)


def introduce(sender: Child, receiver: Child) -> None:
    """Tell both ends of each other."""
    for end, other in ((sender, receiver), (receiver, sender)):
        other.ask({"do": "describe"})
        end.ask({"do": "connect", "description": other.told("description")})
        end.told("done")


def once(sender: Child, receiver: Child, *, checked: bool) -> float:
    """Seconds of one transfer; both ends are compared after each, and `checked` counts that. Raises DataLoss."""
    with sender.awake(), receiver.awake():
        sender.ask({"do": "stir"})
        sender.told("done")
        start = perf_counter()
        sender.ask({"do": "write"})
        sender.told("done")
        written_s = perf_counter() - start
        for end in (sender, receiver):
            end.ask({"do": "checksum"})
        sent, received = sender.told("crc"), receiver.told("crc")
        checked_s = perf_counter() - start
    if sent != received:
        raise DataLoss("a peer's transfer ended, and the bytes at both ends differ")
    return checked_s if checked else written_s

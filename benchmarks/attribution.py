"""Whether figures can be attributed to what was measured: what else this machine did before, during and after.

The rules are pure functions of readings of /proc, so that they can be tested with readings that are made up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Load average of the last minute, for each core, at which a machine still counts as idle.
IDLE_LOAD = 0.5
# Threads that the two ends of a benchmark may keep runnable for each core: streams, lanes, codec.
OWN_LOAD = 4.0
# Shares of all processor time during the runs.
MAX_STEAL_SHARE = 0.02
MAX_OTHERS_SHARE = 0.05
# /proc/stat counts samples of 10 ms: over short runs a few of them are no finding.
LEAST_S = 0.1
# The kernel's own threads (PF_KTHREAD): what they do for a link or for memory is our doing.
_KERNEL_THREAD = 0x00200000
# Without these nobody knows what was measured; see `report.host`.
FINGERPRINT = ("cpu", "cores", "memory_bytes", "kernel", "python", "crc_library")


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor seconds since the machine started, of all cores, at `at_s` of the monotonic clock.

    `busy_s`: in processes, the kernel's included; `own_s`: in this process and all under it; `others_s`: in every other
    process that can be seen; `steal_s`: taken by the hypervisor.
    """

    at_s: float
    cores: int
    load_1min: float
    busy_s: float
    steal_s: float
    own_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """What was found; `failures` is empty where figures can be attributed."""

    load_before: float
    load_after: float
    steal_share: float
    others_share: float
    elapsed_s: float
    failures: tuple[str, ...]

    def as_json(self) -> dict[str, bool | float | list[str]]:
        """As it is stored beside the figures."""
        return {
            "attributed": not self.failures,
            "failures": list(self.failures),
            "load_before": round(self.load_before, 2),
            "load_after": round(self.load_after, 2),
            "steal_share": round(self.steal_share, 4),
            "others_share": round(self.others_share, 4),
            "elapsed_s": round(self.elapsed_s, 3),
        }


def read(proc: Path = PROC, root: int | None = None) -> Reading:
    """One reading; `root` is the process whose tree counts as ours, this one if not given.

    Raises:
        OSError, ValueError: `proc` is not what Linux has there.
    """
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    lines = (proc / "stat").read_text().splitlines()
    user, nice, system, _, _, _, _, steal = (int(item) for item in lines[0].split()[1:9])
    cores = sum(line.startswith("cpu") for line in lines[1:])
    own, others = _shares(_processes(proc), os.getpid() if root is None else root)
    load = float((proc / "loadavg").read_text().split()[0])
    busy_s, steal_s = (user + nice + system) * tick_s, steal * tick_s
    return Reading(time.monotonic(), cores, load, busy_s, steal_s, own * tick_s, others * tick_s)


def _processes(proc: Path) -> dict[int, tuple[int, int]]:
    """Process -> its parent, and the ticks of it and of its children that have ended; no threads of the kernel."""
    found = {}
    for path in proc.iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since the listing
        if not int(fields[6]) & _KERNEL_THREAD:
            found[int(path.name)] = int(fields[1]), sum(int(item) for item in fields[11:15])
    return found


def _shares(processes: Mapping[int, tuple[int, int]], root: int) -> tuple[int, int]:
    """Ticks of the tree under `root`, and of all others."""
    own = others = 0
    for process, (_, ticks) in processes.items():
        at = process
        while at != root and at in processes:
            at = processes[at][0]
        if at == root:
            own += ticks
        else:
            others += ticks
    return own, others


def lacks_before(reading: Reading, host: Mapping[str, str | int | float], *, ran_before: bool = False) -> list[str]:
    """Why nothing should be measured now. `ran_before`: this command's own runs are still in the load average."""
    lacks = [f"the host's fingerprint lacks {name}" for name in FINGERPRINT if not host.get(name)]
    return lacks + _overload("before the first run", reading, own=ran_before)


def judge(before: Reading, after: Reading, lacks: list[str]) -> Attribution:
    """What two readings around the runs say; `lacks` are those of `lacks_before`."""
    elapsed_s = after.at_s - before.at_s
    machine_s = max(elapsed_s * after.cores, 1e-9)
    steal_s = after.steal_s - before.steal_s
    own_s = after.own_s - before.own_s
    # What can be seen of other processes, and what the machine spent beyond ours: each sees what the other cannot.
    others_s = max(after.others_s - before.others_s, after.busy_s - before.busy_s - own_s, 0.0)
    failures = list(lacks)
    if steal_s > max(MAX_STEAL_SHARE * machine_s, LEAST_S):
        failures.append(
            f"the hypervisor took {steal_s:.2f} s, {steal_s / machine_s:.1%} of the processor time during the runs; "
            f"at most {MAX_STEAL_SHARE:.0%} are borne"
        )
    if others_s > max(MAX_OTHERS_SHARE * machine_s, LEAST_S):
        failures.append(
            f"other processes used {others_s:.2f} s, {others_s / machine_s:.1%} of the processor time during the runs; "
            f"at most {MAX_OTHERS_SHARE:.0%} are borne: stop them"
        )
    failures += _overload("after the last run", after, own=True)
    return Attribution(
        before.load_1min, after.load_1min, steal_s / machine_s, others_s / machine_s, elapsed_s, tuple(failures)
    )


def _overload(when: str, reading: Reading, *, own: bool) -> list[str]:
    most = (IDLE_LOAD + (OWN_LOAD if own else 0.0)) * reading.cores
    if reading.load_1min <= most:
        return []
    return [
        f"the load average of the last minute is {reading.load_1min:.2f} {when}; at most {most:.2f} is borne on "
        f"{reading.cores} cores: wait until the machine is idle"
    ]

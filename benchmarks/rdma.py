"""`make bench-rdma`: what moves over verbs cost beside two ceilings, all arms in turns within one run.

`ib_write_bw` is perftest's own loop, `bare verbs` ours with nothing around it (same message size, one queue pair);
`verify off` and `verified` are the mover's pipeline between two processes, without and with checksums. On the emulated
devices of the lab only the ratios mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import report
from benchmarks.report import Row
from mover.job import Job
from mover.memory import Region
from mover.settings import default_lane_threads
from mover.transports import TransportConfig, open_transports
from mover.transports.rdma import sysfs, verbs
from mover.transports.rdma.config import RdmaConfig
from mover.transports.rdma.device import Device
from worldline.buffers import address_of
from worldline.crc import PIECE_BYTES
from worldline.plan import Placement, Plan
from worldline.transport import Terms

BARE_DEPTH = 8
PATIENT_S = 120.0
_MOVE_ID = str(uuid.UUID(int=0))
Json = dict[str, object]


class End:
    """One process's device, transports and warm region."""

    def __init__(self, device: str, size_bytes: int, *, random: bool) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("worldline-bench")
        os.ftruncate(self.descriptor, size_bytes)
        self.region = Region(self.descriptor, size_bytes, writable=True)
        self.region.populate()
        if random:
            self.region.view[:] = os.urandom(size_bytes)
        self.config = RdmaConfig(device=device)
        self.transports = open_transports(["rdma"], TransportConfig(rdma=self.config))
        self.device = Device(self.config)
        self.segment = self.device.verbs.register(address_of(self.region.view), size_bytes, verbs.REMOTE_WRITE)

    def plan(self, chunk_bytes: int, streams: int) -> Plan:
        """The plan of every transfer."""
        return Plan("rdma", chunk_bytes, streams, Placement.PIPELINED, PATIENT_S, PATIENT_S, PATIENT_S)

    def job(self, *, verified: bool, writable: bool) -> Job:
        """A job of the mover's data plane over the region."""
        job = Job(self.transports, default_lane_threads(), verified=verified)
        job.map(os.dup(self.descriptor), self.size_bytes, writable=writable)
        return job

    def bare_pair(self) -> verbs.Pair:
        """A queue pair of the bare loop."""
        return self.device.verbs.pair(2 * BARE_DEPTH, 1)


def bare_send(end: End, pair: verbs.Pair, remote: int, key: int) -> None:
    """Write the whole region in messages of `PIECE_BYTES`, `BARE_DEPTH` of them at a time."""
    count, posted, done = -(-end.size_bytes // PIECE_BYTES), 0, 0
    while done < count:
        while posted < count and posted - done < BARE_DEPTH:
            at = posted * PIECE_BYTES
            size = min(PIECE_BYTES, end.size_bytes - at)
            segment = end.segment
            pair.post_write(posted, segment.address + at, size, segment.local_key, remote + at, key, signaled=True)
            posted += 1
        completions = pair.poll()
        if any(item.status != verbs.SUCCESS for item in completions):
            raise SystemExit(f"the bare loop failed: {completions}")
        done += len(completions)
        if not completions:
            time.sleep(0.0002)


def receive(device: str, size_bytes: int, chunk_bytes: int, streams: int) -> None:
    """The receiving process: one JSON command a line, one answer a line."""
    end = End(device, size_bytes, random=False)
    plan = end.plan(chunk_bytes, streams)
    _say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command["arm"] == "bare":
            pair = end.bare_pair()
            pair.connect(end.device.route, command["gid"], command["pair"], 0, 0)
            _say(
                {
                    "gid": end.device.gid,
                    "pair": pair.number,
                    "address": end.segment.address,
                    "key": end.segment.remote_key,
                }
            )
            sys.stdin.readline()
            pair.close()
            _say({"done": True})
            continue
        terms = Terms(_MOVE_ID, bytes.fromhex(command["token"]), streams, PATIENT_S)
        job = end.job(verified=command["verified"], writable=True)
        _say({"endpoint": job.listen(plan, terms)})
        job.run(PATIENT_S, lambda progress: None)
        _say({"done": True})
        job.close()


def _say(answer: Mapping[str, object]) -> None:
    print(json.dumps(answer), flush=True)


class Bench:
    """The sending process."""

    def __init__(self, devices: tuple[str, str], size_bytes: int, chunk_bytes: int, streams: int) -> None:
        self._devices = devices
        self._size_bytes = size_bytes
        command = [sys.executable, "-m", "benchmarks.rdma", "--receive", devices[1]]
        command += ["--bytes", str(size_bytes), "--chunk-bytes", str(chunk_bytes), "--streams", str(streams)]
        self._receiver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._end = End(devices[0], size_bytes, random=True)
        self._plan = self._end.plan(chunk_bytes, streams)
        self._hear()

    def perftest(self) -> float:
        """Seconds that `ib_write_bw` takes by its own account."""
        count = str(-(-self._size_bytes // PIECE_BYTES))
        common = ["ib_write_bw", "-F", "-s", str(PIECE_BYTES), "-n", count, "-t", str(BARE_DEPTH)]
        ends = [["-d", name, "-x", str(self._gid_index(name))] for name in self._devices]
        server = subprocess.Popen([*common, *ends[1]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        threading.Event().wait(2.0)  # perftest does not say when it listens
        client = subprocess.run([*common, *ends[0], "127.0.0.1"], capture_output=True, text=True, timeout=PATIENT_S)
        server.communicate(timeout=PATIENT_S)
        rows = [line.split() for line in client.stdout.splitlines() if line.split()[:1] == [str(PIECE_BYTES)]]
        if not rows:
            raise SystemExit(f"ib_write_bw gave no figure: {client.stdout[-500:]}{client.stderr[-500:]}")
        return self._size_bytes / (float(rows[0][3]) * (1 << 20))

    def bare(self) -> float:
        """Seconds of the bare loop."""
        pair = self._end.bare_pair()
        self._ask({"arm": "bare", "gid": self._end.device.gid, "pair": pair.number})
        other = self._hear()
        pair.connect(self._end.device.route, str(other["gid"]), int(str(other["pair"])), 0, 0)
        start = time.perf_counter()
        bare_send(self._end, pair, int(str(other["address"])), int(str(other["key"])))
        taken = time.perf_counter() - start
        pair.close()
        self._ask({})
        self._hear()
        return taken

    def job(self, *, verified: bool) -> float:
        """Seconds of the mover's pipeline, until both ends have everything."""
        terms = Terms(_MOVE_ID, os.urandom(32), self._plan.streams, PATIENT_S)
        self._ask({"arm": "job", "verified": verified, "token": terms.token.hex()})
        endpoint = str(self._hear()["endpoint"])
        job = self._end.job(verified=verified, writable=False)
        job.connect(self._plan, terms, endpoint, (), lambda kind, chunk: None)
        start = time.perf_counter()
        job.run(PATIENT_S, lambda progress: None)
        self._hear()
        taken = time.perf_counter() - start
        job.close()
        return taken

    def close(self) -> None:
        """End the receiving process."""
        self._receiver.kill()
        self._receiver.communicate()

    def _gid_index(self, device: str) -> int:
        gids = [gid for port in sysfs.ports(device) for gid in port.gids]
        return next(gid.index for gid in gids if gid.is_v2 and gid.is_ipv4)

    def _ask(self, command: Mapping[str, object]) -> None:
        if self._receiver.stdin is None:
            raise SystemExit("no pipe")
        self._receiver.stdin.write(json.dumps(command) + "\n")
        self._receiver.stdin.flush()

    def _hear(self) -> Json:
        line = self._receiver.stdout.readline() if self._receiver.stdout else ""
        if not line:
            raise SystemExit("the receiving process has ended")
        answer: Json = json.loads(line)
        return answer


def busy_s() -> float:
    """Seconds of processor time that this machine has spent on anything."""
    fields = [int(item) for item in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run all arms and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receive", default="", help="be the receiving process, on this device")
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--chunk-bytes", type=int, default=4 << 20)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--copy-to", type=Path, help="folder for a copy of the results, if it exists")
    options = parser.parse_args()
    if options.receive:
        receive(options.receive, options.bytes, options.chunk_bytes, options.streams)
        return
    active = [port.device for name in sysfs.devices() for port in sysfs.ports(name) if port.active]
    if not active:
        raise SystemExit("no verbs device with an active port: 'worldline doctor' tells more")
    facts = report.host()
    bench = Bench((active[0], active[-1]), options.bytes, options.chunk_bytes, options.streams)
    arms: dict[str, Callable[[], float]] = {
        "ib_write_bw": bench.perftest,
        "bare verbs": bench.bare,
        "verify off": lambda: bench.job(verified=False),
        "verified": lambda: bench.job(verified=True),
    }
    rows = {name: Row(name, options.bytes, "" if name == "bare verbs" else "bare verbs") for name in arms}
    spent = dict.fromkeys(arms, 0.0)
    for number in range(options.runs + 1):
        for name, arm in arms.items():
            before = busy_s()
            seconds = arm()
            if number:  # the first round warms up
                rows[name].seconds.append(seconds)
                spent[name] += busy_s() - before
    bench.close()
    for name, seconds in spent.items():
        facts[f"cpu_s_per_GB {name}"] = round(seconds / options.runs / (options.bytes / 1e9), 2)
    facts |= {"device": active[0], "message_bytes": PIECE_BYTES, "streams": options.streams}
    report.write("rdma", list(rows.values()), facts)
    if options.copy_to is not None and options.copy_to.is_dir():
        shutil.copy(report.RESULTS / "rdma.json", options.copy_to)
    for name in arms:
        print(f"processor time of the whole machine, {name}: {facts[f'cpu_s_per_GB {name}']} s/GB")


if __name__ == "__main__":
    main()

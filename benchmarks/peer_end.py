"""One end of a transfer by a peer library, in a process of its own: `python -m benchmarks.peer_end NAME SIZE HOST`.

Each library has a module with a class that follows `Peer`. Checksums are added here, since none of them has any: both
ends check all bytes when all are there, at the same time, each with half of the cores.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Protocol

from benchmarks import child
from benchmarks.wire import CORES, memory
from mover.memory import Region, address_of
from worldline.crc import combine_all, crc32

# Name -> (the module of the library, ours with a class `End`).
PEERS: Mapping[str, tuple[str, str]] = {
    "NIXL": ("nixl", "benchmarks.peer_nixl"),
    "Mooncake": ("mooncake", "benchmarks.peer_mooncake"),
}
_CHECKED_BYTES = 16 << 20
_FILL_BYTES = 1 << 20


class Peer(Protocol):
    """One end of a library: knows its own memory, and writes all of it to the same place of the other end."""

    def describe(self) -> str:
        """What the other end needs to know."""

    def connect(self, other: str) -> None:
        """Take what the other end told."""

    def write(self) -> None:
        """Return when all bytes are there. Raises Unavailable."""


def lack_of(name: str) -> str:
    """Why a peer cannot be measured here; empty if it can."""
    library, ours = PEERS[name]
    if importlib.util.find_spec(library) is None:
        return "not installed"
    # Its own process: these libraries start threads and take over logging as they are imported.
    tried = subprocess.run([sys.executable, "-c", f"import {ours}"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"not installed: {(tried.stderr.strip().splitlines() or ['no word'])[-1]}"
    return ""


def _checksum(view: memoryview) -> int:
    pieces = [view[at : at + _CHECKED_BYTES] for at in range(0, len(view), _CHECKED_BYTES)]
    with ThreadPoolExecutor(max(1, CORES // 2)) as pool:
        return combine_all(zip(pool.map(crc32, pieces), map(len, pieces), strict=True))


def main(name: str, size_bytes: int, host: str) -> None:
    """One end: one command a line."""
    # Libraries print; answers go where they cannot.
    say = partial(child.say, to=os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    region = Region(memory(size_bytes), size_bytes, writable=True)
    region.populate()
    noise = os.urandom(_FILL_BYTES)
    for at in range(0, size_bytes, _FILL_BYTES):
        stamped = at.to_bytes(8, "little") + noise[8:]  # so that chunks in each other's places are found
        region.view[at : at + _FILL_BYTES] = stamped[: size_bytes - at]
    peer: Peer = import_module(PEERS[name][1]).End(host, address_of(region.view), size_bytes)
    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "describe":
                say({"description": peer.describe()})
            case "connect":
                peer.connect(command["description"])
                say({"done": "yes"})
            case "stir":  # so that bytes of an earlier run are not taken for those of this one
                for at in range(0, size_bytes, _FILL_BYTES):
                    region.view[at] = (region.view[at] + 1) % 256
                say({"done": "yes"})
            case "write":
                peer.write()
                say({"done": "yes"})
            case "checksum":
                say({"crc": _checksum(region.view)})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

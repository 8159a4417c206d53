"""Nodes with links of a known rate on one machine: network namespaces on a bridge, each shaped both ways by tbf.

Needs root and iproute2. Delay and loss need netem, which not every kernel has: the rdma lab's has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from worldline.errors import Unsupported

BRIDGE = "wl-bench"
_SUBNET = "10.77.0"
_BURST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """One namespace: its address, and the command that runs another one inside it."""

    name: str
    address: str
    apart: bool = True

    @property
    def within(self) -> tuple[str, ...]:
        """In front of a command; nothing on loopback."""
        return ("ip", "netns", "exec", self.name) if self.apart else ()


@dataclass(frozen=True, slots=True)
class Link:
    """Places, where admission listens, and the rate between any two of them; 0: loopback, as fast as it is."""

    places: Mapping[str, Place]
    hub: str
    bandwidth_Bps: float


@contextmanager
def link(names: Sequence[str], gbit: float) -> Iterator[Link]:
    """Places on links of `gbit` Gb/s, or all on loopback where that is 0. Raises Unsupported as `places` does."""
    if not gbit:
        yield Link({name: Place(name, "127.0.0.1", apart=False) for name in names}, "127.0.0.1", 0.0)
        return
    bandwidth_Bps = gbit * 1e9 / 8
    with places(names, bandwidth_Bps) as made:
        yield Link(made, hub_address(), bandwidth_Bps)


def hub_address() -> str:
    """The bridge's own address, unshaped: where admission listens."""
    return f"{_SUBNET}.1"


@contextmanager
def places(names: Sequence[str], bandwidth_Bps: float) -> Iterator[Mapping[str, Place]]:
    """Namespaces that send and receive `bandwidth_Bps` at most, and are gone afterwards.

    Raises:
        Unsupported: iproute2 is not here or a command of it failed; the message has what it said.
    """
    made = {name: Place(f"wl-{name}", f"{_SUBNET}.{number}") for number, name in enumerate(names, 2)}
    _remove(made.values())
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{hub_address()}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for place in made.values():
            _add(place, bandwidth_Bps)
        yield made
    finally:
        _remove(made.values())


def _add(place: Place, bandwidth_Bps: float) -> None:
    outside = f"{place.name}-o"
    _ip("netns", "add", place.name)
    _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", place.name)
    _ip("link", "set", outside, "master", BRIDGE, "up")
    _ip("-n", place.name, "addr", "add", f"{place.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", place.name, "link", "set", device, "up")
    shape = ("tbf", "rate", f"{round(bandwidth_Bps * 8)}bit", "burst", str(_BURST_BYTES), "latency", "50ms")
    _run("tc", "-n", place.name, "qdisc", "add", "dev", "eth0", "root", *shape)
    _run("tc", "qdisc", "add", "dev", outside, "root", *shape)


def _remove(made: Iterable[Place]) -> None:
    """Whatever of it there is, an earlier run's included."""
    known = set(_run("ip", "netns", "list").split())
    for place in made:
        if place.name in known:
            _ip("netns", "del", place.name)
    if Path("/sys/class/net", BRIDGE).exists():
        _ip("link", "del", BRIDGE)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unsupported(f"shaped links need iproute2: {error}", reason="NO_SHAPED_LINKS") from error
    if done.returncode:
        raise Unsupported(
            f"shaped links need root and iproute2: {' '.join(command)}: {done.stderr.strip() or done.returncode}; "
            "--link 0 measures over loopback",
            reason="NO_SHAPED_LINKS",
        )
    return done.stdout

"""`worldline doctor`: what this machine has for moves and for rdma, what it lacks, and what mends each lack."""

from __future__ import annotations

import argparse
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

from mover.transports import TransportConfig, lack_of
from mover.transports.rdma import sysfs
from mover.transports.rdma.choice import pick_gid
from mover.transports.rdma.config import RdmaConfig
from worldline import pages
from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.errors import WorldlineError

_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = "0x03"
_GPU_VENDORS = ("0x10de", "0x1002")


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that rdma needs and this machine does not have, and what to do."""

    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Near:
    """How far a device's memory is from another: the kernel's NUMA distance, 10 is local, 0 unknown."""

    device: str
    other: str
    distance: int


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser("doctor", help="what this machine has for moves, and how to mend what it lacks")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print everything; 1 if something is lacking for rdma."""
    ports = [port for name in sysfs.devices() for port in sysfs.ports(name)]
    limit_bytes = memlock_bytes()
    near = nearness()
    huge = pages.huge_page_policy()
    lacks = find_lacks(ports, limit_bytes)
    if options.json:
        render.print_json(
            {
                "ports": [asdict(port) for port in ports],
                "memlock_bytes": limit_bytes,
                "numa": [asdict(item) for item in near],
                "huge_pages_for_shared_memory": huge,
                "lacks": [asdict(lack) for lack in lacks],
            }
        )
        return int(bool(lacks))
    out = render.console()
    rows = [
        (port.device, str(port.number), port.state, port.link_layer, port.rate, f"{gid.index}: {gid.gid}", gid.kind)
        for port in ports
        for gid in port.gids
    ]
    out.print(render.table("", ("device", "port", "state", "link", "rate", "GID", "kind"), rows))
    limit = "unlimited" if limit_bytes < 0 else render.human_bytes(limit_bytes)
    out.print(f"\nmemory that this user may pin (memlock): {limit}")
    for item in near:
        out.print(f"NUMA distance {item.device} - {item.other}: {item.distance or 'unknown'}")
    out.print(f"huge pages for shared memory: {huge or 'unknown'}")
    if huge == "never":
        out.print(
            f"\nslower than need be: regions are faulted in and unmapped page by page\n   mend: {pages.HUGE_PAGES_MEND}"
        )
    for lack in lacks:
        out.print(f"\nlacking: {lack.what}\n   mend: {lack.mend}")
    out.print("\nrdma works on this machine" if not lacks else "\nrdma does not work here yet")
    return int(bool(lacks))


def find_lacks(ports: list[sysfs.Port], limit_bytes: int) -> list[Lack]:
    """What is lacking, the cause before what follows from it; last of all the transport itself is opened."""
    if not ports:
        return [
            Lack(
                "a verbs device",
                "load the NIC's driver (modprobe mlx5_ib); without a NIC: modprobe rdma_rxe && rdma link add rxe0 type "
                "rxe netdev eth0; in a container: --device /dev/infiniband --network host",
            )
        ]
    lacks = []
    active = [port for port in ports if port.active]
    for port in ports:
        if not port.active:
            names = sorted({gid.netdev for gid in port.gids if gid.netdev}) or ["<its interface>"]
            lacks.append(Lack(f"{port.device}/{port.number} is {port.state}, not active", f"ip link set {names[0]} up"))
    for port in active:
        try:
            pick_gid(RdmaConfig(), port)
        except WorldlineError:
            lacks.append(
                Lack(f"a RoCE v2 GID on {port.device}/{port.number}", "ip addr add <address>/<prefix> dev <interface>")
            )
    if not Path("/dev/infiniband").is_dir():
        lacks.append(Lack("/dev/infiniband", "modprobe ib_uverbs; in a container: --device /dev/infiniband"))
    if 0 <= limit_bytes < 1 << 30:
        lacks.append(
            Lack(
                f"a memlock limit that lets a region be pinned; it is {limit_bytes} bytes",
                "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; container: --ulimit memlock=-1",
            )
        )
    error = lack_of("rdma", TransportConfig())
    if error is not None and not (lacks and not active):
        lacks.append(Lack(f"rdma itself: {error.message}", _MENDS.get(error.reason, "see docs/rdma.md")))
    return lacks


_MENDS = {
    "RDMA_NO_BINDING": "apt-get install python3-pyverbs ibverbs-providers; PYTHONPATH=/usr/lib/python3/dist-packages",
    "RDMA_NO_WINDOWS": "export WORLDLINE_RDMA_ACCESS=registration",
    "RDMA_MEMORY_LIMIT": "ulimit -l unlimited",
}


def memlock_bytes() -> int:
    """Bytes that this process may pin; -1 is without limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return -1 if soft == resource.RLIM_INFINITY else soft


def nearness() -> list[Near]:
    """NUMA distances from each verbs device to each GPU and to each node of CPUs."""
    others = [(f"GPU {item.name}", _node(item)) for item in _gpus()]
    others += [(f"CPUs of node {number}", number) for number in _nodes()]
    found = []
    for name in sysfs.devices():
        own = sysfs.numa_node(name)
        found += [Near(name, other, _distance(own, node)) for other, node in others]
    return found


def _gpus() -> list[Path]:
    if not _PCI.is_dir():
        return []
    return [
        item
        for item in sorted(_PCI.iterdir())
        if _read(item / "class").startswith(_DISPLAY_CLASS) and _read(item / "vendor") in _GPU_VENDORS
    ]


def _nodes() -> list[int]:
    return sorted(int(item.name[4:]) for item in _NODES.glob("node[0-9]*")) if _NODES.is_dir() else []


def _node(device: Path) -> int:
    text = _read(device / "numa_node")
    return int(text) if text.lstrip("-").isdecimal() else -1


def _distance(node: int, other: int) -> int:
    """The kernel's distance of two nodes; 0 if either has none."""
    row = _read(_NODES / f"node{node}" / "distance").split() if node >= 0 and other >= 0 else []
    return int(row[other]) if other < len(row) else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

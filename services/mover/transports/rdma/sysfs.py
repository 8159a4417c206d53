"""What the kernel tells of verbs devices without opening them: ports, GIDs, their network devices, NUMA nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table."""

    index: int
    gid: str
    kind: str
    netdev: str

    @property
    def is_v2(self) -> bool:
        """RoCE v2: routable, over UDP."""
        return "v2" in self.kind

    @property
    def is_ipv4(self) -> bool:
        """Made of an IPv4 address."""
        return self.gid.startswith("0000:0000:0000:0000:0000:ffff:")


@dataclass(frozen=True, slots=True)
class Port:
    """One port: `state` and `rate` as the kernel words them."""

    device: str
    number: int
    state: str
    rate: str
    link_layer: str
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return "ACTIVE" in self.state


def devices(root: Path = ROOT) -> tuple[str, ...]:
    """Names of the verbs devices."""
    return tuple(sorted(item.name for item in root.iterdir())) if root.is_dir() else ()


def ports(device: str, root: Path = ROOT) -> tuple[Port, ...]:
    """Ports of a device."""
    folder = root / device / "ports"
    numbers = sorted(int(item.name) for item in folder.iterdir()) if folder.is_dir() else []
    return tuple(_port(device, folder / str(number), number) for number in numbers)


def numa_node(device: str, root: Path = ROOT) -> int:
    """NUMA node of a device; -1 if it has none."""
    text = _text(root / device / "device" / "numa_node")
    return int(text) if text.lstrip("-").isdecimal() else -1


def _port(device: str, folder: Path, number: int) -> Port:
    gids = []
    for item in sorted((folder / "gids").iterdir(), key=lambda path: int(path.name)):
        gid = _text(item)
        if gid.replace(":", "").strip("0"):
            attributes = folder / "gid_attrs"
            kind = _text(attributes / "types" / item.name)
            gids.append(Gid(int(item.name), gid, kind, _text(attributes / "ndevs" / item.name)))
    return Port(
        device, number, _text(folder / "state"), _text(folder / "rate"), _text(folder / "link_layer"), tuple(gids)
    )


def _text(path: Path) -> str:
    """What a file says; nothing if the kernel has nothing to say (it answers EINVAL for an empty entry)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

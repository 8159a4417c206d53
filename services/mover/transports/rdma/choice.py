"""Which port and GID a mover uses: as told, else what the kernel shows to be fit. Opens nothing."""

from __future__ import annotations

from pathlib import Path

from mover.transports.rdma import sysfs
from mover.transports.rdma.config import DETECT, RdmaConfig
from worldline.errors import Unavailable


def pick_port(config: RdmaConfig, root: Path = sysfs.ROOT) -> sysfs.Port:
    """The device's port, or the first active one there is. Raises Unavailable."""
    names = sysfs.devices(root)
    if not names:
        raise Unavailable(
            "this machine shows no verbs device (/sys/class/infiniband is empty): load the NIC's driver, give the "
            "container /dev/infiniband, or leave rdma out of transports; 'worldline doctor' tells more",
            reason="RDMA_NO_DEVICE",
        )
    if config.device and config.device not in names:
        raise Unavailable(
            f"there is no verbs device {config.device!r}; there are {', '.join(names)}", reason="RDMA_NO_DEVICE"
        )
    wanted = [config.device] if config.device else list(names)
    found = [port for name in wanted for port in sysfs.ports(name, root) if port.number == config.port]
    for port in found:
        if port.active:
            return port
    states = ", ".join(f"{port.device}/{port.number} {port.state}" for port in found) or "none"
    raise Unavailable(
        f"no port {config.port} of {', '.join(wanted)} is active ({states}): bring its link up", reason="RDMA_PORT_DOWN"
    )


def pick_gid(config: RdmaConfig, port: sysfs.Port) -> int:
    """The GID as told, else RoCE v2 of an IPv4 address, else RoCE v2. Raises Unavailable."""
    if port.link_layer == "InfiniBand":
        raise Unavailable(
            f"{port.device}/{port.number} is an InfiniBand port: this transport speaks RoCE v2 only; use tcp",
            reason="RDMA_NO_GID",
        )
    by_index = {gid.index: gid for gid in port.gids}
    if config.gid_index != DETECT:
        if config.gid_index not in by_index:
            raise Unavailable(
                f"{port.device}/{port.number} has no GID {config.gid_index}; it has {sorted(by_index)}",
                reason="RDMA_NO_GID",
            )
        return config.gid_index
    ranked = sorted((gid for gid in port.gids if gid.is_v2), key=lambda gid: (not gid.is_ipv4, gid.index))
    if not ranked:
        raise Unavailable(
            f"{port.device}/{port.number} has no RoCE v2 GID: give its interface an IPv4 address", reason="RDMA_NO_GID"
        )
    return ranked[0].index

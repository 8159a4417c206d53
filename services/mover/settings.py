"""Settings of the mover."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from mover.messages import PlaneConfig
from mover.transports import NAMES
from worldline.settings import ID_PATTERN, ServiceSettings

_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def default_congestion() -> str:
    """Cubic carried 1.4 times what bbr did over loopback, where pacing only costs; a fabric may want another."""
    try:
        return "cubic" if "cubic" in _ALLOWED.read_text().split() else ""
    except OSError:
        return ""


class MoverSettings(ServiceSettings):
    """One mover: its node, its data port, its bounds."""

    mover_id: str = Field(pattern=ID_PATTERN, description="this mover, unique in the fleet")
    regions_dir: Path = Field(description="directory of the Unix sockets by which engine hosts hand over regions")
    admission: str = Field("", description="admission service, host:port; empty: not registered anywhere")
    address: str = Field("", description="control address that others are told, host:port; empty: where it listens")
    data_listen: str = Field("127.0.0.1:0", description="address of the data port, host:port; port 0 picks a free one")
    data_host: str = Field("", description="host of the data port that others are told; empty: that of data_listen")
    transports: str = Field(",".join(NAMES), description="transports to offer, separated by commas")
    max_receives: int = Field(4, ge=1, le=64, description="moves that may come in at the same time")
    congestion: str = Field(
        default_factory=default_congestion,
        pattern=r"^[a-z0-9_]{0,15}$",
        description="TCP congestion control; cubic where this process may choose it; empty: the kernel's",
    )
    lane_threads: int = Field(1, ge=1, le=16, description="threads that verify one move's chunks as they land")

    @model_validator(mode="after")
    def _is_coherent(self) -> MoverSettings:
        unknown = [name for name in self.transport_names if name not in NAMES]
        if unknown or not self.transport_names:
            raise ValueError(f"transports must be some of {', '.join(NAMES)}, not {self.transports!r}")
        host, _, port = self.data_listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"data_listen {self.data_listen!r} is not host:port")
        if host in ("0.0.0.0", "[::]", "::") and not self.data_host:
            raise ValueError("data_listen is a wildcard: give data_host, the name others reach this node by")
        return self

    @property
    def transport_names(self) -> tuple[str, ...]:
        """The transports to offer."""
        return tuple(name.strip() for name in self.transports.split(",") if name.strip())

    @property
    def plane(self) -> PlaneConfig:
        """What the data plane is told."""
        return PlaneConfig(self.transport_names, self.data_listen, self.data_host, self.congestion, self.lane_threads)

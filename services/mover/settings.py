"""Settings of the mover."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from mover.messages import PlaneConfig
from mover.transports import ALWAYS, NAMES, TransportConfig, lack_of
from mover.transports.rdma.config import DETECT, RdmaConfig
from worldline.plan import MAX_STREAMS
from worldline.settings import ID_PATTERN, ServiceSettings, are_addresses


def default_congestion() -> str:
    """Cubic carried 1.4 times what bbr did over loopback, where pacing only costs; a fabric may want another."""
    with socket.socket() as probe:
        try:
            # The kernel's list of what everybody may choose leaves out what this process may.
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            return ""
    return "cubic"


def default_streams() -> int:
    """A quarter of the cores, 2 to 4: on 16 cores 4 carried twice what 2 did, 8 no more once both ends check."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))


def default_lane_threads() -> int:
    """One for two streams: one thread checks about what two streams carry."""
    return default_streams() // 2


def default_codec_threads() -> int:
    """Half of the cores: the wire, checksums and sessions have the others."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))


def rdma_config(values: Mapping[str, object]) -> RdmaConfig:
    """The fields named `rdma_...` of `values`."""
    given = {field.name: values[f"rdma_{field.name}"] for field in dataclasses.fields(RdmaConfig)}
    return RdmaConfig(**given)  # type: ignore[arg-type]  # the settings have checked them


def default_transports(values: Mapping[str, object]) -> str:
    """What this machine truly has: rdma if its device opens and registers a page."""
    try:
        config = TransportConfig(rdma=rdma_config(values))
    except KeyError:
        return ",".join(ALWAYS)  # a setting was refused: what is refused is told, not what follows from it
    return ",".join((*ALWAYS, *(["rdma"] if lack_of("rdma", config) is None else [])))


class MoverSettings(ServiceSettings):
    """One mover: its node, its data port, its bounds."""

    mover_id: str = Field(pattern=ID_PATTERN, description="this mover, unique in the fleet")
    regions_dir: Path = Field(description="directory of the Unix sockets by which engine hosts hand over regions")
    admission: str = Field("", description="admission service, host:port, several with commas; empty: none")
    address: str = Field("", description="control address that others are told, host:port; empty: where it listens")
    data_listen: str = Field("127.0.0.1:0", description="address of the data port, host:port; port 0 picks a free one")
    data_host: str = Field("", description="host of the data port that others are told; empty: that of data_listen")
    rdma_device: str = Field("", description="verbs device; empty: the first with an active port")
    rdma_port: int = Field(1, ge=1, le=255, description="port of the verbs device")
    rdma_gid_index: int = Field(DETECT, ge=DETECT, le=1024, description="GID of the port; -1: RoCE v2 of its IPv4")
    rdma_mtu: Literal[0, 256, 512, 1024, 2048, 4096] = Field(0, description="path MTU in bytes; 0: the port's")
    rdma_traffic_class: int = Field(0, ge=0, le=255, description="traffic class (DSCP in its upper six bits)")
    rdma_service_level: int = Field(0, ge=0, le=15, description="service level")
    rdma_timeout_exponent: int = Field(
        14, ge=1, le=31, description="n: unacknowledged after 4.096 us * 2^n, sent again"
    )
    rdma_retry_count: int = Field(7, ge=0, le=7, description="times that an unacknowledged packet is sent again")
    rdma_rnr_retry_count: int = Field(
        7, ge=0, le=7, description="times that a full receiver is tried again; 7: for ever"
    )
    rdma_depth: int = Field(64, ge=8, le=8192, description="writes of a stream that may be unacknowledged")
    rdma_completions: Literal["event", "poll"] = Field(
        "event", description="how completions are waited for: asleep, or spinning on a core a stream"
    )
    rdma_access: Literal["window", "registration"] = Field(
        "window", description="what lets a peer in for one move: memory windows, or a registration made for it"
    )
    rdma_cache_bytes: int = Field(16 << 30, ge=0, description="bytes of regions that stay registered between moves")
    rdma_segment_bytes: int = Field(
        256 << 20, ge=1 << 12, multiple_of=1 << 12, description="bytes registered at a time, and reached by one key"
    )
    rdma_listen: str = Field("", description="where rdma streams are greeted, host:port; empty: data_listen's host")
    rdma_host: str = Field("", description="host for rdma that others are told; empty: as for the data port")
    transports: str = Field(
        default_factory=default_transports,
        description="transports to offer, separated by commas; all that this machine has if not given",
    )
    max_receives: int = Field(4, ge=1, le=64, description="moves that may come in at the same time")
    congestion: str = Field(
        default_factory=default_congestion,
        pattern=r"^[a-z0-9_]{0,15}$",
        description="TCP congestion control; cubic where this process may choose it; empty: the kernel's",
    )
    pace_Bps: int = Field(
        0, ge=0, lt=1 << 48, description="bytes/s that one move sends over tcp at most; 0: as many as the link takes"
    )
    streams: int = Field(
        default_factory=default_streams,
        ge=1,
        le=MAX_STREAMS,
        description="streams of a large move that suit this node; a quarter of its cores, 2 to 4, if not given",
    )
    lane_threads: int = Field(
        default_factory=default_lane_threads,
        ge=1,
        le=16,
        description="threads that verify one move's chunks as they land; one for two streams if not given",
    )
    codec_threads: int = Field(
        default_factory=default_codec_threads,
        ge=1,
        le=16,
        description="threads that code or decode one move; half of the cores, at most 8, if not given",
    )

    @field_validator("admission")
    @classmethod
    def _admission_is_addresses(cls, value: str) -> str:
        if value and not are_addresses(value):
            raise ValueError(f"{value[:64]!r} is not host:port, or several with commas")
        return value

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
        host, _, port = self.rdma_listen.rpartition(":")
        if self.rdma_listen and (not host or not port.isdecimal() or int(port) > 65_535):
            raise ValueError(f"rdma_listen {self.rdma_listen!r} is not host:port")
        if host in ("0.0.0.0", "[::]", "::") and not (self.rdma_host or self.data_host):
            raise ValueError("rdma_listen is a wildcard: give rdma_host, the name others reach this node by")
        return self

    @property
    def transport_names(self) -> tuple[str, ...]:
        """The transports to offer."""
        return tuple(name.strip() for name in self.transports.split(",") if name.strip())

    @property
    def plane(self) -> PlaneConfig:
        """What the data plane is told."""
        return PlaneConfig(
            self.transport_names,
            self.data_listen,
            self.data_host,
            self.congestion,
            self.pace_Bps,
            self.lane_threads,
            self.codec_threads,
            rdma_config(self.model_dump()),
        )

    @property
    def transport_config(self) -> TransportConfig:
        """What transports are told."""
        rdma = rdma_config(self.model_dump())
        return TransportConfig(self.data_listen, self.data_host, self.congestion, self.pace_Bps, rdma)

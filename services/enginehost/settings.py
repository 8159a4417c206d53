"""What an engine host is told at its start."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from worldline.settings import ID_PATTERN, ServiceSettings, are_addresses, is_address


class EngineHostSettings(ServiceSettings):
    """Settings of the engine host. Seconds end in `_s`, bytes in `_bytes`."""

    rpc_threads: int = Field(
        64, ge=8, le=512, description="threads that answer calls; half of them at most hold play streams"
    )
    host_id: str = Field("host", pattern=ID_PATTERN, description="id of this engine host in the fleet")
    state_dir: Path = Field(Path("state"), description="folder of the lock that proves this host's death; keep it")
    regions_dir: Path = Field(Path("regions"), description="folder of the socket where the mover fetches regions")
    admission: str = Field("", description="admission to register with, host:port, several with commas; empty: none")
    mover_id: str = Field(
        "", pattern=rf"^$|{ID_PATTERN}", description="mover beside this host; needed where admission is set"
    )
    mover_address: str = Field("", description="its control address, host:port; needed for Migrate only")
    cluster_address: str = Field("", description="address told to the fleet, host:port; empty: the one bound")
    public_address: str = Field("", description="address told to players, host:port; empty: the one bound")
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda:\d{1,2})$", description="device that sessions live on: cpu, or cuda:0 and so on"
    )
    budget_bytes: int = Field(
        0, ge=0, description="bytes that slots may take; 0: 8 GiB on a CPU, 7/8 of what is free at the start on a GPU"
    )
    staging_bytes: int = Field(
        4 << 30,
        ge=0,
        description="bytes of pinned host memory that state on a device may go through on its way; taken when needed",
    )
    suspend_bytes: int = Field(
        0,
        ge=0,
        description="bytes of host memory, pinned on a GPU, that states of suspended sessions may take; 0: they keep "
        "their slots",
    )
    torch_threads: int = Field(1, ge=1, le=256, description="threads torch computes with; results may depend on it")
    idle_s: float = Field(300.0, gt=0, description="seconds without a player after which a session is suspended")
    close_s: float = Field(3600.0, gt=0, description="further seconds after which a suspended session is closed")
    grace_s: float = Field(
        1.0, ge=0, le=600, description="seconds a freeze may outlast the horizon of its class; at least admission's"
    )
    max_freeze_s: float = Field(
        120.0, gt=0, le=3600, description="longest freeze of a class without deadline; at least admission's"
    )
    stage_ttl_s: float = Field(
        120.0,
        gt=0,
        le=86_400,
        description="seconds, beside the longest freeze, that a move which tells nothing keeps a slot or a session",
    )
    drain_s: float = Field(
        0.0, ge=0, le=86_400, description="seconds after SIGTERM in which sessions may be moved away; 0: ends at once"
    )
    prewarm: str = Field(
        "", description="engine/preset, separated by commas: weights loaded and a block played before the host is ready"
    )
    warm_slots: str = Field(
        "",
        description="engine/preset:count, separated by commas: prewarmed, and slots kept allocated ahead for that many "
        "sessions more",
    )
    motion_set: str = Field(
        "",
        description="engine/preset, separated by commas: their cold leaves are proven before the host is ready, and "
        "then made at the destinations of their sessions' moves instead of sent",
    )
    motion_set_blocks: int = Field(8, ge=1, le=1000, description="blocks that a proof of cold leaves plays")
    engines: str = Field("", description="engines to serve, separated by commas; empty: all that are installed")

    @field_validator("admission")
    @classmethod
    def _admission_is_addresses(cls, value: str) -> str:
        if value and not are_addresses(value):
            raise ValueError(f"{value[:64]!r} is not host:port, or several with commas")
        return value

    @field_validator("mover_address", "cluster_address", "public_address")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError(f"{value[:64]!r} is not host:port")
        return value

    @model_validator(mode="after")
    def _admission_is_told_of_a_mover(self) -> EngineHostSettings:
        if self.admission and not self.mover_id:
            raise ValueError("with admission, mover_id is needed: no session could move here or away without a mover")
        return self

"""What an engine host is told at its start."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from worldline.settings import ID_PATTERN, ServiceSettings


class EngineHostSettings(ServiceSettings):
    """Settings of the engine host. Seconds end in `_s`, bytes in `_bytes`."""

    rpc_threads: int = Field(
        64, ge=8, le=512, description="threads that answer calls; half of them at most hold play streams"
    )
    host_id: str = Field("host", pattern=ID_PATTERN, description="id of this engine host in the fleet")
    state_dir: Path = Field(Path("state"), description="folder of the lock that proves this host's death; keep it")
    regions_dir: Path = Field(Path("regions"), description="folder of the socket where the mover fetches regions")
    admission: str = Field("", description="admission to register with, host:port; empty: none")
    mover_id: str = Field("", description="mover beside this host")
    mover_address: str = Field("", description="its control address, host:port; needed for Migrate only")
    cluster_address: str = Field("", description="address told to the fleet, host:port; empty: the one bound")
    public_address: str = Field("", description="address told to players, host:port; empty: the one bound")
    budget_bytes: int = Field(8 << 30, gt=0, description="bytes that slots may take")
    torch_threads: int = Field(1, ge=1, le=256, description="threads torch computes with; results may depend on it")
    idle_s: float = Field(300.0, gt=0, description="seconds without a player after which a session is suspended")
    close_s: float = Field(3600.0, gt=0, description="further seconds after which a suspended session is closed")
    engines: str = Field("", description="engines to serve, separated by commas; empty: all that are installed")

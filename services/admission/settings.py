"""What admission is told at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from admission.journal_database import PostgresUrl
from worldline.plan import MAX_CHUNK_BYTES, MAX_STREAMS, PAGE_BYTES
from worldline.settings import ServiceSettings, is_address


def _journal(value: object) -> object:
    """A URL is a server's, anything else a file's."""
    return PostgresUrl(value) if isinstance(value, str) and "://" in value else value


class AdmissionSettings(ServiceSettings):
    """Settings of the admission service. Seconds end in `_s`, bytes/s in `_Bps`."""

    model_config = SettingsConfigDict(arbitrary_types_allowed=True)

    journal: Annotated[Path | PostgresUrl, BeforeValidator(_journal)] = Field(
        Path("admission.db"),
        description="SQLite file of the journal, whose folder must exist, or postgresql+psycopg://user@host/database",
    )
    lease_s: float = Field(
        3.0,
        ge=0.2,
        le=60,
        description="seconds without a sign of life after which another process leads; on PostgreSQL only",
    )
    metrics_endpoint: str = Field("", description="OTLP/gRPC receiver of metrics, host:port; empty exports none")
    address: str = Field(
        "", description="address that callers of a standby are sent to, host:port; empty: where this process listens"
    )
    heartbeat_s: float = Field(1.0, gt=0, le=60, description="seconds between heartbeats of hosts and movers")
    silent_s: float = Field(
        3.0, gt=0, le=600, description="seconds without a heartbeat after which a process is silent"
    )
    silent_grace_s: float = Field(
        10.0,
        ge=0,
        le=600,
        description="seconds a silent process is waited for (DEFER) before it counts as gone (REJECT)",
    )
    stall_s: float = Field(5.0, gt=0, le=600, description="seconds without an answer after which a move is stalled")
    call_timeout_s: float = Field(5.0, gt=0, le=600, description="seconds one call to a host may take")
    create_timeout_s: float = Field(60.0, gt=0, le=3600, description="seconds creating a session may take")
    reserve_timeout_s: float = Field(60.0, gt=0, le=3600, description="seconds reserving may take, before the freeze")
    bandwidth_Bps: float = Field(1e9, gt=0, le=1e15, description="bandwidth of a path before it was measured, bytes/s")
    setup_s: float = Field(0.1, ge=0, le=600, description="fixed seconds of a move before its path was measured")
    confidence_s: float = Field(
        600.0,
        gt=0,
        le=1e7,
        description="seconds in which confidence in a measured path halves while nothing moves on it",
    )
    probe_idle_s: float = Field(
        300.0,
        ge=0,
        le=1e7,
        description="seconds after which a measured path that nothing moves on is probed with 32 MiB; 0: never",
    )
    forget_s: float = Field(
        3600.0, gt=0, le=1e7, description="seconds of silence after which a host without sessions is forgotten"
    )
    receiver_cap: int = Field(1, ge=1, le=64, description="moves in flight into one engine host")
    max_moves: int = Field(256, ge=1, le=4096, description="open moves; each holds a thread")
    max_watchers: int = Field(12, ge=1, le=256, description="WatchMove streams; each holds one of rpc_threads")
    keep_moves: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description="closed moves, placements and lost sessions kept in the journal, of each",
    )
    grace_s: float = Field(1.0, ge=0, le=600, description="seconds a freeze may outlast the horizon of its class")
    max_freeze_s: float = Field(30.0, gt=0, le=3600, description="longest freeze of a class without deadline")
    move_deadline_s: float = Field(120.0, gt=0, le=3600, description="freeze to commit of a class without deadline")
    no_progress_s: float = Field(3.0, gt=0, le=600, description="seconds without a byte moved that abort a move")
    chunk_bytes: int = Field(
        256 << 10,
        ge=PAGE_BYTES,
        le=MAX_CHUNK_BYTES,
        multiple_of=PAGE_BYTES,
        description="chunk of small regions, bytes",
    )
    large_chunk_bytes: int = Field(
        4 << 20, ge=PAGE_BYTES, le=MAX_CHUNK_BYTES, multiple_of=PAGE_BYTES, description="chunk of large regions, bytes"
    )
    large_region_bytes: int = Field(64 << 20, gt=0, description="regions from this size on are large, bytes")
    streams: int = Field(
        0, ge=0, le=MAX_STREAMS, description="parallel streams of a move; 0: as many as suit both movers' cores"
    )

    @field_validator("address")
    @classmethod
    def _address_is_one(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError(f"{value[:64]!r} is not host:port")
        return value

    @model_validator(mode="after")
    def _can_work(self) -> AdmissionSettings:
        """Each bound must leave room for what it bounds."""
        wrong = []
        if self.silent_s <= 2 * self.heartbeat_s:
            wrong.append(
                f"silent_s {self.silent_s:g} must be over twice heartbeat_s {self.heartbeat_s:g}: one late heartbeat "
                "must not make a process silent"
            )
        if 2 * self.max_watchers >= self.rpc_threads:
            wrong.append(
                f"max_watchers {self.max_watchers} must be under half of rpc_threads {self.rpc_threads}: each watcher "
                "holds a thread, and heartbeats need some"
            )
        if self.no_progress_s > self.move_deadline_s:
            wrong.append(
                f"no_progress_s {self.no_progress_s:g} must not be over move_deadline_s {self.move_deadline_s:g}"
            )
        if self.silent_s > self.forget_s:
            wrong.append(f"forget_s {self.forget_s:g} must not be under silent_s {self.silent_s:g}")
        if self.chunk_bytes > self.large_chunk_bytes:
            wrong.append(f"chunk_bytes {self.chunk_bytes} must not be over large_chunk_bytes {self.large_chunk_bytes}")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

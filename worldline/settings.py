"""Settings that every service shares, from the command line or `WORLDLINE_*`; unknown ones refuse to start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from worldline.errors import BadRequest

ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,63}$"
_PREFIX = "WORLDLINE_"


def is_address(value: str, *, lowest_port: int = 1) -> bool:
    """Whether `value` is host:port."""
    host, _, port = value.rpartition(":")
    return bool(host) and len(value) <= 255 and port.isdecimal() and lowest_port <= int(port) < 65_536


def are_addresses(value: str) -> bool:
    """Whether `value` is host:port, or several of them with commas."""
    return len(value) <= 4096 and all(is_address(address.strip()) for address in value.split(","))


class ServiceSettings(BaseSettings):
    """What every service is told: where it listens, whom it trusts, where it reports."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    listen: str = Field("127.0.0.1:0", description="address to listen on, host:port; port 0 picks a free one")
    rpc_threads: int = Field(32, ge=4, le=512, description="threads that answer calls; each open stream holds one")
    otlp_endpoint: str = Field("", description="OTLP/gRPC receiver, host:port; empty turns tracing off")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    fault_injection: bool = Field(False, description="accept faults in requests; for demos and tests only")
    reflection: bool = Field(True, description="serve gRPC reflection")
    tls_certificate: Path | None = Field(None, description="PEM certificate chain of this process")
    tls_key: SecretStr | None = Field(None, description="path of the PEM key of this process")
    tls_ca: Path | None = Field(None, description="PEM certificates that peers must be signed by (mTLS)")

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        if not is_address(value, lowest_port=0):
            raise ValueError(f"{value[:64]!r} is not host:port, for instance 127.0.0.1:0")
        return value

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ServiceSettings:
        given = [value is not None for value in (self.tls_certificate, self.tls_key, self.tls_ca)]
        if any(given) and not all(given):
            raise ValueError("tls_certificate, tls_key and tls_ca go together: give all three or none")
        return self


S = TypeVar("S", bound=ServiceSettings)


def load(kind: type[S], **values: object) -> S:
    """Settings from `values` (None means not given) and the environment.

    Raises:
        BadRequest: an unknown `WORLDLINE_*` variable, a value out of bounds or an incoherent pair; all are listed.
    """
    known = {f"{_PREFIX}{name.upper()}" for name in kind.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in known)
    if unknown:
        raise BadRequest(
            f"unknown settings {', '.join(unknown)}; this service knows {', '.join(sorted(known))}",
            violations=dict.fromkeys(unknown, "unknown"),
        )
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        violations = {".".join(map(str, item["loc"])) or "settings": item["msg"] for item in error.errors()}
        listed = "; ".join(f"{name}: {what}" for name, what in violations.items())
        raise BadRequest(f"the settings were refused: {listed}", violations=violations) from None


def load_or_exit(kind: type[S], **values: object) -> S:
    """`load`, for a process's start: prints what is wrong and exits with status 2."""
    try:
        return load(kind, **values)
    except BadRequest as error:
        print(f"worldline: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def shown(settings: ServiceSettings) -> dict[str, str]:
    """Settings for the start line of a log, without secrets."""
    return {name: str(value) for name, value in settings.model_dump().items()}

"""Manifest (what exactly is frozen), descriptor (whose it is) and fingerprint (what it runs on)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from worldline.canonical import digest
from worldline.contract import Contract, Tier
from worldline.errors import BadRequest, Mismatch

MAX_FINGERPRINT_FIELDS = 64
MAX_FINGERPRINT_VALUE_BYTES = 256


@dataclass(frozen=True)
class Fingerprint:
    """What a session runs on, as far as its results depend on it: engine, architecture, software, flags."""

    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        if len(self.fields) > MAX_FINGERPRINT_FIELDS:
            raise BadRequest(
                f"{len(self.fields)} fingerprint fields; at most {MAX_FINGERPRINT_FIELDS} are allowed",
                violations={"fingerprint.fields": "too many"},
            )
        for name, value in self.fields.items():
            if max(len(name.encode()), len(value.encode())) > MAX_FINGERPRINT_VALUE_BYTES:
                raise BadRequest(
                    f"fingerprint field {name[:32]!r} is over {MAX_FINGERPRINT_VALUE_BYTES} bytes",
                    violations={"fingerprint.fields": "too long"},
                )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the fields."""
        return digest("fingerprint", dict(self.fields))

    def differences(self, other: Fingerprint) -> dict[str, str]:
        """Field -> "mine, theirs" for every field that differs."""
        return {
            name: f"{self.fields.get(name, 'absent')!r} here, {other.fields.get(name, 'absent')!r} there"
            for name in sorted({*self.fields, *other.fields})
            if self.fields.get(name) != other.fields.get(name)
        }

    def require_equal(self, other: Fingerprint) -> None:
        """Refuse a state from `other` (tier T0).

        Raises:
            Mismatch: with every field that differs.
        """
        differences = self.differences(other)
        if differences:
            raise Mismatch(
                "the fingerprints differ in " + ", ".join(f"{name} ({what})" for name, what in differences.items()),
                reason="FINGERPRINT_MISMATCH",
                violations={f"fingerprint.{name}": what for name, what in differences.items()},
            )


@dataclass(frozen=True)
class Descriptor:
    """What a session is, apart from its bytes."""

    session_id: str
    engine: str
    engine_version: str
    preset: str
    seed: int
    contract: Contract
    resume_token_digest: bytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over every field."""
        contract = [int(self.contract.contract_class), self.contract.horizon_s, int(self.contract.tier)]
        return digest(
            "descriptor",
            [
                self.session_id,
                self.engine,
                self.engine_version,
                self.preset,
                self.seed,
                contract,
                self.resume_token_digest,
            ],
        )


@dataclass(frozen=True)
class Manifest:
    """One frozen state. `block_index` is the next block to be played from it."""

    layout_digest: bytes
    descriptor_digest: bytes
    session_id: str
    epoch: int
    block_index: int
    fingerprint_digest: bytes
    tier: Tier
    grant_digest: bytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over every field."""
        return digest(
            "manifest",
            [
                self.layout_digest,
                self.descriptor_digest,
                self.session_id,
                self.epoch,
                self.block_index,
                self.fingerprint_digest,
                int(self.tier),
                self.grant_digest,
            ],
        )

"""Protobuf messages <-> our values, nowhere else. What comes in is checked here before anything trusts it.

`*_from(message)` raise BadRequest naming the field. Digests that a message carries are recomputed and compared, so a
message whose parts do not belong together is refused whole.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from worldline.codec.parts import Part
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import BadRequest
from worldline.layout import MAX_LEAVES, Layout, Leaf, LeafKind
from worldline.made import MAX_MADE, Made
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import (
    TOKEN_BYTES,
    Fault,
    FaultKind,
    Fence,
    HostRef,
    RegionRef,
    StageTimes,
    require_id,
    require_uuid,
)
from worldline.plan import MAX_CHUNKS, Placement, Plan
from worldline.receipt import Receipt, Side
from worldline.settings import is_address
from worldline.v1 import contract_pb2, engine_host_service_pb2, move_pb2, state_pb2
from worldline.verdict import Clause, Kind, Verdict

E = TypeVar("E", bound=enum.IntEnum)
DIGEST_BYTES = 32


def _enum(kind: type[E], value: int, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(item.name for item in kind)
        raise BadRequest(f"{field} {value} is none of {names}", violations={field: f"one of {names}"}) from None


def _digest(value: bytes, field: str) -> bytes:
    if len(value) != DIGEST_BYTES:
        what = f"{len(value)} bytes, {DIGEST_BYTES} are needed"
        raise BadRequest(f"{field} has {what}", violations={field: what})
    return bytes(value)


def _same_digest(computed: bytes, given: bytes, field: str) -> None:
    if computed != given:
        raise BadRequest(
            f"{field} is {given.hex()[:16] or 'absent'}, but the content makes {computed.hex()[:16]}",
            reason="WRONG_DIGEST",
            violations={field: "does not match the content"},
        )


# --- contract and fingerprint


def contract_to(value: Contract) -> contract_pb2.Contract:
    """To the wire."""
    return contract_pb2.Contract(
        contract_class=int(value.contract_class),  # type: ignore[arg-type]
        horizon_s=value.horizon_s,
        tier=int(value.tier),  # type: ignore[arg-type]
    )


def contract_from(message: contract_pb2.Contract) -> Contract:
    """From the wire."""
    return Contract(
        _enum(ContractClass, message.contract_class, "contract.contract_class"),
        message.horizon_s,
        _enum(Tier, message.tier, "contract.tier"),
    )


def fingerprint_to(value: Fingerprint) -> contract_pb2.Fingerprint:
    """To the wire."""
    return contract_pb2.Fingerprint(fields=dict(value.fields), digest=value.digest)


def fingerprint_from(message: contract_pb2.Fingerprint) -> Fingerprint:
    """From the wire."""
    value = Fingerprint(dict(message.fields))
    _same_digest(value.digest, message.digest, "fingerprint.digest")
    return value


# --- layout, manifest, descriptor, plan, receipt


def layout_to(value: Layout) -> state_pb2.Layout:
    """To the wire."""
    return state_pb2.Layout(
        leaves=[
            state_pb2.Leaf(
                path=leaf.path,
                kind=int(leaf.kind),  # type: ignore[arg-type]
                dtype=leaf.dtype,
                shape=leaf.shape,
                stride=leaf.stride,
                offset=leaf.offset,
                size_bytes=leaf.size_bytes,
                group=leaf.group,
            )
            for leaf in value.leaves
        ],
        region_bytes=value.region_bytes,
        topology_hash=value.topology_hash,
        digest=value.digest,
    )


def layout_from(message: state_pb2.Layout) -> Layout:
    """From the wire, every field checked before any memory is taken."""
    if len(message.leaves) > MAX_LEAVES:
        what = f"{len(message.leaves)} leaves; at most {MAX_LEAVES} are allowed"
        raise BadRequest(f"the layout was refused: {what}", reason="BAD_LAYOUT", violations={"layout.leaves": what})
    value = Layout(
        tuple(
            Leaf(
                leaf.path,
                _enum(LeafKind, leaf.kind, f"layout.leaves[{index}].kind"),
                leaf.dtype,
                tuple(leaf.shape),
                tuple(leaf.stride),
                leaf.offset,
                leaf.size_bytes,
                leaf.group,
            )
            for index, leaf in enumerate(message.leaves)
        ),
        message.region_bytes,
    )
    _same_digest(value.topology_hash, message.topology_hash, "layout.topology_hash")
    _same_digest(value.digest, message.digest, "layout.digest")
    return value


def descriptor_to(value: Descriptor) -> state_pb2.SessionDescriptor:
    """To the wire."""
    return state_pb2.SessionDescriptor(
        session_id=value.session_id,
        engine=value.engine,
        engine_version=value.engine_version,
        preset=value.preset,
        seed=value.seed,
        contract=contract_to(value.contract),
        resume_token_digest=value.resume_token_digest,
        digest=value.digest,
    )


def descriptor_from(message: state_pb2.SessionDescriptor) -> Descriptor:
    """From the wire."""
    for name in ("engine", "engine_version", "preset"):
        if not 0 < len(getattr(message, name)) <= 128:
            raise BadRequest(f"descriptor.{name} is empty or too long", violations={f"descriptor.{name}": "1 to 128"})
    value = Descriptor(
        require_id(message.session_id, "descriptor.session_id"),
        message.engine,
        message.engine_version,
        message.preset,
        message.seed,
        contract_from(message.contract),
        _digest(message.resume_token_digest, "descriptor.resume_token_digest"),
    )
    _same_digest(value.digest, message.digest, "descriptor.digest")
    return value


def manifest_to(value: Manifest) -> state_pb2.Manifest:
    """To the wire."""
    return state_pb2.Manifest(
        layout_digest=value.layout_digest,
        descriptor_digest=value.descriptor_digest,
        session_id=value.session_id,
        epoch=value.epoch,
        block_index=value.block_index,
        fingerprint_digest=value.fingerprint_digest,
        tier=int(value.tier),  # type: ignore[arg-type]
        grant_digest=value.grant_digest,
        digest=value.digest,
    )


def manifest_from(message: state_pb2.Manifest) -> Manifest:
    """From the wire."""
    value = Manifest(
        _digest(message.layout_digest, "manifest.layout_digest"),
        _digest(message.descriptor_digest, "manifest.descriptor_digest"),
        require_id(message.session_id, "manifest.session_id"),
        message.epoch,
        message.block_index,
        _digest(message.fingerprint_digest, "manifest.fingerprint_digest"),
        _enum(Tier, message.tier, "manifest.tier"),
        _digest(message.grant_digest, "manifest.grant_digest"),
    )
    _same_digest(value.digest, message.digest, "manifest.digest")
    return value


def made_to(values: Iterable[Made]) -> list[state_pb2.Made]:
    """To the wire."""
    return [state_pb2.Made(offset=item.offset, size_bytes=item.size_bytes, fill=item.fill) for item in values]


def made_from(messages: Sequence[state_pb2.Made]) -> tuple[Made, ...]:
    """From the wire. Raises BadRequest for too many; the rest is checked by whoever has them."""
    if len(messages) > MAX_MADE:
        what = f"{len(messages)} made stretches; at most {MAX_MADE} are allowed"
        raise BadRequest(what, violations={"made": what})
    return tuple(Made(item.offset, item.size_bytes, item.fill) for item in messages)


def plan_to(value: Plan) -> state_pb2.Plan:
    """To the wire."""
    return state_pb2.Plan(
        transport=value.transport,
        chunk_bytes=value.chunk_bytes,
        tail_bytes=value.tail_bytes,
        streams=value.streams,
        codec=value.codec,
        placement=int(value.placement),  # type: ignore[arg-type]
        deadline_s=value.deadline_s,
        max_freeze_s=value.max_freeze_s,
        no_progress_s=value.no_progress_s,
        staged=value.staged,
        made=made_to(value.made),
        digest=value.digest,
    )


def plan_from(message: state_pb2.Plan) -> Plan:
    """From the wire."""
    value = Plan(
        transport=message.transport,
        chunk_bytes=message.chunk_bytes,
        streams=message.streams,
        placement=_enum(Placement, message.placement, "plan.placement"),
        deadline_s=message.deadline_s,
        max_freeze_s=message.max_freeze_s,
        no_progress_s=message.no_progress_s,
        codec=message.codec,
        tail_bytes=tuple(message.tail_bytes),
        staged=message.staged,
        made=made_from(message.made),
    )
    _same_digest(value.digest, message.digest, "plan.digest")
    return value


def parts_to(parts: Sequence[Part]) -> list[engine_host_service_pb2.CodedPart]:
    """To the wire."""
    return [engine_host_service_pb2.CodedPart(size_bytes=part.size_bytes, crc=part.crc) for part in parts]


def parts_from(parts: Sequence[engine_host_service_pb2.CodedPart]) -> tuple[Part, ...]:
    """From the wire; whether they are of a region is checked where that is known."""
    return tuple(Part(part.size_bytes, part.crc) for part in parts)


def receipt_to(value: Receipt) -> state_pb2.Receipt:
    """To the wire."""
    return state_pb2.Receipt(
        side=int(value.side),  # type: ignore[arg-type]
        move_id=value.move_id,
        epoch=value.epoch,
        layout_digest=value.layout_digest,
        manifest_digest=value.manifest_digest,
        plan_digest=value.plan_digest,
        size_bytes=value.size_bytes,
        chunk_crcs=value.chunk_crcs,
        state_crc=value.state_crc,
        host_id=value.host_id,
        incarnation=value.incarnation,
    )


def receipt_from(message: state_pb2.Receipt) -> Receipt:
    """From the wire."""
    if len(message.chunk_crcs) > MAX_CHUNKS:
        raise BadRequest(f"over {MAX_CHUNKS} checksums", violations={"receipt.chunk_crcs": "too many"})
    return Receipt(
        _enum(Side, message.side, "receipt.side"),
        require_uuid(message.move_id, "receipt.move_id"),
        message.epoch,
        _digest(message.layout_digest, "receipt.layout_digest"),
        _digest(message.manifest_digest, "receipt.manifest_digest"),
        _digest(message.plan_digest, "receipt.plan_digest"),
        message.size_bytes,
        tuple(message.chunk_crcs),
        message.state_crc,
        require_id(message.host_id, "receipt.host_id"),
        message.incarnation,
    )


# --- fences, hosts, stages, faults


def fence_to(value: Fence) -> move_pb2.Fence:
    """To the wire."""
    return move_pb2.Fence(
        move_id=value.move_id,
        session_id=value.session_id,
        epoch=value.epoch,
        incarnation=value.incarnation,
        term=value.term,
    )


def fence_from(message: move_pb2.Fence) -> Fence:
    """From the wire."""
    return Fence(
        require_uuid(message.move_id, "fence.move_id"),
        require_id(message.session_id, "fence.session_id"),
        message.epoch,
        message.incarnation,
        message.term,
    )


def host_to(value: HostRef) -> engine_host_service_pb2.HostRef:
    """To the wire."""
    return engine_host_service_pb2.HostRef(host_id=value.host_id, incarnation=value.incarnation, address=value.address)


def region_to(value: RegionRef) -> engine_host_service_pb2.RegionRef:
    """Message of a reference to a region."""
    return engine_host_service_pb2.RegionRef(host_id=value.host_id, ticket=value.ticket, device_id=value.device_id)


def region_from(message: engine_host_service_pb2.RegionRef, field: str) -> RegionRef:
    """Value of a reference to a region. Raises BadRequest naming `field`."""
    if len(message.ticket) != TOKEN_BYTES or len(message.device_id) > 128:
        what = f"a ticket of {len(message.ticket)} bytes, or too long a device id; tickets have {TOKEN_BYTES}"
        raise BadRequest(f"{field}: {what}", violations={field: what})
    return RegionRef(require_id(message.host_id, f"{field}.host_id"), message.ticket, message.device_id)


def host_from(message: engine_host_service_pb2.HostRef, field: str) -> HostRef:
    """From the wire."""
    return HostRef(
        require_id(message.host_id, f"{field}.host_id"),
        message.incarnation,
        address_from(message.address, f"{field}.address"),
    )


def address_from(value: str, field: str) -> str:
    """host:port. Raises BadRequest."""
    if not is_address(value):
        raise BadRequest(f"{field} {value[:64]!r} is not host:port", violations={field: "host:port is needed"})
    return value


def stages_to(value: StageTimes) -> move_pb2.StageTimes:
    """To the wire."""
    return move_pb2.StageTimes(
        reserve_s=value.reserve_s,
        freeze_s=value.freeze_s,
        wire_s=value.wire_s,
        verify_s=value.verify_s,
        release_s=value.release_s,
        commit_s=value.commit_s,
        downtime_s=value.downtime_s,
        admission_s=value.admission_s,
        boundary_s=value.boundary_s,
    )


def stages_from(message: move_pb2.StageTimes) -> StageTimes:
    """From the wire."""
    return StageTimes(
        message.reserve_s,
        message.freeze_s,
        message.wire_s,
        message.verify_s,
        message.release_s,
        message.commit_s,
        message.downtime_s,
        message.admission_s,
        message.boundary_s,
    )


def faults_to(values: Iterable[Fault]) -> list[move_pb2.Fault]:
    """To the wire."""
    return [
        move_pb2.Fault(
            kind=int(value.kind),  # type: ignore[arg-type]
            chunk=value.chunk,
            times=value.times,
            seconds=value.seconds,
            step=value.step,
        )
        for value in values
    ]


def faults_from(messages: Iterable[move_pb2.Fault]) -> tuple[Fault, ...]:
    """From the wire."""
    faults = tuple(
        Fault(_enum(FaultKind, item.kind, "faults.kind"), item.chunk, item.times, item.seconds, item.step)
        for item in messages
    )
    if len(faults) > 16 or any(not (math.isfinite(fault.seconds) and 0 <= fault.seconds <= 60) for fault in faults):
        raise BadRequest("at most 16 faults of at most 60 s each", violations={"faults": "at most 16, each up to 60 s"})
    return faults


# --- verdicts


def verdict_to(value: Verdict) -> move_pb2.Verdict:
    """To the wire."""
    message = move_pb2.Verdict(
        kind=int(value.kind),  # type: ignore[arg-type]
        retry_after_s=value.retry_after_s,
        predicted_s=value.predicted_s,
        slack_s=value.slack_s,
    )
    # Added in place: building clauses apart and copying them takes half as long again, on the path of every move.
    add = message.clauses.add
    for clause in value.clauses:
        add(
            name=clause.name,
            verdict=int(clause.verdict),
            arithmetic=clause.arithmetic,
            numbers=clause.numbers,
            retry_after_s=clause.retry_after_s,
            reason=clause.reason,
        )
    return message


def verdict_from(message: move_pb2.Verdict) -> Verdict:
    """From the wire."""
    return Verdict(
        _enum(Kind, message.kind, "verdict.kind"),
        tuple(
            Clause(
                clause.name,
                _enum(Kind, clause.verdict, "verdict.clauses.verdict"),
                clause.arithmetic,
                dict(clause.numbers),
                clause.reason,
                clause.retry_after_s,
            )
            for clause in message.clauses
        ),
        message.retry_after_s,
        message.predicted_s,
        message.slack_s,
    )

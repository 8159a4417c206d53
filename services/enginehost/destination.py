"""A session comes to this host: stage, attest, verify, commit, activate, or drop."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from enginehost import tree
from enginehost.device import Attached, Pulled
from enginehost.host import Host, fenced
from enginehost.ownership import MAX_PAST, State
from enginehost.regions import fetch
from enginehost.session import Copy, Landing, Session
from enginehost.slots import Slot
from worldline import telemetry
from worldline.errors import (
    BadRequest,
    DataLoss,
    Mismatch,
    NotAllowed,
    Precondition,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fence, RegionRef
from worldline.plan import Placement, Plan
from worldline.receipt import Receipt, Side, chunk_mismatch, differing_chunks, require_match

_log = telemetry.log("destination")


@dataclass(frozen=True, slots=True)
class Staged:
    """A shadow slot: the ticket for its region, writable, or none if this host pulls; the seconds its prefault took."""

    ticket: bytes
    prefault_s: float


@dataclass(frozen=True, slots=True)
class PullFrom:
    """The source's region that a slot is to be filled from, and the plan of that."""

    region: RegionRef
    plan: Plan


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check of every byte found: indexes of chunks that differ, and the region's CRC-32."""

    bad_chunks: tuple[int, ...]
    chunk_crcs: tuple[int, ...]
    state_crc: int


class Destination:
    """The verbs of the side that takes."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @fenced
    def stage(
        self,
        fence: Fence,
        layout: Layout,
        descriptor: Descriptor,
        fingerprint: Fingerprint,
        timeout_s: float,
        pull: PullFrom | None = None,
    ) -> Staged:
        """Reserve and prefault a shadow slot. Everything is checked before memory is taken.

        With `pull`, the source's region is mapped for this host to pull from.

        Raises:
            Exhausted: the budget does not allow it.
            Mismatch: fingerprint, engine version or size; every difference is listed.
        """
        host = self._host
        if host.device.device_id and pull is None:
            raise Precondition(
                f"slots of engine host {host.host_id} lie on a device, where no mover can write: use placement DEVICE",
                reason="STATE_ON_DEVICE",
                violations={"plan.placement": "DEVICE is needed"},
            )
        if descriptor.session_id != fence.session_id:
            what = f"{descriptor.session_id} is not the fence's {fence.session_id}"
            raise BadRequest(f"descriptor.session_id {what}", violations={"descriptor.session_id": what})
        with host.sessions.verb(fence.session_id, timeout_s, create=True) as session:
            with session.cond:
                staged = session.ownership.stage(fence)
                again = staged is session.ownership
            if not again:
                copy, prefault_s = self._reserve(layout, descriptor, fingerprint)
                try:
                    attached = None if pull is None else self._attach(pull, layout)
                except BaseException:
                    copy.slot.close()
                    raise
                with session.cond:
                    session.copy, session.ownership, session.attached = copy, staged, attached
            else:
                copy, prefault_s = session.require_copy(), 0.0
                if (copy.slot.layout.digest, copy.descriptor.digest) != (layout.digest, descriptor.digest):
                    raise Mismatch(f"move {fence.move_id} has staged another layout or descriptor here")
            with session.cond:
                session.staged_at_s = time.monotonic()
            # Nobody else writes into a slot that is pulled into.
            ticket = b"" if pull else host.regions.issue(fence.move_id, lambda: _writable(session, fence.move_id))
        _log.info("staged", session_id=fence.session_id, move_id=fence.move_id, region_bytes=layout.region_bytes)
        return Staged(ticket, prefault_s)

    def _attach(self, pull: PullFrom, layout: Layout) -> Attached:
        host, region = self._host, pull.region
        host.device.prepare(pull.plan.chunks(layout.region_bytes))
        try:
            descriptor = fetch(host.settings.regions_dir / f"{region.host_id}.sock", region.ticket)
        except OSError as error:
            raise Unavailable(
                f"engine host {region.host_id} does not hand over its region: {error}. Both hosts need one regions_dir",
                reason="REGION_UNREACHABLE",
                retry_after_s=1.0,
            ) from None
        try:
            return host.device.attach(descriptor, layout.region_bytes, region.device_id)
        finally:
            os.close(descriptor)

    @fenced
    def pull(
        self,
        fence: Fence,
        plan: Plan,
        indexes: Sequence[int],
        *,
        flip: Collection[int],
        wanted: Callable[[], bool],
        timeout_s: float,
    ) -> Pulled:
        """Copy chunks (all if `indexes` is empty) from the source's mapped region, and take their CRC-32 in the slot.

        Raises:
            NotAllowed: bits to flip, on a host that injects no faults.
            WrongState: nothing is mapped for this move (any more).
        """
        if flip and not self._host.settings.fault_injection:
            raise NotAllowed(
                "this engine host does not inject faults; start it with fault_injection to allow it",
                reason="FAULT_INJECTION_OFF",
            )
        self._host.sessions.get(fence.session_id)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            with session.cond:
                session.ownership.require("pull", fence, State.STAGED)
                session.staged_at_s = time.monotonic()
                slot, attached = session.require_copy().slot, session.attached
            if attached is None:
                raise WrongState(f"no source region is mapped for move {fence.move_id}", reason="NOT_ATTACHED")
            chunks = plan.chunks(slot.layout.region_bytes)
            if any(index >= len(chunks) for index in indexes):
                what = f"the plan has {len(chunks)} chunks"
                raise BadRequest(f"chunks {list(indexes)[:8]}: {what}", violations={"chunks": what})
            wanted_chunks = [chunks[index] for index in sorted({*indexes})] or chunks
            pulled = attached.pull(slot.arena, wanted_chunks, flip=flip, wanted=wanted)
            session.pulled.update({chunk.index: crc for chunk, crc in zip(wanted_chunks, pulled.crcs, strict=True)})
            return pulled

    def _reserve(self, layout: Layout, descriptor: Descriptor, fingerprint: Fingerprint) -> tuple[Copy, float]:
        host = self._host
        host.require_open()
        host.require_room()
        engine, preset = host.engine(descriptor.engine, descriptor.preset)
        if engine.version != descriptor.engine_version:
            what = f"{descriptor.engine_version!r} there, {engine.version!r} here"
            raise Mismatch(
                f"engine {engine.name} is {what}",
                reason="ENGINE_VERSION_MISMATCH",
                violations={"descriptor.engine_version": what},
            )
        # Exact for every tier: weaker ones have no rule of their own yet.
        mine = host.fingerprints.of(engine.name, preset.name)
        mine.require_equal(fingerprint)
        if layout.region_bytes > preset.state_bytes:
            what = f"{layout.region_bytes} bytes, but preset {preset.name} has at most {preset.state_bytes}"
            raise Mismatch(f"the layout has {what}", reason="LAYOUT_MISMATCH", violations={"layout.region_bytes": what})
        tree.skeleton(layout)
        charge = host.budget.reserve(layout.region_bytes, f"staging session {descriptor.session_id}")
        started_s = time.monotonic()
        slot = Slot(descriptor.session_id, layout, charge, host.device)
        return Copy(descriptor, engine, preset, mine, slot), time.monotonic() - started_s

    @fenced
    def attest(
        self, fence: Fence, manifest: Manifest, plan: Plan, chunk_crcs: Sequence[int], timeout_s: float = 0.0
    ) -> Receipt:
        """The destination's receipt over what the mover found in the slot.

        With placement DEVICE this host has found it itself: a pull in progress is waited for, and `chunk_crcs`, the
        source's, have to be what it found. Nothing is pulled into the slot after that.

        Raises:
            BadRequest: not one checksum for each chunk of the plan.
            Mismatch: PULLED_DIFFERS; the slot may still be pulled into.
            Mismatch: the manifest is not of what is staged here, or another was attested before.
        """
        session = self._host.sessions.get(fence.session_id)
        copy = session.require_copy()
        layout = copy.slot.layout
        _require_of(manifest, copy, fence)
        with session.cond:
            session.ownership.require("attest", fence, State.STAGED, State.READY)
            again = fence.move_id in session.landings
        if plan.placement is Placement.DEVICE and not again:
            with self._host.sessions.verb(fence.session_id, timeout_s):
                _require_pulled(session, chunk_crcs)
                session.detach()
        else:
            session.detach()
        receipt = self._host.receipt(Side.DESTINATION, fence, layout, manifest, plan, chunk_crcs)
        with session.cond:
            session.ownership.require("attest", fence, State.STAGED, State.READY)
            before = session.landings.get(fence.move_id)
            if before is None:
                session.landings[fence.move_id] = Landing(manifest, plan, receipt)
            elif before.receipt != receipt:
                raise Mismatch(f"move {fence.move_id} has attested something else here", reason="RECEIPT_MISMATCH")
        return receipt

    @fenced
    def verify(self, fence: Fence, source: Receipt, timeout_s: float) -> Verified:
        """Check every byte of the staged copy against the source's receipt; nothing follows from it."""
        self._host.sessions.get(fence.session_id)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            session.ownership.require("verify", fence, State.STAGED, State.READY)
            landing = _landing(session, fence)
            _require_bound(landing, source)
            return self._check(session, landing, source)

    def _check(self, session: Session, landing: Landing, source: Receipt) -> Verified:
        slot = session.require_copy().slot
        chunks = landing.plan.chunks(slot.layout.region_bytes)
        found = slot.crcs(chunks)
        return Verified(tuple(differing_chunks(source.chunk_crcs, found.chunks)), tuple(found.chunks), found.whole)

    @fenced
    def commit(self, fence: Fence, grant: bytes, source: Receipt, timeout_s: float) -> tuple[Landing, int]:
        """Take the session: re-verify every byte, rehydrate, swap. Returns what landed and the epoch from now on.

        Raises:
            DataLoss: bytes differ, or make no session; the copy is dropped for good.
            Mismatch: the source's receipt is not what was attested; nothing has changed.
            Unauthenticated: not the grant that the manifest promises.
        """
        host = self._host
        host.sessions.get(fence.session_id)
        with host.sessions.verb(fence.session_id, timeout_s) as session:
            with session.cond:
                ready = session.ownership.commit(fence)
                again = ready is session.ownership
            landing = _landing(session, fence)
            if not hmac.compare_digest(hashlib.sha256(grant).digest(), landing.manifest.grant_digest):
                raise Unauthenticated(
                    "this is not the grant of the frozen state: only the source's Release gives it",
                    reason="WRONG_GRANT",
                )
            if again:
                return landing, landing.manifest.epoch + 1
            _require_attested(session, landing, source)
            landing = self._install(session, fence, landing, source)
            with session.cond:
                session.ownership = ready
                session.landings[fence.move_id] = landing
                for forgotten in list(session.landings)[:-MAX_PAST]:
                    del session.landings[forgotten]
        host.regions.revoke(fence.move_id)
        _log.info(
            "taken",
            session_id=fence.session_id,
            move_id=fence.move_id,
            block=landing.manifest.block_index,
            verify_s=landing.verify_s,
            swap_s=landing.swap_s,
        )
        return landing, ready.epoch

    def _install(self, session: Session, fence: Fence, landing: Landing, source: Receipt) -> Landing:
        started_s = time.monotonic()
        copy = session.require_copy()
        with telemetry.span("verify", {"move.id": fence.move_id, "session.id": fence.session_id}):
            verified = self._check(session, landing, source)
        if verified.bad_chunks:
            self._refuse(session, fence)
            chunks = landing.plan.chunks(copy.slot.layout.region_bytes)
            raise chunk_mismatch(
                verified.bad_chunks,
                source.chunk_crcs,
                verified.chunk_crcs,
                chunks,
                "in the shadow slot after its receipt",
            )
        verified_s = time.monotonic()
        try:
            runner = copy.engine.load(copy.preset.name, copy.slot.rehydrate())
            session.install(copy, runner, landing.manifest.block_index)
        except Exception as error:
            _log.error("the engine refused a verified state", session_id=session.session_id, exc_info=True)
            self._refuse(session, fence)
            raise DataLoss(
                f"the staged bytes are the source's, but make no session here: {error}. Nothing is installed",
                reason="REHYDRATION_FAILED",
            ) from None
        swap_s = time.monotonic() - verified_s
        return replace(landing, verify_s=verified_s - started_s, swap_s=swap_s)

    def _refuse(self, session: Session, fence: Fence) -> None:
        with session.cond:
            session.ownership = session.ownership.refuse(fence)
            session.landings.pop(fence.move_id, None)
        session.let_go()
        self._host.regions.revoke(fence.move_id)

    @fenced
    def activate(self, fence: Fence) -> Session:
        """The session may play."""
        session = self._host.sessions.get(fence.session_id)
        with session.cond:
            before = session.ownership
            session.ownership = before.activate(fence)
            if session.ownership is not before:
                session.moved = None
                # What the move's messages are answered with from now on needs no checksums.
                session.landings[fence.move_id] = replace(session.landings[fence.move_id], receipt=None)
                session.away_since_s = time.monotonic()
        self._host.scheduler.wake(session)
        return session

    @fenced
    def drop(self, fence: Fence, timeout_s: float) -> State:
        """Drop the staged copy. NOTHING: nothing of it is held any more."""
        with self._host.sessions.verb(fence.session_id, timeout_s, create=True) as session:
            with session.cond:
                before = session.ownership
                session.ownership = before.drop(fence)
                held = before.state is State.STAGED and session.ownership is not before
                session.landings.pop(fence.move_id, None)
            if held:
                session.let_go()
        self._host.regions.revoke(fence.move_id)
        return State.NOTHING


def _writable(session: Session, move_id: str) -> int:
    with session.cond:
        if session.ownership.state is not State.STAGED or session.ownership.move_id != move_id:
            raise WrongState(f"move {move_id} has nothing staged here")
        session.staged_at_s = time.monotonic()
        return session.require_copy().slot.arena.writable_fd()


def _landing(session: Session, fence: Fence) -> Landing:
    landing = session.landings.get(fence.move_id)
    if landing is None:
        raise WrongState(
            f"move {fence.move_id} has not been attested here: its bytes have not landed", reason="NOT_ATTESTED"
        )
    return landing


def _require_of(manifest: Manifest, copy: Copy, fence: Fence) -> None:
    """Refuse a manifest that is not of the staged copy. Raises Mismatch with each difference."""
    pairs: dict[str, tuple[object, object]] = {
        "session_id": (manifest.session_id, fence.session_id),
        "epoch": (manifest.epoch, fence.epoch),
        "layout_digest": (manifest.layout_digest, copy.slot.layout.digest),
        "descriptor_digest": (manifest.descriptor_digest, copy.descriptor.digest),
        "fingerprint_digest": (manifest.fingerprint_digest, copy.fingerprint.digest),
        "tier": (manifest.tier, copy.descriptor.contract.tier),
    }
    differences = {
        f"manifest.{name}": f"{_shown(given)} given, {_shown(staged)} staged"
        for name, (given, staged) in pairs.items()
        if given != staged
    }
    if differences:
        raise Mismatch(
            "the manifest is not of what is staged here: " + "; ".join(f"{k}: {v}" for k, v in differences.items()),
            reason="MANIFEST_MISMATCH",
            violations=differences,
        )


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def _require_pulled(session: Session, chunk_crcs: Sequence[int]) -> None:
    """Refuse checksums that are not those of what was pulled into the slot. Raises Mismatch."""
    different = [index for index, crc in enumerate(chunk_crcs) if session.pulled.get(index) != crc]
    if different:
        raise Mismatch(
            f"{len(different)} of {len(chunk_crcs)} chunks in the slot are not the source's, first {different[0]}",
            reason="PULLED_DIFFERS",
            numbers={"chunks": len(different), "first": different[0]},
        )


def _require_bound(landing: Landing, source: Receipt) -> None:
    """Refuse a receipt over another manifest or plan than the attested."""
    given = (source.manifest_digest, source.plan_digest)
    if given != (landing.manifest.digest, landing.plan.digest):
        raise Mismatch("the source's receipt is of another manifest or plan", reason="RECEIPT_MISMATCH")


def _require_attested(session: Session, landing: Landing, source: Receipt) -> None:
    """Refuse a source receipt that differs from what was attested here; the staged copy stays."""
    chunks = landing.plan.chunks(session.require_copy().slot.layout.region_bytes)
    if landing.receipt is None:
        raise WrongState("the staged copy has no receipt", reason="NOT_ATTESTED")
    try:
        require_match(source, landing.receipt, chunks)
    except DataLoss as error:
        # No byte of the slot was looked at: this is not the final refusal that DataLoss means to the caller.
        raise Mismatch(error.message, reason="RECEIPT_MISMATCH", numbers=error.numbers) from None

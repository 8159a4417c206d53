"""A session comes to this host: stage, attest, verify, commit, activate, or drop."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from enginehost.agreement import landing_of, require_attested, require_bound, require_of, require_pulled
from enginehost.coded import CodedBuffer, frames_of
from enginehost.device import Pulled
from enginehost.host import Host, fenced
from enginehost.loading import load
from enginehost.motion import make
from enginehost.ownership import MAX_PAST, State
from enginehost.session import Landing, Session
from enginehost.shadow import PullFrom, attach, open_buffer, open_slot, reserve
from worldline import telemetry
from worldline.codec.parts import Part
from worldline.errors import (
    BadRequest,
    DataLoss,
    Mismatch,
    NotAllowed,
    Precondition,
    Unauthenticated,
    WrongState,
)
from worldline.filling import Filling
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fence
from worldline.plan import DEVICE_CODECS, Placement, Plan
from worldline.receipt import Receipt, Side, chunk_mismatch, differing_chunks

_log = telemetry.log("destination")


@dataclass(frozen=True, slots=True)
class Staged:
    """A shadow slot: the ticket for its region, writable, or none if this host pulls; the seconds its prefault took."""

    ticket: bytes
    prefault_s: float


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
        plan: Plan | None = None,
    ) -> Staged:
        """Reserve and prefault a shadow slot. Everything is checked before memory is taken.

        With `pull`, the source's region is mapped for this host to pull from, or the ticket is for a buffer. What
        `plan` makes is made here.

        Raises:
            Exhausted: the budget does not allow it; STAGING_MEMORY.
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
                copy, prefault_s = reserve(host, layout, descriptor, fingerprint)
                try:
                    if plan is not None:
                        make(copy.slot, plan)
                    attached = None if pull is None else attach(host, session, fence, pull, layout)
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
            open_region = open_slot if pull is None else open_buffer if pull.region is None else None
            ticket = b""
            if open_region is not None:
                ticket = host.regions.issue(fence.move_id, partial(open_region, session, fence.move_id))
        _log.info("staged", session_id=fence.session_id, move_id=fence.move_id, region_bytes=layout.region_bytes)
        return Staged(ticket, prefault_s)

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
        parts: tuple[Part, ...] = (),
        landing: Filling | None = None,
    ) -> Pulled:
        """Copy chunks (all if `indexes` is empty) from the source's mapped region, and take their CRC-32 in the slot.

        With a codec of the device, `parts` lie in the move's buffer, and all of the state is decoded from them. With
        `landing` they, or the bytes as they are, are still on their way; `drop` waits for nothing of them.

        Raises:
            DataLoss: PART_MISMATCH.
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
            # What is asked for by name is copied, also if it is the plan's to make: it was found to differ.
            wanted_chunks = [replace(chunks[index], fill=b"") for index in sorted({*indexes})] or chunks
            if plan.codec in DEVICE_CODECS:
                device, buffer = self._host.device, session.staged_through(fence.move_id)
                attached = CodedBuffer(device, frames_of(device, plan.codec), buffer, parts)
            with session.expecting(fence.move_id, landing):
                pulled = attached.pull(slot.arena, wanted_chunks, flip=flip, wanted=wanted, source=landing)
            session.pulled.update({chunk.index: crc for chunk, crc in zip(wanted_chunks, pulled.crcs, strict=True)})
            return pulled

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
        require_of(manifest, copy, fence)
        with session.cond:
            session.ownership.require("attest", fence, State.STAGED, State.READY)
            again = fence.move_id in session.landings
        if plan.placement is Placement.DEVICE and not again:
            with self._host.sessions.verb(fence.session_id, timeout_s):
                require_pulled(session, chunk_crcs)
                session.detach()
                # The mover had it unmapped before it asked for this.
                session.unstage(fence.move_id, unmapped=True)
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
        if not again:
            self._host.ahead.do(partial(self._prepare, fence))
        return receipt

    def _prepare(self, fence: Fence) -> None:
        """Load the attested copy, while source and admission still talk: the commit then checks its bytes and swaps."""
        with self._host.sessions.verb(fence.session_id, 0.0) as session:
            session.ownership.require("load", fence, State.STAGED)
            copy = session.require_copy()
            session.prepared = load(copy.engine, copy.preset, copy.slot)

    @fenced
    def verify(self, fence: Fence, source: Receipt, timeout_s: float) -> Verified:
        """Check every byte of the staged copy against the source's receipt; nothing follows from it."""
        self._host.sessions.get(fence.session_id)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            session.ownership.require("verify", fence, State.STAGED, State.READY)
            landing = landing_of(session, fence)
            require_bound(landing, source)
            return self._check(session, landing, source)

    def _check(self, session: Session, landing: Landing, source: Receipt) -> Verified:
        slot = session.require_copy().slot
        chunks = landing.plan.chunks(slot.layout.region_bytes)
        found = slot.crcs(chunks)
        return Verified(tuple(differing_chunks(source.chunk_crcs, found.chunks)), tuple(found.chunks), found.whole)

    @fenced
    def commit(self, fence: Fence, grant: bytes, source: Receipt, timeout_s: float) -> tuple[Landing, int]:
        """Take the session: re-verify every byte, rehydrate if that was not done ahead, swap.

        Returns what landed and the epoch from now on.

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
            landing = landing_of(session, fence)
            if not hmac.compare_digest(hashlib.sha256(grant).digest(), landing.manifest.grant_digest):
                raise Unauthenticated(
                    "this is not the grant of the frozen state: only the source's Release gives it",
                    reason="WRONG_GRANT",
                )
            if again:
                return landing, landing.manifest.epoch + 1
            require_attested(session, landing, source)
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
            loaded = session.prepared or load(copy.engine, copy.preset, copy.slot)
            session.install(copy, loaded, landing.manifest.block_index)
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
        waiting = self._host.sessions.find(fence.session_id)
        if waiting is not None:
            waiting.expect_no_more(fence.move_id)
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

"""A session leaves this host: register, freeze, attest, release, resume or reinstate, free."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from enginehost.coded import Filled, encode, frames_of
from enginehost.device import Span
from enginehost.host import Host, fenced
from enginehost.motion import COLD_LEAF_WRITTEN, require_constant
from enginehost.ownership import State
from enginehost.session import Freeze, Moved, Session
from enginehost.slots import Slot
from enginehost.staging import Buffer
from enginehost.suspension import bring_back
from worldline import telemetry
from worldline.codec.parts import Part, carried_bytes
from worldline.errors import BadRequest, Mismatch, NotFound, Unavailable, WrongState
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fence, new_token
from worldline.plan import DEVICE_CODECS, Plan
from worldline.receipt import Receipt, Side
from worldline.v1 import engine_host_service_pb2 as pb

# Copied between two words on how far a buffer is filled: two milliseconds of the link to the host.
_FILLED_BYTES = 128 << 20
_log = telemetry.log("source")


@dataclass(frozen=True, slots=True)
class Registered:
    """What verb 1 answers. `ticket` is empty without a move; `manifest` is None unless frozen.

    `device_id` is empty for a region that movers can map.
    """

    layout: Layout
    descriptor: Descriptor
    fingerprint: Fingerprint
    ticket: bytes
    manifest: Manifest | None
    device_id: str


@dataclass(frozen=True, slots=True)
class Checksummed:
    """CRC-32 of each chunk, the seconds that took, and what lies in the move's buffer if it is coded."""

    chunk_crcs: tuple[int, ...]
    checksum_s: float
    parts: tuple[Part, ...]


class Source:
    """The verbs of the side that gives."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def register(
        self, session_id: str, fence: Fence | None, plan: Plan | None = None, timeout_s: float = 0.0
    ) -> Registered:
        """Layout, descriptor and fingerprint; for a move also a ticket for the region, read-only.

        With the plan of a move, its checksums are made ready. If the plan is staged, the ticket is for a buffer in host
        memory, which `checksum` fills.

        A suspended session's state is brought back into a slot first, which is what moves.

        Raises:
            Exhausted: STAGING_MEMORY; MEMORY_BUDGET for the slot of a suspended session.
        """
        if fence is not None:
            self._host.check(fence)
        session = self._host.sessions.get(session_id)
        if fence is not None and session.host_copy is not None:
            with self._host.sessions.verb(session_id, timeout_s):
                bring_back(self._host, session)
        with session.cond:
            copy = session.require_copy()
            if fence is not None and session.host_copy is not None:
                raise Unavailable(
                    f"session {session_id} was suspended while this move registered; ask again",
                    reason="SESSION_SUSPENDED",
                    retry_after_s=0.2,
                )
            if fence is not None:
                session.ownership.require_registrable(fence)
                session.registered = (fence.move_id, time.monotonic())
            manifest = session.freeze.manifest if session.freeze is not None else None
        ticket, device_id = b"", self._host.device.device_id
        if fence is not None:
            open_region = partial(_read_only, session)
            if plan is not None:
                self._host.device.prepare(plan.chunks(copy.slot.layout.region_bytes))
            if plan is not None and plan.staged:
                if plan.codec in DEVICE_CODECS:
                    frames_of(self._host.device, plan.codec)
                what = f"moving session {session_id} through host memory"
                buffer = self._host.staging.lend(copy.slot.layout.region_bytes, what)
                session.stage_through(fence.move_id, buffer)
                open_region, device_id = partial(buffer.descriptor, writable=False), ""
            ticket = self._host.regions.issue(fence.move_id, open_region)
            self._host.accepted(fence)
        return Registered(copy.slot.layout, copy.descriptor, copy.fingerprint, ticket, manifest, device_id)

    @fenced
    def freeze(self, fence: Fence, max_freeze_s: float, timeout_s: float) -> Freeze:
        """Stop at the next block boundary and make the manifest; the host's own timer runs from here.

        Raises:
            Mismatch: LAYOUT_DRIFT; the session plays on.
            TimedOut: no block boundary in time; the session plays on.
        """
        if not math.isfinite(max_freeze_s) or max_freeze_s <= 0:
            what = f"{max_freeze_s} is not a number above 0 s"
            raise BadRequest(f"max_freeze_s {what}", violations={"max_freeze_s": what})
        self._require_bearable(fence.session_id, max_freeze_s)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            with session.cond:
                session.require_copy()
                if session.ownership.freeze(fence) is session.ownership and session.freeze is not None:
                    return session.freeze
            boundary_s = session.halt(timeout_s)
            try:
                freeze = self._manifest_of(session, fence, boundary_s)
                timer = threading.Timer(max_freeze_s, self._host.thaw, (session, fence.move_id))
                timer.name, timer.daemon = "freeze-timer", True
                with session.cond:
                    session.ownership = session.ownership.freeze(fence)
                    session.freeze, session.freeze_timer = freeze, timer
                    timer.start()
            finally:
                session.go()
                self._host.scheduler.wake(session)
        _log.info(
            "frozen",
            session_id=fence.session_id,
            move_id=fence.move_id,
            block=freeze.manifest.block_index,
            boundary_s=boundary_s,
            flattened_bytes=freeze.flattened_bytes,
            flatten_s=freeze.flatten_s,
        )
        return freeze

    def _require_bearable(self, session_id: str, max_freeze_s: float) -> None:
        session = self._host.sessions.get(session_id)
        with session.cond:
            contract = session.require_copy().descriptor.contract
        limit_s = self._host.freeze_limit_s(contract)
        if max_freeze_s > limit_s:
            setting = "horizon + grace_s" if contract.has_deadline else "max_freeze_s"
            what = f"{max_freeze_s:g} s is over the {limit_s:g} s ({setting}) of class {contract.contract_class.name}"
            raise BadRequest(
                f"max_freeze_s {what}: ask for less, or set this host's and admission's bounds alike",
                reason="FREEZE_TOO_LONG",
                numbers={"max_freeze_s": max_freeze_s, "limit_s": limit_s},
                violations={"max_freeze_s": what},
            )

    def _manifest_of(self, session: Session, fence: Fence, boundary_s: float) -> Freeze:
        copy = session.require_copy()
        flattened = session.flatten()
        grant = new_token()
        manifest = Manifest(
            layout_digest=copy.slot.layout.digest,
            descriptor_digest=copy.descriptor.digest,
            session_id=session.session_id,
            epoch=fence.epoch,
            block_index=session.next_block,
            fingerprint_digest=copy.fingerprint.digest,
            tier=copy.descriptor.contract.tier,
            grant_digest=hashlib.sha256(grant).digest(),
        )
        session.flattened_bytes = flattened.copied_bytes
        return Freeze(manifest, grant, boundary_s, flattened.copied_bytes, flattened.took_s)

    @fenced
    def checksum(self, fence: Fence, plan: Plan, timeout_s: float, filled: Filled = lambda *_: None) -> Checksummed:
        """CRC-32 of each chunk of the frozen state, taken on the device.

        If the plan is staged, the state is copied to the move's buffer first, coded if the plan says so, and `filled`
        is told how far it is; the checksums are the device's all the same, so that a copy that goes wrong shows at the
        destination.

        Raises:
            WrongState: the session is not frozen by this move, or NOT_STAGED.
            Unsupported: the device has no such codec.
        """
        self._host.sessions.get(fence.session_id)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            with session.cond:
                session.ownership.require("checksum", fence, State.FROZEN)
                slot = session.require_copy().slot
            started_s = time.monotonic()
            parts = self._fill(session.staged_through(fence.move_id), plan, slot, filled) if plan.staged else ()
            copied_s = time.monotonic()
            crcs = slot.crcs(plan.chunks(slot.layout.region_bytes)).chunks
            checksum_s = time.monotonic() - copied_s
        _log.info(
            "checksums",
            session_id=fence.session_id,
            move_id=fence.move_id,
            checksum_s=checksum_s,
            staged_s=copied_s - started_s,
            carried_bytes=carried_bytes(parts) if parts else slot.layout.region_bytes,
        )
        return Checksummed(tuple(crcs), checksum_s, parts)

    def _fill(self, buffer: Buffer, plan: Plan, slot: Slot, filled: Filled) -> tuple[Part, ...]:
        """Copy a frozen state to a buffer. Returns what lies there, if it is coded."""
        device, arena, size_bytes = self._host.device, slot.arena, slot.layout.region_bytes
        with buffer.using() as address:
            if plan.codec in DEVICE_CODECS:
                return encode(device, frames_of(device, plan.codec), arena, size_bytes, address, filled)
            for at in range(0, size_bytes, _FILLED_BYTES):
                end = min(at + _FILLED_BYTES, size_bytes)
                arena.copy([Span(address + at, arena.address + at, end - at)])
                filled(end, ())
            return ()

    @fenced
    def attest(self, fence: Fence, manifest: Manifest, plan: Plan, chunk_crcs: Sequence[int]) -> Receipt:
        """The source's receipt, only while still in the freeze that made `manifest`.

        Raises:
            BadRequest: not one checksum for each chunk of the plan.
            Mismatch: another manifest is frozen; MOTION_SET or COLD_LEAF_WRITTEN, the plan makes what it cannot.
            WrongState: the session has resumed.
        """
        session = self._host.sessions.get(fence.session_id)
        layout = session.require_copy().slot.layout
        receipt = self._host.receipt(Side.SOURCE, fence, layout, manifest, plan, chunk_crcs)
        with session.cond:
            session.ownership.require("attest", fence, State.FROZEN, State.RELEASED)
            freeze = session.freeze
            if freeze is None or freeze.manifest.digest != manifest.digest:
                raise Mismatch(
                    f"manifest {manifest.digest.hex()[:16]} is not that of the freeze",
                    reason="MANIFEST_MISMATCH",
                    violations={"manifest.digest": "another one is frozen"},
                )
            if session.ownership.state is State.RELEASED and freeze.receipt != receipt:
                raise WrongState("the session was released: no other receipt is issued")
            if session.ownership.state is State.FROZEN:
                _require_constant(session, plan, chunk_crcs)
            session.freeze = replace(freeze, receipt=receipt)
        return receipt

    @fenced
    def release(self, fence: Fence) -> bytes | None:
        """Give the session away: the grant. None: it is live, and this move cannot have it any more."""
        session = self._host.sessions.get(fence.session_id)
        with session.cond:
            session.ownership, resumed = session.ownership.release(fence)
            if session.ownership.state is State.RELEASED:
                _stop_timer(session)
            if resumed:
                grant = None
            elif session.freeze is not None and session.ownership.move_id == fence.move_id:
                grant = session.freeze.grant
            elif session.moved is not None and session.moved.move_id == fence.move_id:
                grant = session.moved.grant
            else:
                raise WrongState(f"move {fence.move_id} is over here, and its grant is forgotten", reason="MOVE_OVER")
        self._host.regions.revoke(fence.move_id)
        _log.info("release", session_id=fence.session_id, move_id=fence.move_id, resumed=resumed)
        return grant

    @fenced
    def resume(self, fence: Fence, *, reinstate: bool) -> State:
        """Live again: from frozen, and with `reinstate` also from released. NOTHING: it is not on this host."""
        session = self._host.sessions.find(fence.session_id)
        if session is None:
            return State.NOTHING
        with session.cond:
            before = session.ownership
            session.ownership, answer = before.reinstate(fence) if reinstate else before.resume(fence)
            if before.move_id == fence.move_id and session.ownership is not before:
                _stop_timer(session)
                session.freeze = None
        self._host.regions.revoke(fence.move_id)
        session.unstage(fence.move_id)
        self._host.scheduler.wake(session)
        return answer

    @fenced
    def free(self, fence: Fence, host_id: str, public_address: str, epoch: int, timeout_s: float) -> int:
        """Free the copy that was released and tell the player where the session went. Returns the bytes freed."""
        self._host.sessions.get(fence.session_id)
        with self._host.sessions.verb(fence.session_id, timeout_s) as session:
            with session.cond:
                before = session.ownership
                after = before.free(fence)
                if after is before:
                    moved = session.moved
                    return moved.freed_bytes if moved is not None and moved.move_id == fence.move_id else 0
                copy, freeze = session.require_copy(), session.freeze
                if freeze is None:
                    raise NotFound(f"session {fence.session_id} has no freeze to free")
                moved = Moved(
                    fence.move_id, freeze.grant, host_id, public_address, epoch, copy.slot.layout.region_bytes
                )
                session.ownership, session.moved = after, moved
                stream, session.stream = session.stream, None
            # The player first: it can go on there while the memory is given back here.
            if stream is not None:
                stream.finish(moved_to(moved))
            # The destination has the session, so both movers are through with it.
            session.unstage(fence.move_id, unmapped=True)
            freed_bytes = session.let_go()
        self._host.regions.revoke(fence.move_id)
        _log.info("freed", session_id=fence.session_id, move_id=fence.move_id, freed_bytes=freed_bytes)
        return freed_bytes


def moved_to(moved: Moved) -> pb.PlayResponse:
    """The last message on a stream whose session has moved."""
    return pb.PlayResponse(
        moved=pb.PlayMoved(host_id=moved.host_id, public_address=moved.public_address, epoch=moved.epoch)
    )


def _read_only(session: Session) -> int:
    with session.cond:  # so that the slot is not closed meanwhile
        return session.require_copy().slot.arena.read_only_fd()


def _require_constant(session: Session, plan: Plan, chunk_crcs: Sequence[int]) -> None:
    """See `enginehost.motion`: where a cold leaf was written, all of the session is sent from now on."""
    copy = session.require_copy()
    try:
        require_constant(copy.slot.layout, copy.made, plan, chunk_crcs)
    except Mismatch as error:
        if error.reason == COLD_LEAF_WRITTEN:
            session.copy = replace(copy, made=())
            _log.error("a cold leaf was written", session_id=session.session_id, error=error.message)
        raise


def _stop_timer(session: Session) -> None:
    timer, session.freeze_timer = session.freeze_timer, None
    if timer is not None:
        timer.cancel()

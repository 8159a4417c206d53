"""A shadow slot: what is checked before its memory is taken, and what it is filled from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from enginehost import tree
from enginehost.coded import frames_of
from enginehost.device import Attached
from enginehost.host import Host
from enginehost.motion import make_in_buffer
from enginehost.ownership import State
from enginehost.regions import fetch
from enginehost.session import Copy, Session
from enginehost.slots import Slot
from worldline.errors import Mismatch, Unavailable, WrongState
from worldline.layout import Layout
from worldline.manifest import Descriptor, Fingerprint
from worldline.move import Fence, RegionRef
from worldline.plan import DEVICE_CODECS, Plan


@dataclass(frozen=True, slots=True)
class PullFrom:
    """The source's region that a slot is to be filled from, and the plan of that.

    Without a region, the plan is staged: the slot is filled from a buffer in host memory that a mover fills first.
    """

    region: RegionRef | None
    plan: Plan


def reserve(host: Host, layout: Layout, descriptor: Descriptor, fingerprint: Fingerprint) -> tuple[Copy, float]:
    """Check everything, then take a slot. Returns it, and the seconds that its memory took.

    Raises:
        Exhausted: the budget does not allow it.
        Mismatch: fingerprint, engine version or size; every difference is listed.
    """
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
    started_s = time.monotonic()
    what = f"staging session {descriptor.session_id}"
    slot = Slot(layout, host.slot_memory(descriptor.session_id, layout.region_bytes, what), host.device)
    made = host.made(engine, preset, layout)
    return Copy(descriptor, engine, preset, mine, slot, made), time.monotonic() - started_s


def attach(host: Host, session: Session, fence: Fence, pull: PullFrom, layout: Layout) -> Attached:
    """What the slot is to be pulled from: the source's region, mapped here, or a buffer in host memory.

    Raises:
        Unavailable: the source's engine host does not hand over its region.
        Exhausted: STAGING_MEMORY.
    """
    region = pull.region
    host.device.prepare(pull.plan.chunks(layout.region_bytes))
    if region is None:
        if pull.plan.codec in DEVICE_CODECS:
            frames_of(host.device, pull.plan.codec)
        what = f"staging session {fence.session_id} through host memory"
        buffer = host.staging.lend(layout.region_bytes, what)
        session.stage_through(fence.move_id, buffer)
        with buffer.using() as address:
            make_in_buffer(address, layout.region_bytes, pull.plan)
        return host.device.read_from(buffer)
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


def open_slot(session: Session, move_id: str) -> int:
    """A descriptor of the slot."""
    with session.cond:
        if session.ownership.state is not State.STAGED or session.ownership.move_id != move_id:
            raise WrongState(f"move {move_id} has nothing staged here")
        session.staged_at_s = time.monotonic()
        return session.require_copy().slot.arena.writable_fd()


def open_buffer(session: Session, move_id: str) -> int:
    """A descriptor of the buffer that the slot is filled from."""
    session.staged_at_s = time.monotonic()
    return session.staged_through(move_id).descriptor(writable=True)

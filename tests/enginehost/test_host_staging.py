"""Staged moves: state goes through buffers in host memory, and receipts are over what lies in the slots."""

from __future__ import annotations

import mmap
import os
import threading
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from enginehost_tools import LocalHost, crcs_of, until
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost.coded import decode, encode
from enginehost.cpu import Cpu
from enginehost.ownership import State
from enginehost.regions import fetch
from enginehost.session import Session
from enginehost.shadow import PullFrom
from enginehost.staging import Buffer, Staging
from worldline.codec.parts import Part, carried_bytes
from worldline.errors import (
    BadRequest,
    Cancelled,
    DataLoss,
    Exhausted,
    Mismatch,
    NotFound,
    Precondition,
    Unsupported,
    WrongState,
)
from worldline.filling import complete
from worldline.manifest import Manifest
from worldline.move import Fence
from worldline.plan import Placement, Plan
from worldline.receipt import Receipt

MIB = 1 << 20
PLAN = Plan("tcp", 4096, 2, Placement.DEVICE, 10.0, 10.0, 2.0, staged=True)
CODED = replace(PLAN, codec="ans")


class PinningCpu(Cpu):
    """Knows what is pinned."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def pin(self, address: int, size_bytes: int) -> None:
        self.pinned[address] = size_bytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]


# --- the pool


def test_a_buffer_serves_the_next_move_once_it_is_unmapped() -> None:
    device = PinningCpu()
    pool = Staging(8 * MIB, device)
    first = pool.lend(3 * MIB, "a move")
    with first.using() as address:
        assert device.pinned == {address: 4 * MIB}
    first.give_back(unmapped=True)
    first.give_back(unmapped=True)
    assert pool.kept_bytes == 4 * MIB
    second = pool.lend(4 * MIB, "a move")
    with second.using() as again:
        assert again == address
    second.give_back(unmapped=False)
    assert pool.kept_bytes == 0
    assert not device.pinned, "whoever may still map it keeps no other move's bytes"


def test_the_pool_is_bounded_and_makes_room() -> None:
    device = PinningCpu()
    pool = Staging(8 * MIB, device)
    small = pool.lend(2 * MIB, "a move")
    large = pool.lend(6 * MIB, "a move")
    with pytest.raises(Exhausted, match="raise staging_bytes") as caught:
        pool.lend(1, "moving session s")
    assert caught.value.reason == "STAGING_MEMORY"
    assert caught.value.retry_after_s
    small.give_back(unmapped=True)
    large.give_back(unmapped=True)
    whole = pool.lend(8 * MIB, "a move")
    assert list(device.pinned.values()) == [8 * MIB], "both that waited were given back"
    pool.close()
    whole.give_back(unmapped=True)
    assert not device.pinned


def test_a_buffer_that_was_given_back_is_used_no_more() -> None:
    pool = Staging(2 * MIB, Cpu())
    buffer = pool.lend(1, "a move")
    attached = Cpu().read_from(buffer)
    buffer.give_back(unmapped=True)
    with pytest.raises(Cancelled), buffer.using():
        pass
    with pytest.raises(Cancelled):
        buffer.descriptor(writable=True)
    attached.close()
    pool.close()


# --- moves by hand: the test is the mover


class ZlibFrames:
    """Stands in for a device's codec."""

    name = "ans"

    def bound_bytes(self, plane_bytes: int) -> int:
        return 2 * plane_bytes + 64

    def encode(self, planes: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> list[int]:
        sizes = []
        for plane, frame in zip(planes, into, strict=True):
            coded = torch.frombuffer(bytearray(zlib.compress(bytes(plane.numpy()))), dtype=torch.uint8)
            frame[: coded.numel()].copy_(coded)
            sizes.append(coded.numel())
        return sizes

    def decode(self, frame: torch.Tensor, plane: torch.Tensor) -> None:
        whole = zlib.decompress(bytes(frame.numpy()))
        if len(whole) != plane.numel():
            raise DataLoss("not of its plane", reason="PART_MISMATCH")
        plane.copy_(torch.frombuffer(bytearray(whole), dtype=torch.uint8))


class Staged:
    """A move of session "s" from one host to another."""

    def __init__(self, source: LocalHost, destination: LocalHost, plan: Plan = PLAN) -> None:
        self.source, self.destination, self.plan = source, destination, plan
        self.fence = Fence(str(uuid.uuid4()), "s", 1, 1, 1)
        self.parts: tuple[Part, ...] = ()

    def reserve(self) -> None:
        """Register and stage; both buffers are mapped."""
        registered = self.source.source.register("s", self.fence, self.plan)
        assert registered.device_id == ""
        layout = registered.layout
        staged = self.destination.destination.stage(
            self.fence, layout, registered.descriptor, registered.fingerprint, 10.0, PullFrom(None, self.plan)
        )
        self.size_bytes = layout.region_bytes
        self.there = mapped(self.source, registered.ticket, self.size_bytes, mmap.PROT_READ)
        self.here = mapped(self.destination, staged.ticket, self.size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def freeze(self) -> Manifest:
        return self.source.source.freeze(self.fence, 10.0, 10.0).manifest

    def carry(self) -> list[int]:
        """Fill the source's buffer and carry it over. Returns the source's checksums."""
        found = self.source.source.checksum(self.fence, self.plan, 10.0)
        self.parts = found.parts
        self.here[:] = self.there[:]
        return list(found.chunk_crcs)

    def pull(self) -> list[int]:
        return self.destination.destination.pull(
            self.fence, self.plan, (), flip=(), wanted=lambda: True, timeout_s=10.0, parts=self.parts
        ).crcs

    def attest(self, manifest: Manifest, crcs: list[int]) -> Receipt:
        self.destination.destination.attest(self.fence, manifest, self.plan, crcs, 10.0)
        return self.source.source.attest(self.fence, manifest, self.plan, crcs)

    def take(self, receipt: Receipt) -> Session:
        grant = self.source.source.release(self.fence)
        assert grant is not None
        self.destination.destination.commit(self.fence, grant, receipt, 10.0)
        arrived = self.destination.destination.activate(self.fence)
        self.source.source.free(self.fence, "b", "127.0.0.1:1", 2, 10.0)
        return arrived

    def give_up(self) -> None:
        assert self.source.source.resume(self.fence, reinstate=False) is State.LIVE
        self.destination.destination.drop(self.fence, 10.0)


def mapped(host: LocalHost, ticket: bytes, size_bytes: int, protection: int) -> mmap.mmap:
    descriptor = fetch(host.host.regions.path, ticket)
    try:
        return mmap.mmap(descriptor, size_bytes, prot=protection)
    finally:
        os.close(descriptor)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[LocalHost, LocalHost]]:
    first, second = LocalHost(tmp_path, "a"), LocalHost(tmp_path, "b")
    yield first, second
    for host in (first, second):
        host.close()
        assert not host.host.sessions.held()
        host.host.staging.close()


def buffer_of(host: LocalHost) -> Buffer | None:
    found = host.host.sessions.find("s")
    return found.staging[1] if found is not None and found.staging is not None else None


def test_a_staged_session_plays_on_exactly(hosts: tuple[LocalHost, LocalHost], tmp_path: Path) -> None:
    first, second = hosts
    session = first.create("s")
    still = first.create("still")
    first.play(session, 2)
    first.play(still, 2)
    move = Staged(first, second)
    move.reserve()
    manifest = move.freeze()
    crcs = move.carry()
    assert crcs == crcs_of(session, PLAN), "of the slot, not of the buffer"
    assert move.pull() == crcs
    arrived = move.take(move.attest(manifest, crcs))
    after = [block.state_crc for block in second.play(arrived, 2)]
    assert after == [block.state_crc for block in first.play(still, 2)]
    assert buffer_of(first) is None
    assert buffer_of(second) is None
    assert first.host.staging.kept_bytes == second.host.staging.kept_bytes == 2 * MIB


@pytest.fixture
def coding(hosts: tuple[LocalHost, LocalHost], monkeypatch: pytest.MonkeyPatch) -> tuple[LocalHost, LocalHost]:
    """Hosts whose devices have a codec."""
    for host in hosts:
        monkeypatch.setattr(host.host.device, "frames", ZlibFrames(), raising=False)
    return hosts


def test_a_coded_session_plays_on_exactly(coding: tuple[LocalHost, LocalHost]) -> None:
    first, second = coding
    session, still = first.create("s"), first.create("still")
    first.play(session, 2)
    first.play(still, 2)
    move = Staged(first, second, CODED)
    move.reserve()
    manifest = move.freeze()
    crcs = move.carry()
    assert crcs == crcs_of(session, CODED), "of the decoded state"
    assert 0 < carried_bytes(move.parts) < move.size_bytes
    assert move.pull() == crcs
    arrived = move.take(move.attest(manifest, crcs))
    after = [block.state_crc for block in second.play(arrived, 2)]
    assert after == [block.state_crc for block in first.play(still, 2)]


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_flip_in_a_coded_buffer_is_never_decoded(coding: tuple[LocalHost, LocalHost], side: str) -> None:
    first, second = coding
    session = first.create("s")
    before = crcs_of(session, CODED)
    move = Staged(first, second, CODED)
    move.reserve()
    move.freeze()
    move.carry()
    at = carried_bytes(move.parts) - 1
    if side == "source":
        wrong = bytearray(move.there[:])
        wrong[at] ^= 1
        move.here[:] = wrong
    else:
        move.here[at] ^= 1
    with pytest.raises(DataLoss) as caught:
        move.pull()
    assert caught.value.reason == "PART_MISMATCH"
    move.give_up()
    assert crcs_of(session, CODED) == before
    first.play(session, 1)


def test_lies_about_parts_are_refused(coding: tuple[LocalHost, LocalHost]) -> None:
    first, second = coding
    first.create("s")
    move = Staged(first, second, CODED)
    move.reserve()
    move.freeze()
    move.carry()
    honest = move.parts
    for lie in (honest[:-1], (*honest, honest[0]), (replace(honest[0], size_bytes=1 << 40), *honest[1:]), ()):
        move.parts = lie
        with pytest.raises(BadRequest) as caught:
            move.pull()
        assert caught.value.reason == "BAD_PARTS"
    move.parts = honest
    move.pull()
    move.give_up()


def test_a_codec_that_a_device_lacks_is_refused_before_the_freeze(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    copy = first.create("s").require_copy()
    with pytest.raises(Unsupported, match="install its library"):
        first.source.register("s", first.fence(), CODED)
    with pytest.raises(Unsupported) as caught:
        second.destination.stage(
            second.fence(), copy.slot.layout, copy.descriptor, copy.fingerprint, 10.0, PullFrom(None, CODED)
        )
    assert caught.value.reason == "CODEC_UNSUPPORTED"
    assert second.host.budget.free_bytes == second.host.budget.total_bytes


class Held:
    """Memory of a state that is no session's."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def tensor(self) -> torch.Tensor:
        return self.data


@settings(max_examples=60, deadline=None)
@given(
    stretches=st.lists(st.tuples(st.sampled_from(["zeros", "noise", "bf16"]), st.integers(0, 700)), max_size=8),
    odd=st.binary(min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_state_comes_out_as_it_went_in(stretches: list[tuple[str, int]], odd: bytes, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    made = {
        "zeros": lambda n: torch.zeros(2 * n, dtype=torch.uint8),
        "noise": lambda n: torch.randint(0, 256, (2 * n,), dtype=torch.uint8, generator=generator),
        "bf16": lambda n: torch.randn(n, generator=generator).to(torch.bfloat16).view(torch.uint8),
    }
    data = torch.cat(
        [*(made[kind](size) for kind, size in stretches), torch.frombuffer(bytearray(odd), dtype=torch.uint8)]
    )
    size_bytes = data.numel()
    buffer, out = torch.zeros(size_bytes, dtype=torch.uint8), torch.full((size_bytes,), 7, dtype=torch.uint8)
    with patch("worldline.codec.parts.SEGMENT_BYTES", 256):
        parts = encode(Cpu(), ZlibFrames(), Held(data), size_bytes, buffer.data_ptr())
        assert carried_bytes(parts) <= size_bytes
        decode(Cpu(), ZlibFrames(), complete(size_bytes, parts), buffer.data_ptr(), Held(out), size_bytes)
    assert torch.equal(out, data)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_flip_in_a_buffer_is_never_installed(hosts: tuple[LocalHost, LocalHost], side: str) -> None:
    first, second = hosts
    session = first.create("s")
    before = crcs_of(session, PLAN)
    move = Staged(first, second)
    move.reserve()
    manifest = move.freeze()
    crcs = move.carry()
    if side == "source":
        # What a broken copy from the device leaves: the mover carries it faithfully.
        wrong = bytearray(move.there[:])
        wrong[5000] ^= 1
        move.here[:] = wrong
    else:
        move.here[5000] ^= 1
    pulled = move.pull()
    assert [index for index, pair in enumerate(zip(crcs, pulled, strict=True)) if pair[0] != pair[1]] == [1]
    with pytest.raises(Mismatch) as caught:
        move.attest(manifest, crcs)
    assert caught.value.reason == "PULLED_DIFFERS"
    move.give_up()
    assert crcs_of(session, PLAN) == before
    assert first.host.staging.kept_bytes == second.host.staging.kept_bytes == 0, "a mover may still map them"
    assert not any(move.there[:]), "and reads nothing there"
    first.play(session, 1)


def test_a_chunk_that_differs_is_pulled_once_more(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    first.create("s")
    move = Staged(first, second)
    move.reserve()
    manifest = move.freeze()
    crcs = move.carry()
    move.here[0] ^= 1
    assert move.pull() != crcs
    move.here[0] ^= 1
    again = second.destination.pull(move.fence, PLAN, (0,), flip=(), wanted=lambda: True, timeout_s=10.0)
    assert again.crcs == crcs[:1]
    move.take(move.attest(manifest, crcs))


def test_nothing_is_staged_after_the_move(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    first.create("s")
    move = Staged(first, second)
    move.reserve()
    move.freeze()
    with pytest.raises(Mismatch):
        second.destination.attest(move.fence, _manifest(first), PLAN, [0], 10.0)
    move.give_up()
    with pytest.raises(WrongState):
        first.source.checksum(move.fence, PLAN, 10.0)
    with pytest.raises(WrongState):
        move.pull()
    assert buffer_of(first) is None
    assert buffer_of(second) is None


def _manifest(host: LocalHost) -> Manifest:
    freeze = host.host.sessions.get("s").freeze
    assert freeze is not None
    return freeze.manifest


def test_the_freeze_timer_gives_the_buffer_back(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    session = first.create("s")
    move = Staged(first, second)
    move.reserve()
    first.source.freeze(move.fence, 0.01, 10.0)
    until("the session resumes", lambda: session.ownership.state is State.LIVE and buffer_of(first) is None)
    with pytest.raises(WrongState):
        first.source.checksum(move.fence, PLAN, 10.0)
    second.destination.drop(move.fence, 10.0)
    assert buffer_of(second) is None


def test_an_abandoned_registration_gives_the_buffer_back(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, "a", stage_ttl_s=0.1)
    host.create("s")
    host.source.register("s", host.fence(), PLAN)
    assert buffer_of(host) is not None
    until("the buffer is given back", lambda: buffer_of(host) is None)
    host.close()


def test_too_little_host_memory_is_refused_before_anything(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, "a", staging_bytes=0)
    session = host.create("s")
    with pytest.raises(Exhausted) as caught:
        host.source.register("s", host.fence(), PLAN)
    assert caught.value.reason == "STAGING_MEMORY"
    free_bytes = host.host.budget.free_bytes
    copy = session.require_copy()
    layout, descriptor, fingerprint = copy.slot.layout, copy.descriptor, copy.fingerprint
    other = LocalHost(tmp_path, "b", staging_bytes=0)
    with pytest.raises(Exhausted) as caught:
        other.destination.stage(other.fence(), layout, descriptor, fingerprint, 10.0, PullFrom(None, PLAN))
    assert caught.value.reason == "STAGING_MEMORY"
    assert other.host.budget.free_bytes == other.host.budget.total_bytes
    assert host.host.budget.free_bytes == free_bytes
    host.close()
    other.close()


def test_a_ticket_is_for_one_buffer_of_one_move(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    first.create("s")
    move = Staged(first, second)
    registered = first.source.register("s", move.fence, PLAN)
    again = first.source.register("s", move.fence, PLAN)
    with pytest.raises(NotFound):
        fetch(first.host.regions.path, registered.ticket)
    os.close(fetch(first.host.regions.path, again.ticket))
    first.source.resume(move.fence, reinstate=False)
    assert buffer_of(first) is None


def test_a_host_on_a_device_still_refuses_a_mover_in_its_slots(hosts: tuple[LocalHost, LocalHost]) -> None:
    first, second = hosts
    copy = first.create("s").require_copy()

    class OnDevice(Cpu):
        device_id = "GPU-0"

    second.host.device = OnDevice()
    with pytest.raises(Precondition) as caught:
        second.destination.stage(second.fence(), copy.slot.layout, copy.descriptor, copy.fingerprint, 10.0)
    assert caught.value.reason == "STATE_ON_DEVICE"


def test_a_buffer_is_not_taken_away_under_a_copy() -> None:
    pool = Staging(2 * MIB, Cpu())
    buffer = pool.lend(1, "a move")
    order: list[str] = []

    with buffer.using():
        ending = threading.Thread(target=lambda: (buffer.give_back(unmapped=False), order.append("ended")))
        ending.start()
        order.append("copied")
    ending.join()
    assert order == ["copied", "ended"]
    pool.close()

"""The motion set on GPUs: proven on the device, made in its slot, never copied between devices, checksummed there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cuda_tools import PLAN, ByHand, CudaHost, content, two_hosts

from enginehost.cold_proof import prove
from enginehost.session import Session
from worldline.errors import DataLoss, Mismatch
from worldline.made import Made

pytestmark = pytest.mark.cuda


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[CudaHost, CudaHost]]:
    with two_hosts(tmp_path, motion_set="window-rewrite/tiny", motion_set_blocks=2) as pair:
        for each in pair:
            prove(each.host)
        yield pair


def region(session: Session) -> torch.Tensor:
    return session.require_copy().slot.arena.tensor()


def block(session: Session, index: int) -> bytes:
    runner = session.runner
    assert runner is not None
    runner.begin_block(bytes([index, 0, 0, 0, index, 0, 9, 0]))
    for quantum in range(4):
        runner.step(quantum)
    runner.end_block()
    session.require_copy().slot.device.settle()
    session.next_block = index + 1
    return runner.readout().data


def test_a_session_moved_to_and_fro_equals_one_that_never_was(hosts: tuple[CudaHost, CudaHost]) -> None:
    session, still = hosts[0].create(seed=5), hosts[1].create(seed=5)
    for number in range(3):
        assert block(session, number) == block(still, number)
        made = session.require_copy().made
        assert sum(item.size_bytes for item in made) / session.require_copy().slot.layout.region_bytes >= 0.19
        source, destination = hosts[number % 2], hosts[(number + 1) % 2]
        move = ByHand(source, destination, session, number + 1, replace(PLAN, made=made))
        receipt = move.receipts()
        before = content(session)  # the freeze has written the control leaves
        landed = move.take(receipt)
        assert content(landed) == before
        source.source.free(move.fence, destination.host.host_id, "127.0.0.1:1", number + 2, 10.0)
        session = landed
    assert block(session, 3) == block(still, 3)


def test_any_constant_is_made_and_none_is_copied(hosts: tuple[CudaHost, CudaHost]) -> None:
    """What is made stays what the plan says, whatever the source has there: its checksums differ, and it is refused."""
    here, there = hosts
    session = here.create()
    copy = session.require_copy()
    largest = max(copy.made, key=lambda item: item.size_bytes)
    ones = Made(largest.offset, largest.size_bytes, b"\x80\x3f")
    move = ByHand(here, there, session, plan=replace(PLAN, made=(ones,)))
    move.stage()
    manifest = move.freeze()
    pulled = move.pull()
    held = region(there.host.sessions.get(session.session_id))[ones.offset : ones.end].view(torch.bfloat16)
    assert bool((held == 1).all())
    source = list(here.source.checksum(move.fence, move.plan, 10.0).chunk_crcs)
    chunks = move.plan.chunks(copy.slot.layout.region_bytes)
    wrong = [index for index, crc in enumerate(source) if crc != pulled[index]]
    assert wrong == [chunk.index for chunk in chunks if chunk.fill]
    with pytest.raises(Mismatch, match="in the slot are not the source's"):
        there.destination.attest(move.fence, manifest, move.plan, source, 10.0)
    again = there.destination.pull(move.fence, move.plan, wrong, flip=(), wanted=lambda: True, timeout_s=10.0)
    assert list(again.crcs) == [source[index] for index in wrong], "what is asked for by name is copied"
    with pytest.raises(Mismatch) as caught:
        here.source.attest(move.fence, manifest, move.plan, source)
    assert caught.value.reason == "MOTION_SET"


def test_a_cold_leaf_that_was_written(hosts: tuple[CudaHost, CudaHost]) -> None:
    here, there = hosts
    session = here.create()
    block(session, 0)
    made = session.require_copy().made
    region(session)[made[-1].offset + 5 : made[-1].offset + 6].bitwise_xor_(4)
    torch.cuda.synchronize()
    move = ByHand(here, there, session, plan=replace(PLAN, made=made))
    move.stage()
    manifest = move.freeze()
    source = list(here.source.checksum(move.fence, move.plan, 10.0).chunk_crcs)
    with pytest.raises(Mismatch) as caught:
        here.source.attest(move.fence, manifest, move.plan, source)
    assert caught.value.reason == "COLD_LEAF_WRITTEN"
    assert session.require_copy().made == ()


def test_a_flip_in_the_made_part_after_the_receipt(hosts: tuple[CudaHost, CudaHost]) -> None:
    here, there = hosts
    session = here.create()
    made = session.require_copy().made
    move = ByHand(here, there, session, plan=replace(PLAN, made=made))
    receipt = move.receipts()
    there_now = there.host.sessions.get(session.session_id)
    region(there_now)[made[0].offset : made[0].offset + 1].bitwise_xor_(1)
    torch.cuda.synchronize()
    with pytest.raises(DataLoss):
        move.take(receipt)

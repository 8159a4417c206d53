"""Hosts on GPUs, moves by hand: what is played is exact, and a flip anywhere is never installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda_tools import PLAN, ByHand, CudaHost, content, device, first_and_last, free_bytes, two_hosts

from enginehost.engines.window_rewrite import WindowRewriteEngine
from enginehost.session import Session
from worldline.engine import EngineSession, Readout
from worldline.errors import DataLoss, Precondition, WrongState
from worldline.manifest import Fingerprint

pytestmark = pytest.mark.cuda


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[CudaHost, CudaHost]]:
    with two_hosts(tmp_path) as pair:
        yield pair


def block(runner: EngineSession, index: int) -> Readout:
    runner.begin_block(bytes([index, 0, 0, 0, index, 0, 9, 0]))
    for quantum in range(4):
        runner.step(quantum)
    runner.end_block()
    return runner.readout()


def play(session: Session, first: int, last: int) -> list[bytes]:
    """Play blocks by hand; the serving thread has no player and does nothing."""
    runner = session.runner
    assert runner is not None
    shown = [block(runner, index).data for index in range(first, last)]
    session.require_copy().slot.device.settle()
    session.next_block = last
    return shown


def test_the_engine_plays_the_same_on_every_gpu() -> None:
    shown = []
    for on in first_and_last():
        engine = WindowRewriteEngine()
        engine.use_device(on.torch_device)
        on.serve()
        runner = engine.load("tiny", engine.create("tiny", 3))
        shown.append([block(runner, index).data for index in range(3)])
    assert shown[0] == shown[1]
    assert len({*shown[0]}) == 3


def test_fingerprints_are_of_the_device() -> None:
    here, there = first_and_last()
    fields = here.fields()
    assert fields["device"] == "cuda"
    assert fields["gpu"] == torch.cuda.get_device_name(0)
    assert Fingerprint(dict(fields)).digest == Fingerprint(dict(there.fields())).digest


def test_a_moved_session_plays_on_exactly(hosts: tuple[CudaHost, CudaHost]) -> None:
    first, second = hosts
    moved, still = first.create(5), second.create(5)
    assert play(moved, 0, 2) == play(still, 0, 2)
    move = ByHand(first, second, moved)
    arrived = move.take(move.receipts())
    assert content(arrived) == content(moved)
    assert play(arrived, 2, 4) == play(still, 2, 4)
    first.source.free(move.fence, "host-b", "127.0.0.1:1", 2, 10.0)


@pytest.mark.parametrize("byte", [0, 12_345, -1])
def test_a_flip_in_the_slot_after_its_receipt(hosts: tuple[CudaHost, CudaHost], byte: int) -> None:
    first, second = hosts
    session = first.create()
    before = content(session)
    move = ByHand(first, second, session)
    receipt = move.receipts()
    staged = second.host.sessions.get(session.session_id).require_copy().slot.arena.tensor()
    at = byte % staged.numel()
    staged[at : at + 1].bitwise_xor_(4)
    torch.cuda.synchronize()
    grant = first.source.release(move.fence)
    assert grant is not None
    with pytest.raises(DataLoss, match="shadow slot"):
        second.destination.commit(move.fence, grant, receipt, 10.0)
    first.source.resume(move.fence, reinstate=True)
    assert content(session) == before
    assert play(session, 0, 1)


def test_a_flip_at_the_source_between_copy_and_checksum(hosts: tuple[CudaHost, CudaHost]) -> None:
    first, second = hosts
    session = first.create()
    move = ByHand(first, second, session)
    move.stage()
    move.freeze()
    pulled = move.pull()
    region = session.require_copy().slot.arena.tensor()
    region[70_000:70_001].bitwise_xor_(1)
    torch.cuda.synchronize()
    crcs = list(first.source.checksum(move.fence, PLAN, 10.0).chunk_crcs)
    assert [index for index, pair in enumerate(zip(crcs, pulled, strict=True)) if pair[0] != pair[1]] == [1]
    second.destination.drop(move.fence, 10.0)
    first.source.resume(move.fence, reinstate=False)


def test_a_dropped_copy_leaves_nothing(hosts: tuple[CudaHost, CudaHost]) -> None:
    first, second = hosts
    session = first.create()
    on = second.host.device
    assert on.device_id
    before = free_bytes(first_and_last()[1])
    move = ByHand(first, second, session)
    move.stage()
    move.freeze()
    move.pull(flip=[1])
    second.destination.drop(move.fence, 10.0)
    with pytest.raises(WrongState):
        move.pull()
    assert free_bytes(first_and_last()[1]) == before
    first.source.resume(move.fence, reinstate=False)


def test_a_slot_on_a_gpu_is_for_no_mover(hosts: tuple[CudaHost, CudaHost]) -> None:
    first, second = hosts
    session = first.create()
    move = ByHand(first, second, session)
    registered = first.source.register(session.session_id, move.fence)
    assert registered.device_id == device(0).device_id
    with pytest.raises(Precondition, match="placement DEVICE"):
        second.destination.stage(move.fence, registered.layout, registered.descriptor, registered.fingerprint, 10.0)

"""Suspending from a GPU to pinned host memory and back: exact, checked by the device, and no memory left behind."""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path

import pytest
import torch
from cuda_tools import CudaHost, content, device, first_and_last, free_bytes

from enginehost import suspension
from enginehost.ownership import State
from enginehost.suspension import pieces_of, resume, suspend
from worldline.errors import DataLoss, Exhausted

pytestmark = pytest.mark.cuda
MEMORY = 8 << 20


def host(directory: Path, **values: object) -> CudaHost:
    return CudaHost(directory, "host-s", device(0), suspend_bytes=MEMORY, **values)


def test_every_byte_comes_back_into_another_slot(tmp_path: Path) -> None:
    local = host(tmp_path)
    session = local.create()
    local.host.device.serve()
    before = content(session)
    size = session.require_copy().slot.layout.region_bytes
    free = local.host.budget.free_bytes
    for _ in range(3):
        suspend(local.host, session.session_id, 10.0)
        assert local.host.budget.free_bytes == free + size
        resume(local.host, session.session_id, 10.0)
        assert (content(session), session.ownership.state) == (before, State.LIVE)
    local.close()


def test_a_flip_in_host_memory_is_found_by_the_device(tmp_path: Path) -> None:
    local = host(tmp_path)
    session = local.create()
    before = content(session)
    suspend(local.host, session.session_id, 10.0)
    assert session.host_copy is not None
    with session.host_copy.buffer.using() as address:
        ctypes.c_uint8.from_address(address + 4_321).value ^= 16
    free = free_bytes(device(0))
    with pytest.raises(DataLoss, match="stays suspended"):
        resume(local.host, session.session_id, 10.0)
    assert free_bytes(device(0)) == free
    with session.host_copy.buffer.using() as address:
        ctypes.c_uint8.from_address(address + 4_321).value ^= 16
    resume(local.host, session.session_id, 10.0)
    assert content(session) == before
    local.close()


@pytest.mark.parametrize("piece_bytes", [1 << 20, 64 << 10, 4_096])
def test_what_is_read_back_is_what_lies_in_host_memory(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspension, "PIECE_BYTES", piece_bytes)
    pieces_of.cache_clear()
    local = host(tmp_path)
    session = local.create()
    slot = session.require_copy().slot
    pieces = pieces_of(slot.layout.region_bytes)
    buffer = local.host.suspended.lend(slot.layout.region_bytes, "test")
    with buffer.using() as address:
        saved = slot.arena.save(address, pieces)
        there = ctypes.string_at(address, slot.layout.region_bytes)
    assert there == content(session)
    found = tuple(zlib.crc32(there[piece.offset : piece.offset + piece.size_bytes]) for piece in pieces)
    assert (saved.crcs, saved.read_back) == (found, found)
    buffer.give_back(unmapped=True)
    local.close()
    pieces_of.cache_clear()


def test_slots_allocated_ahead_are_zeroed_device_memory_and_are_spared(tmp_path: Path) -> None:
    first, _ = first_and_last()
    local = host(tmp_path)
    session = local.create()
    size = session.require_copy().slot.layout.region_bytes
    free = local.host.budget.free_bytes
    local.host.warm_slots.keep("window-rewrite/tiny", size, 3)
    assert (local.host.warm_slots.count("window-rewrite/tiny"), local.host.budget.free_bytes) == (3, free - 3 * size)
    other = local.create(2)
    assert local.host.warm_slots.count("window-rewrite/tiny") == 2
    taken = local.host.warm_slots.memory("x", size, lambda: pytest.fail("a slot was there"))
    first.serve()
    assert not bool(torch.count_nonzero(taken.tensor()))
    taken.close()
    rest = local.host.budget.reserve(local.host.budget.free_bytes + size, "everything")
    assert local.host.warm_slots.count("window-rewrite/tiny") == 0
    with pytest.raises(Exhausted):
        local.host.budget.reserve(size, "more")
    rest.release()
    assert content(other) != content(session)
    local.host.warm_slots.stop()
    local.close()

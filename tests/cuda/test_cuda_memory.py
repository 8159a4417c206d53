"""Slots on a GPU: given back to the byte, exported and mapped, flattened into, and read back as a tree."""

from __future__ import annotations

import os

import pytest
import torch
from cuda_tools import device, first_and_last, free_bytes

from enginehost import tree
from enginehost.charge import Budget
from enginehost.cuda import driver
from enginehost.cuda.crc import DeviceCrc
from enginehost.cuda.pull import pieces, spans
from enginehost.cuda.self_test import SOUND, peer_verdict
from enginehost.slots import Slot
from worldline.errors import Cancelled, Exhausted, Internal, Precondition
from worldline.plan import Chunk

pytestmark = pytest.mark.cuda

MIB = 1 << 20


def state(on: torch.device) -> dict[str, object]:
    base = torch.arange(4096, dtype=torch.float32, device=on)
    return {
        "a": torch.randn(300, 17, device=on).to(torch.bfloat16),
        "shared": [base[:1000], base[500:1500].view(10, 100)],
        "turned": torch.arange(12, device=on).view(3, 4).t(),
        "empty": torch.empty(0, 3, device=on),
        "noise": torch.Generator().manual_seed(3),
        "n": 7,
        "x": 0.25,
        "s": "text",
        "none": None,
    }


def test_memory_is_given_back_to_the_byte() -> None:
    on = device(0)
    budget = Budget(1 << 30)
    on.allocate("warm", MIB, budget.reserve(MIB, "test")).close()
    before, descriptors = free_bytes(on), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        arena = on.allocate("x", 64 * MIB, budget.reserve(64 * MIB, "test"))
        assert int(arena.tensor().sum()) == 0
        os.close(arena.read_only_fd())
        assert arena.close() == 64 * MIB
        assert arena.close() == 0
    assert (free_bytes(on), budget.free_bytes, len(os.listdir("/proc/self/fd"))) == (before, 1 << 30, descriptors)


def test_what_the_driver_does_not_have() -> None:
    on = device(0)
    budget = Budget(1 << 50)
    with pytest.raises(Exhausted, match="allocating"):
        on.allocate("x", 1 << 45, budget.reserve(1 << 45, "test"))
    assert budget.free_bytes == 1 << 50


def test_a_closed_slot_is_not_exported() -> None:
    arena = device(0).allocate("x", MIB, Budget(MIB).reserve(MIB, "test"))
    arena.close()
    with pytest.raises(Internal, match="given back"):
        arena.read_only_fd()


def test_a_tree_comes_back_from_a_slot() -> None:
    on = device(0)
    given = state(on.torch_device)
    captured = tree.capture(given, on.torch_device)  # type: ignore[arg-type]
    budget = Budget(MIB * 4)
    slot = Slot(
        captured.layout,
        on.allocate("s", captured.layout.region_bytes, budget.reserve(captured.layout.region_bytes, "test")),
        on,
    )
    flattened = slot.flatten(captured)
    assert flattened.copied_bytes > 0
    back = slot.rehydrate()
    assert isinstance(back, dict)
    for name in ("a", "turned", "empty"):
        assert torch.equal(back[name], given[name])  # type: ignore[arg-type]
        assert back[name].device == on.torch_device  # type: ignore[union-attr]
    assert [back[name] for name in ("n", "x", "s", "none")] == [7, 0.25, "text", None]
    back["shared"][0][500] = -1.0  # type: ignore[index, call-overload]
    torch.cuda.synchronize(0)
    assert float(back["shared"][1][0, 0]) == -1.0  # type: ignore[index, call-overload, arg-type]
    assert torch.rand(4, generator=back["noise"]).equal(torch.rand(4, generator=given["noise"]))  # type: ignore[call-overload]
    again = tree.capture(back, on.torch_device)
    resident = slot.flatten(again)
    values = sum(leaf.size_bytes for leaf in captured.layout.leaves if leaf.path in ("n", "x", "s", "noise"))
    assert resident.copied_bytes == values, "tensors live in the arena: only values are written"
    slot.close()


def test_leaves_that_have_changed_places_are_put_right() -> None:
    on = device(0)
    captured = tree.capture(
        {"a": torch.ones(64, device=on.torch_device), "b": torch.zeros(64, device="cuda:0")}, on.torch_device
    )
    slot = Slot(
        captured.layout,
        on.allocate("s", captured.layout.region_bytes, Budget(MIB).reserve(captured.layout.region_bytes, "test")),
        on,
    )
    slot.flatten(captured)
    back = slot.rehydrate()
    swapped = {"a": back["b"], "b": back["a"]}  # type: ignore[index, call-overload]
    flattened = slot.flatten(tree.capture(swapped, on.torch_device))
    after = slot.rehydrate()
    assert float(after["a"].sum()) == 0  # type: ignore[index, call-overload, union-attr]
    assert float(after["b"].sum()) == 64  # type: ignore[index, call-overload, union-attr]
    flattened.undo()
    assert float(after["a"].sum()) == 64  # type: ignore[index, call-overload, union-attr]
    slot.close()


def test_a_leaf_on_the_cpu_is_refused() -> None:
    with pytest.raises(Precondition, match="only memory of cuda:0"):
        tree.capture({"a": torch.ones(3)}, device(0).torch_device)


def test_every_gpu_is_tested_against_every_other() -> None:
    here, _ = first_and_last()
    assert len(here.peers) == torch.cuda.device_count()
    assert here.peers[here.device_id] == SOUND


@pytest.mark.parametrize("wrong", ["to", "from"])
def test_a_corrupting_link_fails_its_self_test(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    here, there = first_and_last()
    sound, copies = driver.copy, []

    def copy(to: int, source: int, size_bytes: int, stream: torch.cuda.Stream) -> None:
        copies.append(to)
        short = 16 if len(copies) == (1 if wrong == "to" else 2) else 0
        sound(to, source, size_bytes - short, stream)

    monkeypatch.setattr(driver, "copy", copy)
    crc = DeviceCrc(here.ordinal)
    assert peer_verdict(here.ordinal, there.ordinal, crc).startswith(f"copies {wrong} device")
    monkeypatch.undo()
    assert peer_verdict(here.ordinal, there.ordinal, crc) == SOUND


def test_an_unsound_or_unseen_peer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = first_and_last()
    arena = here.allocate("x", MIB, Budget(MIB).reserve(MIB, "test"))
    descriptor = arena.read_only_fd()
    monkeypatch.setitem(there.peers, here.device_id, "copies from device 0 arrive wrong")
    with pytest.raises(Precondition, match="arrive wrong") as caught:
        there.attach(descriptor, MIB, here.device_id)
    assert caught.value.reason == "PEER_ACCESS_UNSOUND"
    for unseen in ("GPU-of-another-node", ""):
        with pytest.raises(Precondition) as caught:
            there.attach(descriptor, MIB, unseen)
        assert caught.value.reason == "DEVICE_UNREACHABLE"
    os.close(descriptor)
    arena.close()


def test_a_region_is_pulled_flipped_and_pulled_again() -> None:
    here, there = first_and_last()
    size = 200 * MIB
    source = here.allocate("a", size, Budget(size).reserve(size, "test"))
    slot = there.allocate("b", size, Budget(size).reserve(size, "test"))
    here.serve()
    source.tensor().copy_(torch.randint(0, 256, (size,), dtype=torch.uint8, device=here.torch_device))
    here.settle()
    chunks = [
        Chunk(index, index * 7 * MIB, min(7 * MIB, size - index * 7 * MIB)) for index in range(-(-size // (7 * MIB)))
    ]
    expected = source.crcs(chunks).chunks
    descriptor = source.read_only_fd()
    attached = there.attach(descriptor, size, here.device_id)
    os.close(descriptor)
    pulled = attached.pull(slot, chunks, flip=(), wanted=lambda: True)
    assert pulled.crcs == expected == slot.crcs(chunks).chunks
    assert slot.crc() == source.crc()
    flipped = attached.pull(slot, chunks, flip=(2, 11), wanted=lambda: True)
    assert [i for i, (a, b) in enumerate(zip(flipped.crcs, expected, strict=True)) if a != b] == [2, 11]
    again = attached.pull(slot, [chunks[2], chunks[11]], flip=(), wanted=lambda: True)
    assert again.crcs == [expected[2], expected[11]]
    assert slot.crc() == source.crc()
    with pytest.raises(Cancelled):
        attached.pull(slot, chunks, flip=(), wanted=lambda: False)
    attached.close()
    attached.close()
    with pytest.raises(Cancelled):
        attached.pull(slot, chunks, flip=(), wanted=lambda: True)
    for arena in (source, slot):
        arena.close()


def test_a_region_outlives_its_owner_while_it_is_mapped() -> None:
    here, there = first_and_last()
    size = 8 * MIB
    source = here.allocate("a", size, Budget(size).reserve(size, "test"))
    slot = there.allocate("b", size, Budget(size).reserve(size, "test"))
    here.serve()
    source.tensor().fill_(7)
    here.settle()
    descriptor = source.read_only_fd()
    attached = there.attach(descriptor, size, here.device_id)
    os.close(descriptor)
    crc = source.crc()
    source.close()
    attached.pull(slot, [Chunk(0, 0, size)], flip=(), wanted=lambda: True)
    assert slot.crc() == crc
    attached.close()
    slot.close()


def test_pieces_and_spans() -> None:
    chunks = [Chunk(index, index * 10, 10) for index in range(10)]
    assert list(pieces(chunks, 30)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert list(spans([chunks[0], chunks[1], chunks[5], chunks[7], chunks[8]])) == [(0, 20), (50, 10), (70, 20)]

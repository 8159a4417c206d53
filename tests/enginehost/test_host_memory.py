"""Arenas and their budget, region tickets, and the lock that proves a host's death."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost import tree
from enginehost.arena import Arena, Budget
from enginehost.incarnation import Incarnation
from enginehost.regions import Regions, fetch
from enginehost.slots import Slot
from worldline.errors import BadRequest, Exhausted, NotFound, Precondition
from worldline.move import new_token


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_bytes() -> int:
    return sum(os.stat(f"/proc/self/fd/{fd}").st_blocks * 512 for fd in slots())


def slots() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "worldline-slot" in os.readlink(f"/proc/self/fd/{fd}"):
                found.append(fd)
        except OSError:
            continue
    return found


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=20))
def test_a_budget_never_gives_more_than_it_has(actions: list[tuple[bool, int]]) -> None:
    budget, charges = Budget(100), []
    for take, size in actions:
        if take:
            free = budget.free_bytes
            if size <= free:
                charges.append(budget.reserve(size, "test"))
            else:
                with pytest.raises(Exhausted, match=f"{free} of 100"):
                    budget.reserve(size, "test")
        elif charges:
            charges.pop().release()
        assert budget.free_bytes == 100 - sum(charge.size_bytes for charge in charges)
    for charge in charges:
        part = charge.split(charge.size_bytes // 2)
        for each in (charge, part, charge):
            each.release()
    assert budget.free_bytes == 100


def test_closing_returns_the_memory_even_while_views_are_left() -> None:
    budget, before = Budget(1 << 24), descriptors()
    captured = tree.capture({"a": torch.ones(1 << 20)})
    size = captured.layout.region_bytes
    slot = Slot(captured.layout, Arena("x", captured.layout.region_bytes, budget.reserve(size, "test")))
    slot.flatten(captured)
    assert budget.free_bytes == (1 << 24) - size
    assert shared_bytes() >= size
    view = slot.rehydrate()["a"]  # type: ignore[index, call-overload]
    other = slot.arena.writable_fd()
    assert slot.close() == size
    assert slot.close() == 0
    assert budget.free_bytes == 1 << 24
    assert os.fstat(other).st_blocks == 0
    assert float(view.sum()) == 0
    os.close(other)
    del view, slot
    assert descriptors() == before


def test_many_arenas_leave_nothing() -> None:
    budget = Budget(1 << 22)
    before = descriptors()
    for _ in range(50):
        Arena("x", 1 << 20, budget.reserve(1 << 20, "test")).close()
    assert (descriptors(), budget.free_bytes) == (before, 1 << 22)


def test_an_arena_that_cannot_be_had_returns_its_charge() -> None:
    budget = Budget(1 << 62)
    with pytest.raises(Exhausted):
        Arena("x", 1 << 60, budget.reserve(1 << 60, "test"))
    assert budget.free_bytes == 1 << 62


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    before = descriptors()
    opened = Regions(tmp_path / "host.sock")
    opened.start()
    yield opened
    opened.close()
    assert not opened.path.exists()
    assert descriptors() == before


def test_a_ticket_is_good_once(regions: Regions) -> None:
    arena = Arena("x", 4096, Budget(4096).reserve(4096, "test"))
    ticket = regions.issue("move", arena.writable_fd)
    fd = fetch(regions.path, ticket)
    with mmap.mmap(fd, 4096) as mapped:
        mapped[:4] = b"here"
    os.close(fd)
    assert arena.map[:4] == b"here"
    with pytest.raises(NotFound):
        fetch(regions.path, ticket)
    arena.close()


def test_a_source_region_cannot_be_mapped_writable(regions: Regions) -> None:
    arena = Arena("x", 4096, Budget(4096).reserve(4096, "test"))
    fd = fetch(regions.path, regions.issue("move", arena.read_only_fd))
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096)
    arena.map[:4] = b"seen"
    with mmap.mmap(fd, 4096, prot=mmap.PROT_READ) as mapped:
        assert mapped[:4] == b"seen"
    os.close(fd)
    arena.close()


def test_tickets_end_with_their_move_and_with_a_newer_one(regions: Regions) -> None:
    def gone() -> int:
        raise NotFound("gone")

    first = regions.issue("move", gone)
    second = regions.issue("move", gone)
    regions.issue("other", gone)
    regions.revoke("other")
    for ticket in (first, second, new_token(), b"short", b"\0" * 32):
        with pytest.raises((NotFound, TimeoutError)):
            fetch(regions.path, ticket)


def test_one_ticket_presented_by_many_at_once_is_good_for_one(regions: Regions) -> None:
    fd = os.memfd_create("test")
    ticket = regions.issue("move", lambda: os.dup(fd))
    won: list[int] = []

    def ask() -> None:
        try:
            won.append(fetch(regions.path, ticket))
        except NotFound:
            return

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    os.close(won[0])
    os.close(fd)


def test_silent_callers_block_nobody(regions: Regions) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for each in silent:
        each.connect(str(regions.path))
    fd = os.memfd_create("test")
    os.close(fetch(regions.path, regions.issue("move", lambda: os.dup(fd))))
    os.close(fd)
    for each in silent:
        each.close()


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="regions_dir"):
        Regions(tmp_path / ("x" * 120) / "host.sock")


HOLD = """
import sys, pathlib
from enginehost.incarnation import Incarnation
held = Incarnation(pathlib.Path(sys.argv[1]), "host")
print(held.number, flush=True)
sys.stdin.read()
"""


def test_the_lock_is_held_for_life_and_the_number_rises(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        with pytest.raises(Precondition, match="locked") as caught:
            Incarnation(tmp_path, "host")
        assert caught.value.reason == "HOST_IS_RUNNING"
        process.send_signal(signal.SIGKILL)
        process.wait()
    state_id = (tmp_path / "host.state").read_text().strip()
    for number in (2, 3):
        held = Incarnation(tmp_path, "host")
        assert (held.number, held.state_id) == (number, state_id)
        held.close()


def test_each_host_of_each_directory_has_an_id_of_its_own(tmp_path: Path) -> None:
    made = [Incarnation(tmp_path / name, host) for name, host in (("x", "a"), ("x", "b"), ("y", "a"))]
    ids = {held.state_id for held in made}
    for held in made:
        held.close()
    assert len(ids) == 3
    # A start that died before the id was in its place leaves no half of it; a number of an older release has none yet.
    (tmp_path / "old.lock").write_text(f"{4:020}\n")
    (tmp_path / "old.state-new").write_text("12")
    held = Incarnation(tmp_path, "old")
    held.close()
    assert held.number == 5
    assert len(held.state_id) == 32


@pytest.mark.parametrize("damaged", ["", "12\n", "G" * 32, "a" * 33])
def test_a_damaged_state_id_is_refused(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "host.state").write_text(damaged)
    with pytest.raises(Precondition, match="delete it") as caught:
        Incarnation(tmp_path, "host")
    assert caught.value.reason == "BAD_STATE_ID"
    (tmp_path / "host.state").unlink()
    Incarnation(tmp_path, "host").close()


def test_a_damaged_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host.lock").write_text("12x")
    with pytest.raises(Precondition, match="incarnation"):
        Incarnation(tmp_path, "host")

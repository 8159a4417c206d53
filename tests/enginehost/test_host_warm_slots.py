"""Slots allocated ahead: taken at once, spared for others, refilled; and what a first touch took, told to admission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, until
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost.charge import Budget
from enginehost.cpu import Cpu
from enginehost.prewarm import MAX_SLOTS, counts_of, make_warm, prewarm
from enginehost.warm_slots import WarmSlots
from enginehost.warmth import FirstTouch, Warmth
from worldline.errors import BadRequest, Exhausted, NotFound

BUDGET = 1 << 20
PAGE = 4_096


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path)
    yield host
    host.host.warm_slots.stop()
    host.close()
    assert host.host.budget.free_bytes == BUDGET


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["keep", "take", "reserve", "release"]), st.integers(1, 6)), max_size=25))
def test_the_budget_holds_whatever_is_kept_ahead(actions: list[tuple[str, int]]) -> None:
    budget = Budget(10 * PAGE)
    warm = WarmSlots(Cpu(), budget)
    held = []
    for action, count in actions:
        if action == "keep":
            warm.keep("toy/one", PAGE, count)
            assert warm.count("toy/one") >= min(count, budget.free_bytes // PAGE) or budget.free_bytes < PAGE
        elif action == "take" and budget.free_bytes + warm.size_bytes >= PAGE:
            held.append(warm.memory("x", PAGE, lambda: budget.reserve(PAGE, "test")).close)
        elif action == "reserve":
            # Whatever is only kept ahead is given up for it.
            if count * PAGE <= budget.free_bytes + warm.size_bytes:
                held.append(budget.reserve(count * PAGE, "test").release)
            else:
                with pytest.raises(Exhausted):
                    budget.reserve(count * PAGE, "test")
                assert warm.size_bytes == 0
        elif action == "release" and held:
            held.pop()()
        assert 0 <= budget.free_bytes <= 10 * PAGE
    for give_back in held:
        give_back()
    assert budget.free_bytes + warm.size_bytes == 10 * PAGE
    warm.stop()
    assert budget.free_bytes == 10 * PAGE


def test_sessions_take_them_and_a_thread_makes_more(local: LocalHost) -> None:
    host = local.host
    make_warm(host, "toy", "one", 2)
    assert host.warm_slots.count("toy/one") == 2
    ready = {memory.address for memory in host.warm_slots._ready}
    session = local.create()
    slot = session.require_copy().slot
    assert slot.arena.address in ready
    assert host.warm_slots.count("toy/one") == 1
    host.warm_slots.start()
    until("another one", lambda: host.warm_slots.count("toy/one") == 2)
    local.play(session, 1)


def test_a_staged_copy_takes_one(local: LocalHost, tmp_path: Path) -> None:
    other = LocalHost(tmp_path, "other")
    session = other.create()
    make_warm(local.host, "toy", "one", 1)
    registered = other.source.register("s", other.fence())
    free = local.host.budget.free_bytes
    fence = local.fence()
    local.destination.stage(fence, registered.layout, registered.descriptor, registered.fingerprint, 5.0)
    assert (local.host.warm_slots.count("toy/one"), local.host.budget.free_bytes) == (0, free)
    local.destination.drop(fence, 5.0)
    assert session.ownership.epoch == 1
    other.close()


def test_who_needs_the_bytes_gets_them(local: LocalHost) -> None:
    make_warm(local.host, "toy", "one", 4)
    kept = local.host.warm_slots.size_bytes
    assert kept > 0
    charge = local.host.budget.reserve(local.host.budget.free_bytes + 1, "another preset")
    assert local.host.warm_slots.size_bytes < kept
    charge.release()


def test_fewer_are_kept_where_the_budget_has_no_room(tmp_path: Path) -> None:
    local = LocalHost(tmp_path, budget_bytes=3 << 16)
    make_warm(local.host, "toy", "one", MAX_SLOTS)
    assert 0 < local.host.warm_slots.count("toy/one") < MAX_SLOTS
    local.create()
    local.host.warm_slots.stop()
    local.close()


def test_settings_name_presets_and_counts(tmp_path: Path) -> None:
    assert counts_of(" a/b:2, c/d:0,") == {("a", "b"): 2, ("c", "d"): 0}
    for wrong in ("a/b", "a/b:x", "a:1", "a/b:-1", f"a/b:{MAX_SLOTS + 1}", "a/b:٣"):
        with pytest.raises(BadRequest, match="engine/preset:count"):
            counts_of(wrong)
    local = LocalHost(tmp_path, warm_slots="toy/one:1")
    prewarm(local.host)
    assert (local.host.warm_slots.count("toy/one"), local.host.warmth.is_warm("toy/one")) == (1, True)
    local.host.warm_slots.stop()
    local.close()


def test_what_cannot_be_warmed_is_told(local: LocalHost) -> None:
    with pytest.raises(BadRequest, match="at most"):
        make_warm(local.host, "toy", "one", MAX_SLOTS + 1)
    with pytest.raises(NotFound):
        make_warm(local.host, "toy", "none", 0)
    assert not local.host.warmth.is_warm("toy/none")


def test_only_the_first_touch_counts() -> None:
    warmth = Warmth()
    assert (warmth.is_warm("a/b"), warmth.first_touch_s("a/b")) == (False, 0.0)
    warmth.touched("a/b", FirstTouch(2.0, 0.5, 1.0))
    warmth.touched("a/b", FirstTouch(0.0, 0.1, 0.1))
    assert (warmth.is_warm("a/b"), warmth.first_touch_s("a/b")) == (True, 3.5)
    warmth.played("c/d")
    warmth.touched("c/d", FirstTouch(0.0, 0.1, 0.1))
    assert (warmth.is_warm("c/d"), warmth.first_touch_s("c/d")) == (True, 0.0)

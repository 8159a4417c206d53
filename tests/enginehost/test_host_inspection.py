"""A live session that is inspected: every block is seen, nothing is changed, nobody is kept from anything for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, until
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tree import RandomTreeEngine

from enginehost.arena import Arena
from enginehost.charge import Budget
from enginehost.inspection import Inspect, Inspections
from enginehost.session import Session
from enginehost.slots import Slot
from enginehost.tree import capture
from worldline.errors import BadRequest, Exhausted, NotFound, Owned, TimedOut, WrongState
from worldline.instruments import inspection
from worldline.instruments.pieces import cut
from worldline.instruments.region import lay
from worldline.instruments.snapshot import Boundary, Coded, Subject
from worldline.layout import Layout, Leaf
from worldline.v1 import engine_host_service_pb2 as pb

TIMEOUT_S = 30.0


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path)
    yield host
    host.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


class Looking:
    """One inspection, as its caller has it."""

    def __init__(self, local: LocalHost, session_id: str = "s", blocks: int = 3, **wanted: int) -> None:
        self.inspections = Inspections(local.host)
        self.leave: Callable[[], None] = lambda: None
        asked = Inspect(session_id, blocks, wanted.get("piece_bytes", 64), wanted.get("one_in", 1))
        self.found = self.inspections.run(asked, wanted.get("timeout_s", TIMEOUT_S), self._on_end)

    def _on_end(self, leave: Callable[[], None]) -> bool:
        self.leave = leave
        return True


def play(pool: ThreadPoolExecutor, local: LocalHost, session: Session, blocks: int) -> Future[list[pb.PlayBlock]]:
    return pool.submit(local.play, session, blocks)


def test_every_block_is_seen_and_none_is_changed(local: LocalHost, pool: ThreadPoolExecutor) -> None:
    session, still = local.create(), local.create("still")
    wanted = local.play(still, 8)
    played = local.play(session, 2)
    looking = Looking(local, blocks=4)
    subject, first = islice(looking.found, 2)
    assert isinstance(subject, Subject)
    assert isinstance(first, Boundary)
    running = play(pool, local, session, 6)
    *boundaries, coded = looking.found
    played += running.result(TIMEOUT_S)
    assert [(b.block_index, b.readout, b.state_crc) for b in played] == [
        (b.block_index, b.readout, b.state_crc) for b in wanted
    ]
    boundaries = [first, *boundaries]
    assert all(isinstance(item, Boundary) for item in boundaries)
    assert [item.next_block for item in boundaries] == [2, 3, 4, 5, 6]
    assert isinstance(coded, tuple)
    found = inspection.report(subject, cut(subject.layout, subject.piece_bytes), boundaries, coded)
    assert {leaf.name for leaf in found.leaves if leaf.written} == {
        "a",
        "b",
        "block",
        "noise",
        "shared/[0]",
        "shared/[1]",
    }
    assert found.written_cold == ()
    assert subject.cold_paths == {"cold"}
    assert {item.path for item in coded} == {leaf.path for leaf in subject.layout.leaves}
    assert all(isinstance(item, Coded) for item in coded)


def test_a_cold_leaf_that_is_written_is_seen(local: LocalHost, pool: ThreadPoolExecutor) -> None:
    session = local.create()
    local.engine.misbehave = lambda played: played.tree["cold"].add_(1)
    looking = Looking(local, blocks=1)
    subject, first = islice(looking.found, 2)
    running = play(pool, local, session, 1)
    second, coded = looking.found
    running.result(TIMEOUT_S)
    found = inspection.report(subject, cut(subject.layout, subject.piece_bytes), [first, second], coded)
    assert found.written_cold == ("cold",)


def test_the_session_stands_still_only_until_it_was_looked_at(local: LocalHost, pool: ThreadPoolExecutor) -> None:
    """A caller that takes nothing does not hold it up."""
    session = local.create()
    looking = Looking(local, blocks=2)
    next(looking.found)
    assert len(play(pool, local, session, 5).result(TIMEOUT_S)) == 5
    assert [item.next_block for item in looking.found if isinstance(item, Boundary)] == [0, 1, 2]


def test_a_caller_that_leaves_ends_it(local: LocalHost, pool: ThreadPoolExecutor) -> None:
    session = local.create()
    for leave in (lambda looking: looking.leave(), lambda looking: looking.found.close()):
        looking = Looking(local, blocks=50)
        next(looking.found)
        leave(looking)
        assert len(play(pool, local, session, 3).result(TIMEOUT_S)) == 3
        assert len(list(looking.found)) <= 1
        again = Looking(local, blocks=1)
        assert isinstance(next(again.found), Subject)
        again.found.close()


def test_one_at_a_time(local: LocalHost) -> None:
    local.create()
    looking = Looking(local)
    next(looking.found)
    second = looking.inspections.run(Inspect("s", 1, 64, 1), TIMEOUT_S, lambda _: True)
    with pytest.raises(Exhausted, match="another session"):
        next(second)
    looking.found.close()


def test_a_session_that_nobody_plays(local: LocalHost) -> None:
    local.create()
    looking = Looking(local, timeout_s=0)
    assert len(list(islice(looking.found, 2))) == 2
    with pytest.raises(TimedOut, match="is anybody playing it"):
        next(looking.found)


def test_a_move_goes_first(local: LocalHost, pool: ThreadPoolExecutor) -> None:
    """A freeze between two boundaries is not kept waiting, and the inspection leaves the frozen session alone."""
    session = local.create()
    fence = local.fence()
    looking = Looking(local, blocks=2)
    list(islice(looking.found, 2))
    local.source.register("s", fence)
    manifest = local.source.freeze(fence, 30.0, 10.0).manifest
    assert manifest.block_index == 0
    with pytest.raises(Owned, match=fence.move_id):
        list(Looking(local, blocks=1).found)
    assert session._pause_at == 1  # what the refused one leaves alone is the other one's
    local.source.resume(fence, reinstate=False)
    running = play(pool, local, session, 4)
    assert [item.next_block for item in looking.found if isinstance(item, Boundary)] == [1, 2]
    assert len(running.result(TIMEOUT_S)) == 4


def test_a_session_that_is_closed_meanwhile(local: LocalHost) -> None:
    local.create()
    looking = Looking(local)
    list(islice(looking.found, 2))
    local.life.close("s", local.token, 10.0)
    with pytest.raises(NotFound, match="closed"):
        next(looking.found)


def test_a_suspended_session(local: LocalHost) -> None:
    session = local.create()
    with session.cond:
        session.ownership = session.ownership.suspend()
    with pytest.raises(WrongState, match="SUSPENDED"):
        list(Looking(local).found)


def test_bounds(local: LocalHost) -> None:
    local.create()
    for bad in ({"blocks": 0}, {"blocks": 1025}, {"piece_bytes": 63}, {"one_in": 0}):
        with pytest.raises(BadRequest):
            next(Looking(local, **bad).found)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        next(Looking(local, "no-such").found)


def _with_bytes(layout: Layout) -> list[Leaf]:
    return [replace(leaf, group=0) for leaf in layout.leaves if leaf.size_bytes]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(seed=st.integers(0, 10_000), preset=st.sampled_from(["tiny", "wide"]))
@settings(deadline=None, max_examples=20)
def test_a_tree_is_laid_here_as_a_host_lays_it(seed: int, preset: str) -> None:
    tree = RandomTreeEngine().create(preset, seed)
    laid, captured = lay(tree), capture(tree)
    # Empty containers are leaves of no bytes on a host, and are nothing here.
    assert _with_bytes(laid.layout) == _with_bytes(captured.layout)
    assert laid.layout.region_bytes == captured.layout.region_bytes
    size = laid.layout.region_bytes
    slot = Slot(captured.layout, Arena("test", size, Budget(size).reserve(size, "a test")))
    slot.flatten(captured)
    same = bytes(slot.arena.map) == laid.content.numpy().tobytes()
    slot.close()
    assert same


def test_pieces_left_out_cost_no_checksum(local: LocalHost) -> None:
    local.create()
    looking = Looking(local, blocks=1, one_in=3)
    subject, first = islice(looking.found, 2)
    assert isinstance(subject, Subject)
    assert isinstance(first, Boundary)
    assert len(first.crcs) == len(cut(subject.layout, 64, 3).chunks) < len(cut(subject.layout, 64).chunks)
    looking.found.close()
    until("the session may play on", lambda: local.host.sessions.get("s")._pause_at is None)

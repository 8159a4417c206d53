"""Suspending to host memory and resuming: exact, verified on both ways, bounded, and safe beside moves and players."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, until
from hypothesis import given, settings
from hypothesis import strategies as st
from test_host_verbs import Move

from enginehost import suspension
from enginehost.arena import Arena
from enginehost.device import Saved, Span
from enginehost.ownership import Ownership, State
from enginehost.session import Session
from enginehost.suspension import pieces_of, resume, suspend
from worldline.errors import DataLoss, Exhausted, Internal, NotFound, Owned, Unsupported, WrongState
from worldline.plan import Chunk

BUDGET = 1 << 20
HOST_MEMORY = 2 << 20


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path, suspend_bytes=HOST_MEMORY)
    yield host
    host.close()
    assert host.host.budget.free_bytes == BUDGET
    host.host.suspended.close()
    assert host.host.suspended.kept_bytes == 0


def shown(host: LocalHost, session: Session, blocks: int) -> list[tuple[int, bytes, int]]:
    return [(block.block_index, block.readout, block.state_crc) for block in host.play(session, blocks)]


def flip(session: Session) -> None:
    """One bit of what lies in host memory."""
    assert session.host_copy is not None
    with session.host_copy.buffer.using() as address:
        byte = ctypes.c_uint8.from_address(address + 700)
        byte.value ^= 4


def test_a_session_that_was_suspended_plays_on_as_if_it_never_was(local: LocalHost) -> None:
    session, still = local.create(), local.create("still")
    wanted = shown(local, still, 9)
    played = shown(local, session, 3)
    free = local.host.budget.free_bytes
    for _ in range(2):
        size = session.require_copy().slot.layout.region_bytes
        _, held = suspend(local.host, "s", 5.0)
        assert (session.ownership.state, session.runner, held.freed_bytes) == (State.SUSPENDED, None, size)
        assert local.host.budget.free_bytes == free + size
        assert suspend(local.host, "s", 5.0)[1] is held
        _, resumed = resume(local.host, "s", 5.0)
        assert resumed.copy_s > 0
        assert (session.ownership.state, local.host.budget.free_bytes) == (State.LIVE, free)
        assert resume(local.host, "s", 5.0)[1].copy_s == 0
        played += shown(local, session, 3)
    assert played == wanted


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["play", "suspend", "resume", "move"]), max_size=14))
def test_whatever_is_done_to_a_session_it_plays_what_its_twin_plays(actions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        hosts = [LocalHost(Path(directory), name, suspend_bytes=HOST_MEMORY) for name in ("source", "destination")]
        here, there = hosts
        session, still = here.create(), here.create("still")
        played = []
        for action in actions:
            if action == "play" and session.host_copy is None:
                played += shown(here, session, 1)
            elif action == "suspend":
                suspend(here.host, "s", 5.0)
            elif action == "resume":
                resume(here.host, "s", 5.0)
            elif action == "move":
                move = Move(here, there, session, epoch=session.ownership.epoch)
                move.upto_receipts()
                session = move.hand_over()
                here, there = there, here
        resume(here.host, "s", 5.0)
        played += shown(here, session, 1)
        assert played == shown(hosts[0], still, len(played))
        for host in hosts:
            host.close()
            assert host.host.budget.free_bytes == BUDGET


def test_pieces_cover_a_region_once() -> None:
    for size in (64, suspension.PIECE_BYTES, suspension.PIECE_BYTES + 1, 3 * suspension.PIECE_BYTES - 5):
        pieces = pieces_of(size)
        assert [piece.offset for piece in pieces] == [index * suspension.PIECE_BYTES for index in range(len(pieces))]
        assert sum(piece.size_bytes for piece in pieces) == size
        assert pieces_of(size) is pieces


def test_a_copy_that_goes_wrong_on_its_way_out_suspends_nothing(
    local: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = local.create()
    local.play(session, 2)
    copy = Arena.copy

    def wrong(self: Arena, spans: Sequence[Span]) -> None:
        copy(self, spans)
        for span in spans:
            ctypes.c_uint8.from_address(span.to).value ^= int(span.size_bytes == self.size_bytes)

    monkeypatch.setattr(Arena, "copy", wrong)
    with pytest.raises(DataLoss, match="is not what its slot has") as caught:
        suspend(local.host, "s", 5.0)
    assert (caught.value.reason, session.ownership.state) == ("HOST_COPY_DIFFERS", State.LIVE)
    monkeypatch.undo()
    assert [block.block_index for block in local.play(session, 1)] == [2]


def test_a_state_that_comes_back_wrong_is_not_played_and_not_thrown_away(local: LocalHost) -> None:
    session, still = local.create(), local.create("still")
    wanted = shown(local, still, 3)
    assert shown(local, session, 2) == wanted[:2]
    suspend(local.host, "s", 5.0)
    free = local.host.budget.free_bytes
    flip(session)
    with pytest.raises(DataLoss, match="stays suspended") as caught:
        resume(local.host, "s", 5.0)
    assert caught.value.reason == "HOST_COPY_DIFFERS"
    assert (session.ownership.state, local.host.budget.free_bytes) == (State.SUSPENDED, free)
    flip(session)
    resume(local.host, "s", 5.0)
    assert shown(local, session, 1) == wanted[2:]


def test_what_arrives_wrong_once_is_copied_once_more(local: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    session = local.create()
    local.play(session, 1)
    suspend(local.host, "s", 5.0)
    read_from, tries = local.host.device.read_from, []

    class Once:
        def __init__(self, buffer: object) -> None:
            self.within = read_from(buffer)  # type: ignore[arg-type]

        def pull(self, into: object, chunks: object, **rest: object) -> object:
            rest["flip"] = (0,) if not tries else ()
            tries.append(chunks)
            return self.within.pull(into, chunks, **rest)  # type: ignore[arg-type]

        def close(self) -> None:
            self.within.close()

    monkeypatch.setattr(local.host.device, "read_from", Once)
    resume(local.host, "s", 5.0)
    assert len(tries) == 2
    local.play(session, 1)


def test_an_engine_that_refuses_leaves_the_session_suspended(local: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    session = local.create()
    suspend(local.host, "s", 5.0)
    free = local.host.budget.free_bytes

    def refuse(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(local.engine, "load", refuse)
    with pytest.raises(Internal, match="stays suspended"):
        resume(local.host, "s", 5.0)
    assert (session.ownership.state, local.host.budget.free_bytes) == (State.SUSPENDED, free)
    monkeypatch.undo()
    resume(local.host, "s", 5.0)
    local.play(session, 1)


def test_host_memory_is_bounded_and_used_again(local: LocalHost) -> None:
    local.create("a"), local.create("b")
    suspend(local.host, "a", 5.0)
    with pytest.raises(Exhausted, match="suspend_bytes") as caught:
        suspend(local.host, "b", 5.0)
    assert caught.value.reason == "SUSPEND_MEMORY"
    resume(local.host, "a", 5.0)
    suspend(local.host, "b", 5.0)
    assert local.host.sessions.get("a").ownership.state is State.LIVE


def test_nothing_is_suspended_where_no_memory_is_set_aside(tmp_path: Path) -> None:
    host = LocalHost(tmp_path)
    session = host.create()
    with pytest.raises(Unsupported, match="suspend_bytes of this host is 0") as caught:
        suspend(host.host, "s", 5.0)
    assert (caught.value.reason, session.ownership.state) == ("SUSPEND_OFF", State.LIVE)
    host.play(session, 1)
    host.close()


def test_no_slot_for_it_leaves_it_suspended(local: LocalHost) -> None:
    session = local.create()
    suspend(local.host, "s", 5.0)
    held = local.host.budget.reserve(BUDGET - 64, "test")
    with pytest.raises(Exhausted, match="resuming session s"):
        resume(local.host, "s", 5.0)
    assert session.ownership.state is State.SUSPENDED
    held.release()
    resume(local.host, "s", 5.0)
    local.play(session, 1)


def test_closing_a_suspended_session_gives_its_host_memory_back(local: LocalHost) -> None:
    local.create()
    suspend(local.host, "s", 5.0)
    local.life.close("s", local.token, 5.0)
    assert local.host.suspended.kept_bytes == HOST_MEMORY
    with pytest.raises(NotFound):
        resume(local.host, "s", 5.0)
    local.create("t")
    suspend(local.host, "t", 5.0)


def test_its_player_is_told_and_keeps_its_last_readout(local: LocalHost) -> None:
    session = local.create()
    (block,) = local.play(session, 1)
    stream = local.stream(session)
    suspend(local.host, "s", 5.0)
    last = stream.next()
    assert last is not None
    assert last.ended.reason == "SUSPENDED"
    resume(local.host, "s", 5.0)
    stream = local.stream(session)
    with session.cond:
        stream.replay_wanted = True
    local.host.scheduler.wake(session)
    again = stream.next()
    assert again is not None
    assert (again.block.replayed, again.block.readout) == (True, block.readout)


def test_a_block_in_progress_is_over_first(local: LocalHost) -> None:
    session = local.create()
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        assert go_on.wait(10)

    local.engine.misbehave = hold
    player = threading.Thread(target=local.play, args=(session, 1))
    player.start()
    assert entered.wait(10)
    suspending = threading.Thread(target=suspend, args=(local.host, "s", 10.0))
    suspending.start()
    go_on.set()
    suspending.join(10)
    player.join(10)
    assert (session.next_block, session.ownership.state) == (1, State.SUSPENDED)


# --- beside moves


def test_a_suspended_session_that_is_to_move_comes_back_first(local: LocalHost) -> None:
    session = local.create()
    local.play(session, 2)
    suspend(local.host, "s", 5.0)
    assert local.source.register("s", None).layout == session.require_copy().slot.layout
    assert session.host_copy is not None  # who only asks for the layout wakes nobody
    fence = local.fence()
    local.source.register("s", fence, None, 5.0)
    assert (session.host_copy, session.ownership.state) == (None, State.SUSPENDED)
    manifest = local.source.freeze(fence, 5.0, 5.0).manifest
    assert manifest.block_index == 2
    with pytest.raises(Owned):
        suspend(local.host, "s", 5.0)
    with pytest.raises(Owned):
        resume(local.host, "s", 5.0)
    assert local.source.resume(fence, reinstate=False) is State.LIVE
    local.play(session, 1)


def test_a_move_that_finds_no_slot_for_it_is_told(local: LocalHost) -> None:
    local.create()
    suspend(local.host, "s", 5.0)
    held = local.host.budget.reserve(BUDGET - 64, "test")
    with pytest.raises(Exhausted):
        local.source.register("s", local.fence(), None, 5.0)
    held.release()


def test_no_move_ever_carries_a_slot_that_was_given_back(tmp_path: Path) -> None:
    """A move that registered has the old slot mapped: it either keeps the session awake, or is over."""
    local = LocalHost(tmp_path, suspend_bytes=HOST_MEMORY, stage_ttl_s=0.05)
    session = local.create()
    fence = local.fence()
    local.source.register("s", fence)
    until("its time is up", lambda: not session.in_a_move(0.05))
    suspend(local.host, "s", 5.0)
    resume(local.host, "s", 5.0)
    with pytest.raises(WrongState, match="ask for a new move"):
        local.source.freeze(fence, 5.0, 5.0)
    fresh = local.fence()
    local.source.register("s", fresh)
    local.source.freeze(fresh, 5.0, 5.0)
    local.close()


def test_a_registered_move_keeps_it_from_being_suspended(local: LocalHost) -> None:
    session = local.create()
    local.source.register("s", local.fence())
    with pytest.raises(Owned, match="a move that has registered"):
        suspend(local.host, "s", 5.0)
    assert (session.ownership.state, session.host_copy) == (State.LIVE, None)


def test_staged_and_gone_sessions_are_refused(local: LocalHost) -> None:
    session = local.create("other")
    with session.cond:
        session.ownership = session.ownership.freeze(local.fence("other"))
    with pytest.raises(Owned):
        suspend(local.host, "other", 5.0)
    with pytest.raises(NotFound):
        suspend(local.host, "nobody", 5.0)


@pytest.mark.parametrize("state", [State.NOTHING, State.GONE, State.STAGED])
def test_only_what_rests_here_can_be_set_aside(state: State) -> None:
    with pytest.raises((NotFound, WrongState)):
        Ownership(state=state, epoch=1).set_aside("")


# --- what its player has left


def test_an_abandoned_session_gives_its_slot_back_and_wakes_in_another(tmp_path: Path) -> None:
    local = LocalHost(tmp_path, suspend_bytes=HOST_MEMORY, idle_s=0.05)
    session = local.create()
    local.play(session, 1)
    until("its suspension", lambda: session.host_copy is not None)
    assert local.host.budget.free_bytes == BUDGET
    resume(local.host, "s", 5.0)
    local.play(session, 1)
    local.close()


def test_a_player_who_comes_back_meanwhile_is_not_left_alone(local: LocalHost) -> None:
    session = local.create()
    with session.cond:
        session.ownership = session.ownership.suspend()
    local.stream(session)
    with pytest.raises(Owned, match="its player"):
        suspension.suspend_abandoned(local.host, session)
    assert session.host_copy is None


def test_a_player_who_comes_while_it_is_copied_is_not_left_alone_either(
    local: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = local.create()
    save = Arena.save

    def slow(self: Arena, to: int, pieces: Sequence[Chunk]) -> Saved:
        local.stream(session)
        return save(self, to, pieces)

    monkeypatch.setattr(Arena, "save", slow)
    with session.cond:
        session.ownership = session.ownership.suspend()
    with pytest.raises(Owned, match="its player"):
        suspension.suspend_abandoned(local.host, session)
    assert (session.host_copy, local.host.suspended.kept_bytes) == (None, HOST_MEMORY)


def test_a_state_that_is_larger_than_the_memory_keeps_its_slot(tmp_path: Path) -> None:
    local = LocalHost(tmp_path, suspend_bytes=64, idle_s=0.05)
    session = local.create()
    until("it is idle", lambda: session.ownership.state is State.SUSPENDED)
    suspension.suspend_abandoned(local.host, session)
    assert (session.host_copy, session.runner is not None) == (None, True)
    local.close()


def test_an_abandoned_one_is_closed_from_host_memory(tmp_path: Path) -> None:
    local = LocalHost(tmp_path, suspend_bytes=HOST_MEMORY, idle_s=0.05, close_s=0.1)
    session = local.create()
    until("its end", lambda: session.ownership.closed)
    assert local.host.budget.free_bytes == BUDGET
    local.close()

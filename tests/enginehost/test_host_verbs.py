"""The verbs of both sides between two hosts in this process; the test is the mover and the controller."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from enginehost_tools import PLAN, LocalHost, ToySession, crcs_of, until

from enginehost.host import RESERVED_FDS, max_sessions
from enginehost.ownership import State
from enginehost.regions import fetch
from enginehost.session import Session
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import (
    BadRequest,
    DataLoss,
    Exhausted,
    Mismatch,
    NotFound,
    Owned,
    StaleFence,
    TimedOut,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from worldline.manifest import Fingerprint, Manifest
from worldline.receipt import Receipt


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path, "source")
    yield host
    host.close()
    assert host.host.budget.free_bytes == 1 << 20


@pytest.fixture
def destination(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path, "destination")
    yield host
    host.close()
    assert host.host.budget.free_bytes == 1 << 20


class Move:
    """One move, driven step by step."""

    def __init__(self, source: LocalHost, destination: LocalHost, session: Session, epoch: int = 1) -> None:
        self.source, self.destination, self.session = source, destination, session
        self.fence = source.fence(session.session_id, epoch=epoch)
        self.there = replace(self.fence, incarnation=destination.host.incarnation)

    def stage(self) -> None:
        registered = self.source.source.register(self.fence.session_id, self.fence)
        self.read = fetch(self.source.host.regions.path, registered.ticket)
        staged = self.destination.destination.stage(
            self.there, registered.layout, registered.descriptor, registered.fingerprint, 10.0
        )
        self.write = fetch(self.destination.host.regions.path, staged.ticket)

    def freeze(self, max_freeze_s: float = 30.0) -> Manifest:
        self.manifest = self.source.source.freeze(self.fence, max_freeze_s, 10.0).manifest
        return self.manifest

    def copy(self) -> None:
        size = os.fstat(self.read).st_size
        os.pwrite(self.write, os.pread(self.read, size, 0), 0)
        os.close(self.read)
        os.close(self.write)

    def attest(self) -> tuple[Receipt, Receipt]:
        crcs = crcs_of(self.session)
        self.given = self.source.source.attest(self.fence, self.manifest, PLAN, crcs)
        self.taken = self.destination.destination.attest(self.there, self.manifest, PLAN, crcs)
        return self.given, self.taken

    def upto_receipts(self) -> None:
        self.stage()
        self.freeze()
        self.copy()
        self.attest()

    def hand_over(self) -> Session:
        grant = self.source.source.release(self.fence)
        assert grant is not None
        self.destination.destination.commit(self.there, grant, self.given, 10.0)
        session = self.destination.destination.activate(self.there)
        self.source.source.free(self.fence, "destination", "127.0.0.1:1", self.fence.epoch + 1, 10.0)
        return session


def shown(host: LocalHost, session: Session, blocks: int) -> list[tuple[int, bytes, int]]:
    return [(block.block_index, block.readout, block.state_crc) for block in host.play(session, blocks)]


def test_a_session_moved_back_and_forth_equals_one_never_moved(source: LocalHost, destination: LocalHost) -> None:
    session, still = source.create(), source.create("still")
    wanted = shown(source, still, 12)
    played = shown(source, session, 3)
    here, there = source, destination
    for turn in range(3):
        move = Move(here, there, session, epoch=turn + 1)
        move.upto_receipts()
        session = move.hand_over()
        assert session.ownership.epoch == turn + 2
        here, there = there, here
        played += shown(here, session, 3)
    assert played == wanted
    assert [host.sessions.get("s").ownership.state for host in (source.host, destination.host)] == [
        State.GONE,
        State.LIVE,
    ]


def test_every_verb_said_twice_is_answered_alike(source: LocalHost, destination: LocalHost) -> None:
    session = source.create()
    source.play(session, 2)
    move = Move(source, destination, session)
    move.stage()
    move.destination.destination.stage(
        move.there,
        session.require_copy().slot.layout,
        session.require_copy().descriptor,
        session.require_copy().fingerprint,
        1.0,
    )
    assert move.freeze() is move.freeze()
    move.copy()
    assert move.attest() == move.attest()
    grant = source.source.release(move.fence)
    assert grant is not None
    assert source.source.release(move.fence) == grant
    assert source.source.attest(move.fence, move.manifest, PLAN, move.given.chunk_crcs) == move.given
    taken = destination.destination.commit(move.there, grant, move.given, 10.0)
    assert destination.destination.commit(move.there, grant, move.given, 10.0) == taken
    destination.destination.activate(move.there)
    assert destination.destination.activate(move.there).ownership.state is State.LIVE
    again, epoch = destination.destination.commit(move.there, grant, move.given, 10.0)
    assert (again.manifest, again.verify_s, epoch) == (taken[0].manifest, taken[0].verify_s, taken[1])
    freed = source.source.free(move.fence, "destination", "127.0.0.1:1", 2, 10.0)
    assert freed > 0
    assert source.source.free(move.fence, "destination", "127.0.0.1:1", 2, 10.0) == freed
    assert source.source.release(move.fence) == grant
    for reinstate in (False, True):
        with pytest.raises(WrongState):
            source.source.resume(move.fence, reinstate=reinstate)
    with pytest.raises(WrongState):
        destination.destination.drop(move.there, 1.0)


@pytest.mark.parametrize("bit", [0, 4096 * 8 + 3])
def test_a_bit_flipped_in_the_slot_after_its_receipt_is_never_installed(
    source: LocalHost, destination: LocalHost, bit: int
) -> None:
    source.engine.state_bytes = destination.engine.state_bytes = 1 << 16
    session = source.create()
    source.play(session, 2)
    move = Move(source, destination, session)
    move.upto_receipts()
    grant = source.source.release(move.fence)
    assert grant is not None
    slot = destination.host.sessions.get("s").require_copy().slot
    byte = min(bit // 8, slot.layout.region_bytes - 1)
    slot.arena.map[byte] = slot.arena.map[byte] ^ (1 << bit % 8)
    verified = destination.destination.verify(move.there, move.given, 10.0)
    assert verified.bad_chunks == (byte // 4096,)
    assert destination.host.sessions.get("s").ownership.state is State.STAGED
    for _ in range(2):
        with pytest.raises(DataLoss) as caught:
            destination.destination.commit(move.there, grant, move.given, 10.0)
    assert caught.value.reason == "COPY_REFUSED"
    with pytest.raises(WrongState):
        destination.destination.stage(
            move.there,
            session.require_copy().slot.layout,
            session.require_copy().descriptor,
            session.require_copy().fingerprint,
            1.0,
        )
    assert destination.host.budget.free_bytes == 1 << 20
    assert source.source.resume(move.fence, reinstate=True) is State.LIVE
    assert destination.destination.drop(move.there, 1.0) is State.NOTHING
    source.play(session, 1)


def test_the_refusal_names_chunk_offset_and_place(source: LocalHost, destination: LocalHost) -> None:
    session = source.create()
    move = Move(source, destination, session)
    move.upto_receipts()
    grant = source.source.release(move.fence) or b""
    slot = destination.host.sessions.get("s").require_copy().slot
    slot.arena.map[100] = slot.arena.map[100] ^ 1
    del slot
    with pytest.raises(DataLoss, match="in the shadow slot after its receipt") as caught:
        destination.destination.commit(move.there, grant, move.given, 10.0)
    assert (caught.value.numbers["chunk"], caught.value.numbers["offset"]) == (0, 0)


def test_what_commit_needs(source: LocalHost, destination: LocalHost) -> None:
    session = source.create()
    move = Move(source, destination, session)
    move.stage()
    move.freeze()
    commit = destination.destination.commit
    other = replace(move.there, move_id=source.fence().move_id)
    crcs = crcs_of(session)
    given = source.source.attest(move.fence, move.manifest, PLAN, crcs)
    with pytest.raises(WrongState, match="attested"):
        commit(move.there, b"g" * 32, given, 1.0)
    move.copy()
    move.attest()
    grant = source.source.release(move.fence) or b""
    with pytest.raises(Unauthenticated):
        commit(move.there, b"g" * 32, given, 1.0)
    with pytest.raises(Owned):
        commit(other, grant, given, 1.0)
    with pytest.raises(StaleFence):
        commit(replace(move.there, epoch=2), grant, given, 1.0)
    for wrong in (
        replace(given, state_crc=given.state_crc ^ 1),
        replace(given, chunk_crcs=(*given.chunk_crcs[:-1], given.chunk_crcs[-1] ^ 1)),
        replace(given, side=move.taken.side),
        replace(given, plan_digest=b"p" * 32),
    ):
        with pytest.raises(Mismatch):
            commit(move.there, grant, wrong, 1.0)
    assert destination.host.sessions.get("s").ownership.state is State.STAGED
    commit(move.there, grant, given, 10.0)


def test_what_attest_needs(source: LocalHost, destination: LocalHost) -> None:
    session = source.create()
    move = Move(source, destination, session)
    move.stage()
    move.freeze()
    move.copy()
    crcs = crcs_of(session)
    for attest, fence in ((source.source.attest, move.fence), (destination.destination.attest, move.there)):
        with pytest.raises(BadRequest):
            attest(fence, move.manifest, PLAN, crcs[:-1])
        with pytest.raises(Mismatch):
            attest(fence, replace(move.manifest, epoch=9), PLAN, crcs)
    for change in ({"layout_digest": b"l" * 32}, {"descriptor_digest": b"d" * 32}, {"fingerprint_digest": b"f" * 32}):
        with pytest.raises(Mismatch):
            destination.destination.attest(move.there, replace(move.manifest, **change), PLAN, crcs)
    destination.destination.attest(move.there, move.manifest, PLAN, crcs)
    with pytest.raises(Mismatch, match="something else"):
        destination.destination.attest(move.there, move.manifest, PLAN, [crc ^ 1 for crc in crcs])
    source.source.resume(move.fence, reinstate=False)
    with pytest.raises(WrongState):
        source.source.attest(move.fence, move.manifest, PLAN, crcs)


def test_the_freeze_timer_lets_the_session_go_on(source: LocalHost, destination: LocalHost) -> None:
    session = source.create()
    source.play(session, 1)
    move = Move(source, destination, session)
    move.stage()
    move.freeze(max_freeze_s=0.05)
    move.copy()
    until("the timer's resumption", lambda: session.ownership.state is State.LIVE)
    with pytest.raises(WrongState):
        source.source.attest(move.fence, move.manifest, PLAN, crcs_of(session))
    assert source.source.release(move.fence) is None
    with pytest.raises(WrongState):
        move.freeze()
    assert source.source.resume(move.fence, reinstate=False) is State.LIVE
    source.play(session, 1)
    assert destination.destination.drop(move.there, 1.0) is State.NOTHING
    assert destination.host.budget.free_bytes == 1 << 20


def test_a_freeze_waits_for_the_block_boundary_and_gives_up_in_time(source: LocalHost) -> None:
    session = source.create()
    inside, go = threading.Event(), threading.Event()

    def wait(_: ToySession) -> None:
        inside.set()
        go.wait(20)

    source.engine.misbehave = wait
    stream = source.stream(session)
    with session.cond:
        stream.take_action(0, b"aaaa", 0, 4)
    source.host.scheduler.wake(session)
    assert inside.wait(20)
    with pytest.raises(TimedOut, match="block 0"):
        source.source.freeze(source.fence(), 10.0, 0.05)
    assert session.ownership.state is State.LIVE
    frozen: list[Manifest] = []
    fence = source.fence()
    waiting = threading.Thread(target=lambda: frozen.append(source.source.freeze(fence, 10.0, 20.0).manifest))
    waiting.start()
    go.set()
    waiting.join()
    assert frozen[0].block_index == 1
    source.source.resume(fence, reinstate=False)


def test_drift_is_refused_and_the_session_plays_on(source: LocalHost) -> None:
    session = source.create()
    source.play(session, 1)
    source.engine.misbehave = lambda toy: toy.tree.update(a=toy.tree["a"].double())
    stream = source.stream(session)
    with session.cond:
        session.acked = 0
        stream.take_action(1, b"aaaa", 1, 4)
    source.host.scheduler.wake(session)
    assert stream.next() is not None
    with pytest.raises(Mismatch, match="a: dtype") as caught:
        source.source.freeze(source.fence(), 10.0, 10.0)
    assert caught.value.reason == "LAYOUT_DRIFT"
    assert session.ownership.state is State.LIVE
    assert not session.ownership.move_id


def test_leaves_that_change_places_in_the_arena_are_still_exact(source: LocalHost, destination: LocalHost) -> None:
    still, session = source.create("still"), source.create()

    def swap(toy: ToySession) -> None:
        toy.tree["a"], toy.tree["b"] = toy.tree["b"], toy.tree["a"]

    source.engine.misbehave = destination.engine.misbehave = swap
    wanted = shown(source, still, 5)
    played = shown(source, session, 1)
    aborted = Move(source, destination, session)
    aborted.stage()
    aborted.freeze()
    aborted.copy()
    source.source.resume(aborted.fence, reinstate=False)
    destination.destination.drop(aborted.there, 1.0)
    played += shown(source, session, 2)
    move = Move(source, destination, session)
    move.upto_receipts()
    played += shown(destination, move.hand_over(), 2)
    assert played == wanted


def test_a_session_that_has_drifted_plays_on_but_gives_no_state_crc(source: LocalHost) -> None:
    session = source.create()
    source.engine.misbehave = lambda toy: toy.tree.update(extra=1)
    stream = source.stream(session, with_state_crc=True)
    with session.cond:
        stream.take_action(0, b"aaaa", 0, 4)
    source.host.scheduler.wake(session)
    block = stream.next()
    assert block is not None
    assert not block.block.HasField("state_crc")
    with pytest.raises(Mismatch):
        stream.next()
    assert session.ownership.state is State.LIVE
    assert session.next_block == 1


def test_replaced_tensors_are_flattened_and_charged(source: LocalHost) -> None:
    session = source.create()
    source.engine.misbehave = lambda toy: toy.tree.update(a=toy.tree["a"].clone())
    source.play(session, 1)
    fence = source.fence()
    freeze = source.source.freeze(fence, 10.0, 10.0)
    assert freeze.flattened_bytes == 400 + 8 + 5056
    assert session.flattened_bytes == freeze.flattened_bytes
    source.source.resume(fence, reinstate=False)
    source.play(session, 1)


def test_stage_checks_everything_before_memory(source: LocalHost, destination: LocalHost) -> None:
    copy = source.create().require_copy()
    layout, descriptor, fingerprint = copy.slot.layout, copy.descriptor, copy.fingerprint
    stage = destination.destination.stage
    fence = destination.fence()
    other = Fingerprint({**fingerprint.fields, "torch": "0.1"})
    with pytest.raises(Mismatch, match="torch"):
        stage(fence, layout, descriptor, other, 1.0)
    with pytest.raises(Mismatch, match="'9' there"):
        stage(fence, layout, replace(descriptor, engine_version="9"), fingerprint, 1.0)
    with pytest.raises(NotFound, match="engine"):
        stage(fence, layout, replace(descriptor, engine="none"), fingerprint, 1.0)
    with pytest.raises(NotFound, match="preset"):
        stage(fence, layout, replace(descriptor, preset="none"), fingerprint, 1.0)
    with pytest.raises(BadRequest, match="session_id"):
        stage(fence, layout, replace(descriptor, session_id="t"), fingerprint, 1.0)
    destination.engine.state_bytes = 64
    with pytest.raises(Mismatch, match="preset"):
        stage(fence, layout, descriptor, fingerprint, 1.0)
    destination.engine.state_bytes = 1 << 16
    held = destination.host.budget.reserve((1 << 20) - 64, "test")
    with pytest.raises(Exhausted) as caught:
        stage(fence, layout, descriptor, fingerprint, 1.0)
    assert caught.value.retry_after_s
    held.release()
    with pytest.raises(StaleFence):
        stage(replace(fence, incarnation=2), layout, descriptor, fingerprint, 1.0)
    destination.host.draining = True
    with pytest.raises(Unavailable):
        stage(fence, layout, descriptor, fingerprint, 1.0)
    destination.host.draining = False
    assert destination.host.sessions.find("s") is None
    stage(fence, layout, descriptor, fingerprint, 1.0)
    with pytest.raises(StaleFence, match="term"):
        stage(replace(fence, term=0), layout, descriptor, fingerprint, 1.0)
    with pytest.raises(Owned):
        stage(destination.fence(), layout, descriptor, fingerprint, 1.0)
    destination.destination.drop(fence, 1.0)


def test_another_move_never_gets_a_session_that_is_owned(source: LocalHost) -> None:
    session = source.create()
    fence, other = source.fence(), source.fence()
    source.source.freeze(fence, 10.0, 10.0)
    for verb in (
        lambda: source.source.freeze(other, 10.0, 1.0),
        lambda: source.source.register("s", other),
        lambda: source.source.release(other),
        lambda: source.source.resume(other, reinstate=True),
        lambda: source.life.close("s", source.token, 1.0),
    ):
        with pytest.raises(Owned):
            verb()
    assert session.ownership.state is State.FROZEN
    source.source.resume(fence, reinstate=False)


def test_rollback_of_nothing(source: LocalHost) -> None:
    unknown = source.fence("unknown")
    assert source.source.resume(unknown, reinstate=False) is State.NOTHING
    assert source.source.resume(unknown, reinstate=True) is State.NOTHING
    assert source.destination.drop(unknown, 1.0) is State.NOTHING
    with pytest.raises(NotFound):
        source.source.release(source.fence("other"))


@pytest.mark.parametrize("max_freeze_s", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_freezes_are_bounded(source: LocalHost, max_freeze_s: float) -> None:
    source.create()
    with pytest.raises(BadRequest):
        source.source.freeze(source.fence(), max_freeze_s, 1.0)


def test_creation_is_refused_before_memory_is_taken(source: LocalHost) -> None:
    source.engine.state_bytes = (1 << 19) + 1
    made: list[int] = []
    source.engine.create = lambda *_: made.append(1)  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(Exhausted):
        source.create()
    assert not made
    assert source.host.sessions.find("s") is None


def test_an_engine_that_cannot_be_moved_creates_nothing(source: LocalHost) -> None:
    source.engine.create = lambda *_: {"a": torch.ones(2), "b": torch.eye(2).to_sparse()}  # type: ignore[method-assign]
    with pytest.raises(Exception, match="sparse"):
        source.create()
    assert source.host.sessions.held() == []
    assert source.host.budget.free_bytes == 1 << 20


def test_a_session_id_is_used_once(source: LocalHost) -> None:
    source.create()
    with pytest.raises(WrongState):
        source.create()
    with pytest.raises(Unauthenticated):
        source.life.close("s", "wrong", 5.0)


def test_closing_frees_and_ends_the_stream(source: LocalHost) -> None:
    session = source.create()
    stream = source.stream(session)
    source.life.close("s", source.token, 5.0)
    last = stream.next()
    assert last is not None
    assert last.ended.reason == "CLOSED"
    assert source.host.budget.free_bytes == 1 << 20
    with pytest.raises(NotFound):
        source.life.close("s", source.token, 5.0)


def test_an_abandoned_session_is_suspended_then_closed(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, idle_s=0.05, close_s=0.3)
    session, kept = host.create(), host.create("kept")
    host.stream(kept)
    until("the suspension", lambda: session.ownership.state is State.SUSPENDED)
    fence = host.fence()
    host.source.freeze(fence, 10.0, 10.0)
    host.source.resume(fence, reinstate=False)
    until("the closing", lambda: session.copy is None)
    assert session.ownership.state is State.NOTHING
    assert kept.ownership.state is State.LIVE
    host.close()


def test_an_engine_that_fails_ends_its_session_only(source: LocalHost) -> None:
    session, other = source.create(), source.create("other")

    def fail(toy: ToySession) -> None:
        if toy is session.runner:
            raise RuntimeError("broken")

    source.engine.misbehave = fail
    with pytest.raises(Exception, match="the session has ended"):
        source.play(session, 1)
    assert session.ownership.state is State.NOTHING
    assert session.copy is None
    source.play(other, 2)


def test_a_bad_action_changes_nothing(source: LocalHost) -> None:
    session, still = source.create(), source.create("still")
    with pytest.raises(BadRequest):
        source.play(session, 1, b"bad!")
    assert shown(source, session, 2) == shown(source, still, 2)


def test_sessions_take_turns(source: LocalHost) -> None:
    """A session with many blocks to play does not hold up another."""
    order: list[str] = []
    sessions = [source.create(name) for name in ("one", "two")]
    source.engine.misbehave = lambda toy: order.append("one" if toy is sessions[0].runner else "two")
    streams = [source.stream(session) for session in sessions]
    for session, stream in zip(sessions, streams, strict=True):
        with session.cond:
            for index in range(8):
                stream.take_action(index, b"aaaa", 0, 4)
            session.acked = 100
    for session in sessions:
        source.host.scheduler.wake(session)
    for stream in streams:
        for _ in range(8):
            stream.next()
    assert max(abs(order[:n].count("one") - order[:n].count("two")) for n in range(2, 16)) <= 2


@pytest.mark.parametrize(
    ("contract", "limit_s"),
    [
        (Contract(ContractClass.C1, 0.5, Tier.T0), 1.5),
        (Contract(ContractClass.C2A, 0.1, Tier.T0), 0.1 + 1.0),
        (Contract(ContractClass.C5, 0.0, Tier.T1), 7.0),
    ],
)
def test_a_freeze_lasts_no_longer_than_the_contract_bears(tmp_path: Path, contract: Contract, limit_s: float) -> None:
    host = LocalHost(tmp_path, grace_s=1.0, max_freeze_s=7.0)
    session = host.create(contract=contract)
    for over_s in (limit_s * 1.001, 86_400.0):
        with pytest.raises(BadRequest) as caught:
            host.source.freeze(host.fence(), over_s, 1.0)
        assert caught.value.reason == "FREEZE_TOO_LONG"
        assert caught.value.violations
        assert session.ownership.state is State.LIVE
    fence = host.fence()
    host.source.freeze(fence, limit_s, 1.0)
    host.source.resume(fence, reinstate=False)
    host.close()


def hasty_pair(directory: Path) -> tuple[LocalHost, LocalHost]:
    """Two hosts that wait for nobody long."""
    source, destination = (
        LocalHost(directory, name, grace_s=0.1, stage_ttl_s=0.2, idle_s=0.05, close_s=0.05)
        for name in ("source", "destination")
    )
    return source, destination


HASTY = Contract(ContractClass.C1, 0.1, Tier.T0)


def test_a_staged_copy_whose_move_tells_nothing_is_dropped(tmp_path: Path) -> None:
    source, destination = hasty_pair(tmp_path)
    session = source.create(contract=HASTY)
    stream = source.stream(session)
    move = Move(source, destination, session)
    move.stage()
    free_bytes = destination.host.budget.free_bytes
    until("the drop", lambda: destination.host.budget.free_bytes > free_bytes)
    assert destination.host.sessions.held() == []
    # The move that comes late finds that it is over here, whatever it asks, and its memory is nobody's.
    move.freeze(0.2)
    move.copy()
    with pytest.raises((NotFound, WrongState)):
        move.attest()
    copy = session.require_copy()
    with pytest.raises(WrongState, match="over"):
        destination.destination.stage(move.there, copy.slot.layout, copy.descriptor, copy.fingerprint, 1.0)
    assert destination.destination.drop(move.there, 1.0) is State.NOTHING
    source.source.resume(move.fence, reinstate=False)
    # The next move is taken.
    again = Move(source, destination, session)
    again.stage()
    again.freeze(0.2)
    again.copy()
    again.attest()
    destination.destination.drop(again.there, 1.0)
    source.source.resume(again.fence, reinstate=False)
    stream.finish()
    source.close()
    destination.close()


def test_an_attested_copy_stays_however_long_nobody_asks(tmp_path: Path) -> None:
    source, destination = hasty_pair(tmp_path)
    session, other = source.create(contract=HASTY), source.create("other", contract=HASTY)
    streams = [source.stream(session), source.stream(other)]
    move = Move(source, destination, session)
    move.stage()
    move.freeze(0.2)
    move.copy()
    move.attest()
    # A copy that was staged later is dropped: the attested one has waited longer than it.
    abandoned = Move(source, destination, other)
    abandoned.stage()
    os.close(abandoned.read)
    os.close(abandoned.write)
    until("the drop of the other", lambda: len(destination.host.sessions.held()) == 1)
    (kept,) = destination.host.sessions.held()
    assert (kept.session_id, kept.ownership.state) == (session.session_id, State.STAGED)
    destination.destination.drop(move.there, 1.0)
    for stream in streams:
        stream.finish()
    source.close()
    destination.close()


def test_an_abandoned_session_is_not_closed_under_a_move(tmp_path: Path) -> None:
    """One that a move has registered stays until that move is over here, or was silent for `stage_ttl_s`."""
    host = LocalHost(tmp_path, idle_s=0.02, close_s=0.02, stage_ttl_s=3600.0)
    session, alone = host.create("moving"), host.create("alone")
    fence = host.fence("moving")
    host.source.register("moving", fence)
    until("the other's end", lambda: alone.copy is None)
    until("its suspension", lambda: session.ownership.state is State.SUSPENDED)
    later = host.create("later")
    until("the later one's end", lambda: later.copy is None)
    assert session.copy is not None
    host.source.freeze(fence, 10.0, 5.0)
    assert host.source.resume(fence, reinstate=False) is State.LIVE
    until("its end after the move's", lambda: session.copy is None)
    assert host.host.sessions.closed("moving")
    host.close()


@pytest.mark.parametrize("registered", [False, True])
def test_a_close_before_the_freeze_is_told_to_the_move(source: LocalHost, registered: bool) -> None:
    source.create()
    fence = source.fence()
    if registered:
        source.source.register("s", fence)
    assert not source.host.sessions.closed("s")
    source.life.close("s", source.token, 5.0)
    for verb in (lambda: source.source.register("s", fence), lambda: source.source.freeze(fence, 1.0, 1.0)):
        with pytest.raises(NotFound) as caught:
            verb()
        assert caught.value.reason == "SESSION_CLOSED"
    for reinstate in (False, True):
        assert source.source.resume(fence, reinstate=reinstate) is State.NOTHING
    assert source.host.sessions.closed("s")


def test_a_close_after_the_freeze_is_refused(source: LocalHost) -> None:
    source.create()
    fence = source.fence()
    source.source.freeze(fence, 10.0, 5.0)
    with pytest.raises(Owned) as caught:
        source.life.close("s", source.token, 5.0)
    assert caught.value.retry_after_s
    source.source.resume(fence, reinstate=False)
    assert not source.host.sessions.closed("s")


def test_slots_leave_descriptors_for_everything_else(source: LocalHost, destination: LocalHost) -> None:
    """Sessions and staged copies are refused while there are descriptors left; what is there plays on."""
    session = source.create()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = RESERVED_FDS + 2 * source.host.settings.rpc_threads
    resource.setrlimit(resource.RLIMIT_NOFILE, (reserve + 2, files[1]))
    try:
        assert max_sessions(source.host.settings) == 2
        second = source.create("second")
        with pytest.raises(Exhausted) as caught:
            source.create("third")
        assert (caught.value.reason, caught.value.numbers) == ("MAX_SESSIONS", {"held": 2, "limit": 2})
        for name in ("one", "two"):
            destination.create(name)
        with pytest.raises(Exhausted, match="RLIMIT_NOFILE"):
            Move(source, destination, session).stage()
        assert destination.host.sessions.find("s") is None
        source.play(second, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)

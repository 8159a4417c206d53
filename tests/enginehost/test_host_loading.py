"""A staged copy is rehydrated as soon as it is attested; what was made ahead is played only if its bytes still hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, until
from test_host_verbs import Move

from enginehost.loading import Ahead
from enginehost.ownership import State
from worldline.engine import StateTree
from worldline.errors import DataLoss, WrongState


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[LocalHost, LocalHost]]:
    made = LocalHost(tmp_path, "source"), LocalHost(tmp_path, "destination")
    yield made
    for host in made:
        host.host.ahead.close()
        host.close()
        assert host.host.budget.free_bytes == 1 << 20


def attested(source: LocalHost, destination: LocalHost) -> Move:
    session = source.create()
    source.play(session, 2)
    move = Move(source, destination, session)
    move.upto_receipts()
    return move


def made_ahead(host: LocalHost) -> bool:
    return host.host.sessions.get("s").prepared is not None


def test_the_commit_only_checks_and_swaps(hosts: tuple[LocalHost, LocalHost], monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = hosts
    still = source.create("still")
    wanted = source.play(still, 4)
    move = attested(source, destination)
    until("it is made ahead", lambda: made_ahead(destination))
    there = destination.host.sessions.get("s")
    assert (there.runner, there.ownership.state) == (None, State.STAGED)

    def never(preset: str, tree: StateTree) -> None:
        raise AssertionError("loaded twice")

    monkeypatch.setattr(destination.engine, "load", never)
    session = move.hand_over()
    assert session.prepared is None
    assert [block.state_crc for block in destination.play(session, 2)] == [block.state_crc for block in wanted[2:]]


def test_bytes_that_change_after_it_was_made_are_still_found(hosts: tuple[LocalHost, LocalHost]) -> None:
    source, destination = hosts
    move = attested(source, destination)
    until("it is made ahead", lambda: made_ahead(destination))
    there = destination.host.sessions.get("s")
    region = there.require_copy().slot.arena.tensor()
    region[1000].bitwise_xor_(1)
    del region
    grant = source.source.release(move.fence)
    assert grant is not None
    with pytest.raises(DataLoss):
        destination.destination.commit(move.there, grant, move.given, 10.0)
    assert (there.prepared, there.runner, there.copy) == (None, None, None)
    source.source.resume(move.fence, reinstate=True)
    source.play(source.host.sessions.get("s"), 1)


def test_a_dropped_copy_leaves_nothing_that_was_made(hosts: tuple[LocalHost, LocalHost]) -> None:
    source, destination = hosts
    move = attested(source, destination)
    until("it is made ahead", lambda: made_ahead(destination))
    destination.destination.drop(move.there, 10.0)
    assert destination.host.sessions.get("s").prepared is None


def test_an_engine_that_fails_ahead_is_asked_again_by_the_commit(
    hosts: tuple[LocalHost, LocalHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = hosts
    load, calls = destination.engine.load, []

    def once(preset: str, tree: StateTree) -> object:
        calls.append(preset)
        if len(calls) == 1:
            raise ValueError("not now")
        return load(preset, tree)

    monkeypatch.setattr(destination.engine, "load", once)
    move = attested(source, destination)
    until("it was tried", lambda: bool(calls))
    session = move.hand_over()
    assert len(calls) == 2
    destination.play(session, 1)


def test_what_comes_too_late_or_after_the_end_does_nothing() -> None:
    ahead, done = Ahead(), []

    def late() -> None:
        done.append(1)
        raise WrongState("too late")

    ahead.do(late)
    ahead.close()
    ahead.do(late)
    assert len(done) <= 1

"""What a host tells of its sessions' compressibility: of one at a time, from bytes that are surely there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from enginehost_tools import LocalHost, ToySession

from enginehost import sampling
from enginehost.info import session_info
from enginehost.sampling import look
from enginehost.session import Session
from worldline.testing.leaks import no_leaks

__all__ = ["no_leaks"]
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path)
    yield host
    host.close()


def found_before(session: Session) -> int:
    """The block before which its sample was taken; 0 if there is none."""
    return session.sample.next_block if session.sample else 0


def test_a_session_is_sampled_once_it_has_played_and_again_when_it_has_changed(local: LocalHost) -> None:
    session = local.create()
    look([session])
    assert found_before(session) == 0
    assert not session_info(session).HasField("compressibility")
    for blocks, sampled_before in ((1, 1), (0, 1), (1, 2), (1, 2), (1, 4), (3, 4), (1, 8)):
        local.play(session, blocks)
        look([session])
        assert found_before(session) == sampled_before
    told = session_info(session).compressibility
    assert 0 < told.ratio <= 1
    assert told.encode_bytes_per_s > 0 < told.decode_bytes_per_s


def test_one_session_a_look_the_one_that_waited_longest(local: LocalHost) -> None:
    sessions = [local.create(f"s-{number}") for number in range(3)]
    for session in sessions:
        local.play(session, 1)
    for count in (1, 2, 3, 3):
        look(sessions)
        assert sum(session.sample is not None for session in sessions) == count


def test_after_a_while_it_is_taken_again(local: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    session = local.create()
    local.play(session, 4)
    look([session])
    local.play(session, 1)
    monkeypatch.setattr(sampling, "AGAIN_S", 0.0)
    look([session])
    assert found_before(session) == 5
    first = session.sample
    look([session])  # nothing was played since
    assert session.sample is first


def test_a_session_that_a_verb_works_on_is_left_alone(local: LocalHost) -> None:
    session = local.create()
    local.play(session, 1)
    with session.verbs:
        look([session])
    assert session.sample is None


def test_a_session_whose_leaves_lie_elsewhere_is_not_sampled(local: LocalHost) -> None:
    """Its slot holds what it was when it was flattened last."""

    def leave(runner: ToySession) -> None:
        runner.tree["a"] = runner.tree["a"].clone()

    local.engine.misbehave = leave
    session = local.create()
    local.play(session, 1)
    look([session])
    assert session.sample is None


def test_an_engine_that_fails_to_show_its_state_stops_no_heartbeat(
    local: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = local.create("s-1"), local.create("s-2")
    for session in (broken, other):
        local.play(session, 1)

    def fail(runner: ToySession) -> None:
        raise RuntimeError("no tree today")

    assert broken.runner is not None
    monkeypatch.setattr(broken.runner, "state_tree", lambda: fail(broken.runner))  # type: ignore[arg-type]
    look([broken, other])
    assert (broken.sample, found_before(other)) == (None, 1)

"""The client library against a fleet in miniature: what `docs/gateway.md` promises, it keeps too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
from gateway_fakes import FakeFleet, Trouble, action, unmoved
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline import following, playing
from worldline.client import AsyncClient, Client, Play, Session
from worldline.errors import DataLoss, NotFound, SessionLost, TimedOut, WorldlineError, WrongState

FATAL: dict[Trouble, type[WorldlineError]] = {
    "closed": WrongState,
    "replaced": WrongState,
    "lost": SessionLost,
    "behind": DataLoss,
}
# A silent host is waited for by the library's own patience: see below.
SURVIVED: tuple[Trouble, ...] = tuple(each for each in get_args(Trouble) if each not in (*FATAL, "silent"))


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playing, "PAUSE_S", 0.01)
        patch.setattr(following, "SILENCE_S", 0.05)
        yield


@pytest.fixture(scope="module")
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def client(fleet: FakeFleet) -> Iterator[Client]:
    with Client(fleet.admission_address) as opened:
        yield opened


def steps(play: Play, blocks: int) -> list[bytes]:
    return [play.step(action(play.next_block, play.action_bytes)).readout for _ in range(blocks)]


@pytest.mark.parametrize("trouble", SURVIVED)
@pytest.mark.parametrize("at", [0, 3])
def test_goes_on_exactly(fleet: FakeFleet, client: Client, trouble: Trouble, at: int) -> None:
    fleet.begin({at: trouble})
    with client.play(client.place("any", "any", 1), patience_s=20) as play:
        assert steps(play, 6) == unmoved(6)
    assert not fleet.script, "the trouble did not happen"


@settings(max_examples=20, deadline=None)
@given(script=st.dictionaries(st.integers(0, 14), st.sampled_from(SURVIVED)), parts=st.integers(1, 5))
def test_any_run_of_trouble_also_in_parts(
    fleet: FakeFleet, client: Client, script: dict[int, Trouble], parts: int
) -> None:
    """Each part is played by a new Play that goes on where the last one ended."""
    fleet.begin(script)
    session = client.place("any", "any", 1)
    shown: list[bytes] = []
    for _ in range(parts):
        with client.play(session, patience_s=20, next_block=len(shown)) as play:
            shown += steps(play, 3)
    assert shown == unmoved(3 * parts)


@settings(max_examples=10, deadline=None)
@given(script=st.dictionaries(st.integers(0, 9), st.sampled_from(SURVIVED)))
def test_any_run_of_trouble_with_asyncio(fleet: FakeFleet, script: dict[int, Trouble]) -> None:
    async def played() -> list[bytes]:
        async with AsyncClient(fleet.admission_address) as client:
            async with await client.play(await client.place("any", "any", 1), patience_s=20) as play:
                return [(await play.step(action(play.next_block, play.action_bytes))).readout for _ in range(10)]

    fleet.begin(script)
    assert asyncio.run(played()) == unmoved(10)


@pytest.mark.parametrize(("trouble", "kind"), FATAL.items())
def test_stops_where_the_session_is_over(
    fleet: FakeFleet, client: Client, trouble: Trouble, kind: type[WorldlineError]
) -> None:
    fleet.begin({3: trouble})
    with client.play(client.place("any", "any", 1), patience_s=20) as play:
        assert steps(play, 3) == unmoved(3)
        with pytest.raises(kind):
            steps(play, 1)


def test_a_step_that_timed_out_is_made_again(fleet: FakeFleet, client: Client) -> None:
    fleet.begin({2: "silent"})
    with client.play(client.place("any", "any", 1), patience_s=0.4) as play:
        assert steps(play, 2) == unmoved(2)
        with pytest.raises(TimedOut):
            steps(play, 1)
        with pytest.raises(WrongState, match="its own action"):
            play.step(b"xyz")
        assert steps(play, 2) == unmoved(4)[2:]
        play.close()
        with pytest.raises(WrongState, match="closed"):
            steps(play, 1)


def test_a_play_is_closed_while_it_waits(fleet: FakeFleet, client: Client) -> None:
    fleet.begin({1: "silent"})
    play = client.play(client.place("any", "any", 1), patience_s=86_400)
    assert steps(play, 1) == unmoved(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(steps, play, 1)
        pause = threading.Event()
        while fleet.script:
            pause.wait(0.005)
        play.close()
        with pytest.raises(WrongState, match="closed"):
            waiting.result(20)
    play.close()


def test_a_step_that_timed_out_is_made_again_with_asyncio(fleet: FakeFleet) -> None:
    async def played() -> list[bytes]:
        async with AsyncClient(fleet.admission_address) as client:
            async with await client.play(await client.place("any", "any", 1), patience_s=0.4) as play:
                with pytest.raises(TimedOut):
                    await play.step(action(0, 3))
                return [(await play.step(action(index, 3))).readout for index in range(2)]

    fleet.begin({0: "silent"})
    assert asyncio.run(played()) == unmoved(2)


def test_a_session_that_nobody_knows_is_not_waited_for(fleet: FakeFleet, client: Client) -> None:
    """Its host and admission say so: a patience of a day changes nothing."""
    fleet.begin({})
    fleet.unknown = True
    with pytest.raises(NotFound):
        client.play(Session("s-1", "token", fleet.address), patience_s=86_400)

    async def opened() -> list[str]:
        async with AsyncClient(fleet.admission_address) as other:
            with pytest.raises(NotFound):
                await other.play(Session("s-1", "token", fleet.address), patience_s=86_400)
            return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(opened()) == [], "a play that did not open leaves nothing running"

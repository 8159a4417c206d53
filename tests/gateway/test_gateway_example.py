"""The gateway example against a fleet in miniature: no action and no frame lost or doubled, whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import gateway
import pytest
from gateway import Ended, Gateway
from gateway_fakes import FakeFleet, Trouble, action, unmoved
from hypothesis import given, settings
from hypothesis import strategies as st

FATAL: tuple[Trouble, ...] = ("closed", "replaced", "lost", "behind")
SURVIVED: tuple[Trouble, ...] = tuple(trouble for trouble in get_args(Trouble) if trouble not in FATAL)


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway, "RETRY_S", 0.01)
        patch.setattr(gateway, "QUIET_S", 0.3)
        yield


@pytest.fixture(scope="module")
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.stop()


def _place(fleet: FakeFleet) -> Gateway:
    return Gateway(fleet.admission_address, "any", "any", 1)


def _play(fleet: FakeFleet, blocks: int) -> list[bytes]:
    placed = _place(fleet)
    played = list(placed.blocks(blocks, action))
    assert [block.block_index for block in played] == list(range(blocks))
    placed.close()
    return [block.readout for block in played]


@pytest.mark.parametrize("trouble", [None, *SURVIVED])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_goes_on_exactly(fleet: FakeFleet, trouble: Trouble | None, at: int) -> None:
    fleet.begin({} if trouble is None else {at: trouble})
    assert _play(fleet, 8) == unmoved(8)
    assert not fleet.script, "the trouble did not happen"
    assert fleet.closed


@settings(max_examples=25, deadline=None)
@given(script=st.dictionaries(st.integers(0, 19), st.sampled_from([each for each in SURVIVED if each != "silent"])))
def test_any_run_of_trouble(fleet: FakeFleet, script: dict[int, Trouble]) -> None:
    fleet.begin(script)
    assert _play(fleet, 20) == unmoved(20)


def test_blocks_can_be_asked_for_in_parts(fleet: FakeFleet) -> None:
    fleet.begin({4: "move-after", 6: "lose"})
    placed = _place(fleet)
    played = [block.readout for count in (3, 1, 5) for block in placed.blocks(count, action)]
    placed.close()
    assert played == unmoved(9)


@pytest.mark.parametrize("trouble", FATAL)
def test_stops_where_the_session_is_over(fleet: FakeFleet, trouble: Trouble) -> None:
    fleet.begin({5: trouble})
    placed = _place(fleet)
    shown: list[bytes] = []
    with pytest.raises(Ended):
        shown.extend(block.readout for block in placed.blocks(9, action))
    assert shown == unmoved(5)


def test_waits_for_admission_and_places_once(fleet: FakeFleet) -> None:
    fleet.begin({2: "gone"})
    fleet.admission_away = 2
    placed = _place(fleet)
    assert len(fleet.placed) == 1
    fleet.admission_away = 2
    assert [block.readout for block in placed.blocks(4, action)] == unmoved(4)


def test_gives_up_in_the_end(fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.begin({})
    placed = _place(fleet)
    placed.address = "127.0.0.1:1"
    monkeypatch.setattr(fleet, "admission_away", sys.maxsize)
    monkeypatch.setattr(gateway, "GIVE_UP_S", 0.1)
    with pytest.raises(Ended, match="no new block"):
        list(placed.blocks(1, action))


def test_a_wrong_token_is_final(fleet: FakeFleet) -> None:
    fleet.begin({})
    placed = _place(fleet)
    placed._token = "wrong"
    with pytest.raises(Ended, match="wrong resume token"):
        list(placed.blocks(1, action))


def _run(fleet: FakeFleet) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, gateway.__file__, "--admission", fleet.admission_address, "--blocks", "10"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_from_the_command_line(fleet: FakeFleet) -> None:
    fleet.begin({3: "move", 6: "move-after"})
    ran = _run(fleet)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("block 9 crc ")
    assert "epoch 3" in lines[-1]
    assert fleet.closed


def test_the_command_line_says_why_it_stopped(fleet: FakeFleet) -> None:
    fleet.begin({3: "lost"})
    ran = _run(fleet)
    assert ran.returncode == 1
    assert "died with its host" in ran.stderr

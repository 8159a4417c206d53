"""What an open play asks for through silence, lost connections and moves; no stream, no clock, no network."""

from __future__ import annotations

import pytest

from worldline import errors
from worldline.crc import crc32
from worldline.errors import NotFound, SessionLost, TimedOut, Unavailable, WorldlineError, WrongState
from worldline.following import SILENCE_S, Answer, Ask, Close, Course, Following, Locate, Open, Sleep, Wait
from worldline.playing import PAUSE_S, Block, Send, Session
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import engine_host_service_pb2 as pb

PATIENCE_S = 60.0
GONE = Unavailable("the stream broke", reason="PEER_GONE")


class Clock:
    """Goes on only while a course waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Driver:
    """One course, taken by hand: `asks` is what it asks now."""

    def __init__(self, course: Course[Block] | Course[None]) -> None:
        self.course = course
        self.asks: Ask = next(self.course)

    def answer(self, answer: Answer = None) -> Ask:
        self.asks = self.course.send(answer)
        return self.asks

    def ends(self, answer: Answer = None) -> object:
        with pytest.raises(StopIteration) as over:
            self.course.send(answer)
        return over.value.value

    def fails(self, kind: type[WorldlineError], answer: Answer = None) -> WorldlineError:
        with pytest.raises(kind) as failed:
            self.course.send(answer)
        return failed.value


def opened(next_block: int = 0, epoch: int = 1) -> pb.PlayResponse:
    info = pb.SessionInfo(next_block=next_block, epoch=epoch)
    return pb.PlayResponse(opened=pb.PlayOpened(session=info, host_id=f"host-{epoch}", action_bytes=1))


def block(index: int) -> pb.PlayResponse:
    return pb.PlayResponse(
        block=pb.PlayBlock(block_index=index, epoch=1, frames=1, readout=b"f", readout_crc=crc32(b"f"))
    )


def at(address: str, epoch: int = 1) -> admission_pb.LocateSessionResponse:
    return admission_pb.LocateSessionResponse(session_id="s", host_id="h", public_address=address, epoch=epoch)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def play(clock: Clock) -> Following:
    return Following(
        Session("s", "token", "here:1"), with_state_crc=False, patience_s=PATIENCE_S, next_block=None, clock=clock
    )


@pytest.fixture
def stepping(play: Following) -> Driver:
    """Opened, has sent its first action, and waits for the block."""
    opening = Driver(play.opening())
    assert isinstance(opening.asks, Open)
    assert opening.asks.address == "here:1"
    assert opening.asks.first.open.session_id == "s"
    assert opening.answer() == Wait(SILENCE_S)
    assert opening.ends(opened()) is None
    step = Driver(play.step(b"a", connected=True))
    assert isinstance(step.asks, Send)
    assert step.asks.request.action.payload == b"a"
    assert step.answer() == Wait(SILENCE_S)
    return step


def test_a_block_is_acknowledged_and_given(stepping: Driver) -> None:
    asked = stepping.answer(block(0))
    assert isinstance(asked, Send)
    assert asked.request.ack.block_index == 0
    found = stepping.ends()
    assert isinstance(found, Block)
    assert found.index == 0


def test_silence_asks_admission_and_leaves_the_stream_open(stepping: Driver) -> None:
    assert stepping.answer(None) == Locate(30.0)
    assert stepping.answer(at("here:1")) == Wait(SILENCE_S)
    assert stepping.answer(None) == Locate(30.0)
    asked = stepping.answer(at("there:1", epoch=2))
    assert isinstance(asked, Open)
    assert asked.address == "there:1"


@pytest.mark.parametrize("answer", [Unavailable("restarting"), TimedOut("slow"), NotFound("not yet adopted")])
def test_an_admission_that_cannot_say_changes_nothing(stepping: Driver, answer: WorldlineError) -> None:
    stepping.answer(None)
    assert stepping.answer(answer) == Wait(SILENCE_S)


def test_a_broken_stream_is_opened_again_after_its_pause(stepping: Driver) -> None:
    assert stepping.answer(GONE) == Sleep(PAUSE_S)
    assert stepping.answer() == Locate(30.0)
    asked = stepping.answer(Unavailable("restarting"))
    assert isinstance(asked, Open)
    assert asked.address == "here:1"
    assert stepping.answer() == Wait(SILENCE_S)
    again = stepping.answer(opened())
    assert isinstance(again, Send)
    assert again.request.action.payload == b"a"


def test_a_session_still_arriving_is_waited_for_where_it_arrives(stepping: Driver) -> None:
    arriving = errors.WrongState("on its way", reason="SESSION_NOT_YET_LIVE", retry_after_s=0.02)
    assert stepping.answer(arriving) == Sleep(0.02)
    assert isinstance(stepping.answer(), Open)


def test_a_move_is_followed_and_the_action_sent_again(stepping: Driver, play: Following) -> None:
    moved = pb.PlayResponse(moved=pb.PlayMoved(public_address="there:1", epoch=2))
    asked = stepping.answer(moved)
    assert isinstance(asked, Open)
    assert asked.address == play.address == "there:1"
    stepping.answer()
    assert isinstance(stepping.answer(opened(epoch=2)), Send)
    assert play.player.moves == 1


@pytest.mark.parametrize(("broken", "unknown"), [(None, SessionLost("died")), (NotFound("gone"), NotFound("unknown"))])
def test_a_session_that_is_nowhere_ends_play(
    stepping: Driver, broken: WorldlineError | None, unknown: WorldlineError
) -> None:
    asked = stepping.answer(broken)
    if isinstance(asked, Sleep):
        stepping.answer()
    assert stepping.fails(type(unknown), unknown) is unknown


def test_an_error_of_admission_that_no_waiting_mends_ends_play(stepping: Driver) -> None:
    stepping.answer(None)
    stepping.fails(errors.NotAllowed, errors.NotAllowed("no"))


def test_patience_ends_and_the_same_action_goes_on_waiting(stepping: Driver, play: Following, clock: Clock) -> None:
    stepping.answer(None)
    clock.now_s += PATIENCE_S - 1
    assert stepping.answer(at("here:1")) == Wait(1.0)
    # No pause and no question outlasts what is left.
    assert stepping.answer(Unavailable("busy", retry_after_s=30.0)) == Sleep(1.0)
    assert stepping.answer() == Locate(1.0)
    assert isinstance(stepping.answer(at("here:1")), Open)
    clock.now_s += 1
    assert stepping.answer() == Close()
    assert stepping.fails(TimedOut).reason == "PLAY_TIMED_OUT"
    again = Driver(play.step(b"a", connected=False))
    assert isinstance(again.asks, Open)
    assert again.answer() == Wait(SILENCE_S)
    assert isinstance(again.answer(opened(next_block=1)), Send)


def test_a_closed_play_opens_nothing(stepping: Driver, play: Following) -> None:
    stepping.answer(GONE)
    play.closed = True
    assert stepping.fails(WrongState).reason == "PLAY_CLOSED"
    with pytest.raises(WrongState, match="closed"):
        next(play.step(b"b", connected=False))

"""The player's protocol against a host that moves, dies, repeats and lies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import errors
from worldline.crc import crc32
from worldline.errors import BadRequest, DataLoss, Unavailable, WorldlineError, WrongState
from worldline.playing import Deliver, Output, Player, Reconnect, Send, Session, ends_play, pause_s
from worldline.v1 import engine_host_service_pb2 as pb

SESSION = Session("s", "token", "here:1")
REPLAY = Send(pb.PlayRequest(replay=pb.PlayReplay()))


class World:
    """One session that lives on one host at a time and plays a block exactly once."""

    def __init__(self) -> None:
        self.next_block = 0
        self.epoch = 1
        self.acked = -1
        self.played: list[bytes] = []

    def opened(self) -> pb.PlayResponse:
        info = pb.SessionInfo(next_block=self.next_block, epoch=self.epoch)
        return pb.PlayResponse(opened=pb.PlayOpened(session=info, host_id=f"host-{self.epoch}", action_bytes=1))

    def block(self, index: int, *, replayed: bool = False) -> pb.PlayResponse:
        data = b"frame" + self.played[index]
        return pb.PlayResponse(
            block=pb.PlayBlock(
                block_index=index, epoch=self.epoch, frames=1, readout=data, readout_crc=crc32(data), replayed=replayed
            )
        )

    def take(self, request: pb.PlayRequest) -> list[pb.PlayResponse]:
        kind = request.WhichOneof("message")
        if kind == "ack":
            self.acked = max(self.acked, request.ack.block_index)
        elif kind == "replay" and self.next_block:
            return [self.block(self.next_block - 1, replayed=True)]
        elif kind == "action" and request.action.block_index == self.next_block and self.acked == self.next_block - 1:
            self.played.append(request.action.payload)
            self.next_block += 1
            return [self.block(self.next_block - 1)]
        return []


@given(st.lists(st.sampled_from(["play", "lose_action", "lose_block", "move", "move_after_block"]), max_size=30))
def test_no_action_and_no_block_is_lost_or_doubled(steps: list[str]) -> None:
    world, player = World(), Player(SESSION)
    delivered: list[bytes] = []

    def run(outputs: list[Output], lose: str = "") -> bool:
        """Carry outputs to the world and its answers back; False if the stream broke."""
        for output in outputs:
            if isinstance(output, Deliver):
                delivered.append(output.block.readout)
            elif isinstance(output, Send):
                is_action = output.request.WhichOneof("message") == "action"
                if is_action and lose == "action":
                    return False
                for response in world.take(output.request):
                    if lose == "block":
                        return False
                    if not run(player.receive(response)):
                        return False
        return True

    def reconnect() -> None:
        assert player.open().open.resume_token == "token"
        assert run(player.receive(world.opened()))

    reconnect()
    acted: list[bytes] = []
    for step in steps:
        action = bytes([len(acted)])
        acted.append(action)
        outputs = player.act(action)
        if step in ("lose_action", "lose_block"):
            run(outputs, lose=step.removeprefix("lose_"))
            reconnect()
        elif step.startswith("move"):
            run(outputs, lose="block" if step == "move_after_block" else "action")
            world.epoch += 1
            world.acked = -1 if world.next_block == 0 else world.acked
            moved = pb.PlayMoved(host_id="b", public_address="there:2", epoch=world.epoch)
            assert player.receive(pb.PlayResponse(moved=moved)) == [Reconnect("there:2")]
            reconnect()
        else:
            assert run(outputs)
        assert len(delivered) == len(acted)
    assert world.played == acted
    assert delivered == [b"frame" + action for action in acted]


def opened_player(at: int = 0, epoch: int = 1) -> Player:
    player = Player(SESSION)
    info = pb.SessionInfo(next_block=at, epoch=epoch)
    player.receive(pb.PlayResponse(opened=pb.PlayOpened(session=info)))
    return player


def test_a_world_that_was_rewound_is_not_played_on() -> None:
    player = opened_player(at=5)
    with pytest.raises(DataLoss, match="had block 4 last"):
        player.receive(pb.PlayResponse(opened=pb.PlayOpened(session=pb.SessionInfo(next_block=3, epoch=1))))


def test_an_older_epoch_is_not_played_on() -> None:
    player = opened_player(epoch=4)
    with pytest.raises(DataLoss, match="epoch 3"):
        player.receive(pb.PlayResponse(opened=pb.PlayOpened(session=pb.SessionInfo(epoch=3))))


def test_a_block_nobody_asked_for() -> None:
    with pytest.raises(DataLoss):
        opened_player().receive(pb.PlayResponse(block=pb.PlayBlock(block_index=9)))


def test_a_damaged_readout() -> None:
    player = opened_player()
    player.act(b"x")
    damaged = pb.PlayResponse(block=pb.PlayBlock(block_index=0, readout=b"abc", readout_crc=1))
    assert player.receive(damaged) == [REPLAY]
    with pytest.raises(DataLoss, match="damaged"):
        player.receive(damaged)


def test_one_action_at_a_time() -> None:
    player = opened_player()
    player.act(b"x")
    with pytest.raises(WrongState):
        player.act(b"y")
    # The same one goes on waiting: it is sent again, which is always safe.
    assert player.act(b"x") == [Send(pb.PlayRequest(action=pb.PlayAction(block_index=0, payload=b"x")))]


def test_end_says_why() -> None:
    with pytest.raises(WrongState, match="REPLACED"):
        opened_player().receive(pb.PlayResponse(ended=pb.PlayEnded(reason="REPLACED")))


@pytest.mark.parametrize("reason", ["DRAINING", "FENCED"])
def test_a_host_that_ends_is_not_the_end_of_the_session(reason: str) -> None:
    with pytest.raises(Unavailable, match=reason) as caught:
        opened_player().receive(pb.PlayResponse(ended=pb.PlayEnded(reason=reason)))
    assert not ends_play(caught.value)


def test_a_new_player_goes_on_where_the_last_one_ended() -> None:
    """Block 5 was shown last. It resumes with 6, whether the host has played that or not, and nowhere else."""
    for at in range(10):
        player = Player(SESSION, next_block=6)
        opened = pb.PlayResponse(opened=pb.PlayOpened(session=pb.SessionInfo(next_block=at, epoch=1)))
        if at not in (6, 7):
            with pytest.raises(DataLoss):
                player.receive(opened)
            continue
        player.receive(opened)
        assert player.next_block == 6
        wanted = REPLAY if at == 7 else Send(pb.PlayRequest(action=pb.PlayAction(block_index=6, payload=b"x")))
        assert player.act(b"x") == [wanted]
        # A stream that breaks meanwhile changes nothing.
        assert wanted in player.receive(opened)
        delivered = player.receive(pb.PlayResponse(block=pb.PlayBlock(block_index=6, readout_crc=crc32(b""))))
        assert [output.block.index for output in delivered if isinstance(output, Deliver)] == [6]
        assert player.next_block == 7
    with pytest.raises(BadRequest):
        Player(SESSION, next_block=-1)


@given(first=st.integers(0, 3), unseen=st.booleans(), breaks=st.integers(0, 3))
def test_resuming_shows_each_block_once(first: int, unseen: bool, breaks: int) -> None:
    world = World()
    world.played, world.next_block = [bytes([index]) for index in range(first + unseen)], first + unseen
    world.acked = first - 1
    player = Player(SESSION, next_block=first)
    for _ in range(breaks + 1):
        for output in player.receive(world.opened()):
            assert isinstance(output, Send)
            assert not world.take(output.request)
    (asked,) = player.act(b"now")
    assert isinstance(asked, Send)
    (answer,) = world.take(asked.request)
    _, shown = player.receive(answer)
    assert isinstance(shown, Deliver)
    assert shown.block.index == first
    assert shown.block.readout == b"frame" + (bytes([first]) if unseen else b"now")


# docs/gateway.md, "How a stream ends": what ends play, and what is tried again.
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (errors.SessionLost("x"), True),
        (errors.NotFound("x", reason="SESSION_CLOSED"), True),
        (errors.NotFound("x", reason="UNKNOWN_SESSION"), False),
        (errors.WrongState("x", reason="PLAY_CLOSED"), True),
        (errors.WrongState("x", reason="PLAY_REPLACED"), True),
        (errors.WrongState("x", reason="SESSION_GONE"), False),
        (errors.Mismatch("x", reason="LAYOUT_DRIFT"), True),
        (errors.Unmovable("x"), True),
        (errors.Owned("x"), False),
        (errors.Exhausted("x", reason="STREAMS"), False),
        (errors.Internal("x"), False),
        (errors.Cancelled("x"), False),
        (errors.TimedOut("x"), False),
        (errors.Unavailable("x"), False),
        (errors.Unauthenticated("x"), True),
        (errors.NotAllowed("x"), True),
        (errors.BadRequest("x"), True),
        (errors.Unsupported("x"), True),
        (errors.DataLoss("x"), True),
    ],
)
def test_which_errors_end_play(error: WorldlineError, ends: bool) -> None:
    assert ends_play(error) is ends


def test_the_pause_is_the_hosts_or_ours() -> None:
    assert pause_s(errors.Exhausted("x", retry_after_s=3.0)) == 3.0
    assert pause_s(errors.Exhausted("x", retry_after_s=0.0)) == 0.0
    assert pause_s(errors.Exhausted("x")) == 0.5

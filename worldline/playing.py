"""The player's half of the play protocol, without I/O: what came in decides what goes out.

No action and no block is lost or doubled, whatever the network and the session's moves do: an action stays pending
until its block was delivered, and after each reconnect the host's own block index tells whether to send it again or to
ask for the readout again. `docs/gateway.md` says the same for other languages.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldline.crc import crc32
from worldline.errors import (
    BadRequest,
    Cancelled,
    DataLoss,
    Exhausted,
    Internal,
    Mismatch,
    NotFound,
    Owned,
    Precondition,
    SessionLost,
    TimedOut,
    Unavailable,
    Unmovable,
    WorldlineError,
    WrongState,
)
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import engine_host_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Session:
    """A session to play: its id, its secret and where it was last known to live (host:port)."""

    session_id: str
    resume_token: str
    address: str
    host_id: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: `readout` is frames x height x width x channels bytes. `state_crc` is None unless asked for."""

    index: int
    epoch: int
    host_id: str
    frames: int
    height: int
    width: int
    channels: int
    readout: bytes
    readout_crc: int
    state_crc: int | None
    replayed: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send this on the open stream."""

    request: pb.PlayRequest


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give this block to the player."""

    block: Block


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the stream and open one to this address."""

    address: str


Output = Send | Deliver | Reconnect

# Pause between tries where the host names none, in seconds.
PAUSE_S = 0.5
# Ends of a stream that say nothing of the session: it may live elsewhere.
_HOST_ENDS = ("DRAINING", "FENCED")
_OVER = ("SESSION_CLOSED", "PLAY_CLOSED", "PLAY_REPLACED")
_NOT_NOW = (Unavailable, NotFound, TimedOut, Cancelled, Precondition, Owned, Exhausted, Internal)


def ends_play(error: WorldlineError) -> bool:
    """Whether a stream that ended so is the end of play: asking again would be answered alike (docs/gateway.md)."""
    if isinstance(error, SessionLost | Mismatch | Unmovable) or error.reason in _OVER:
        return True
    return not isinstance(error, _NOT_NOW)


def pause_s(error: WorldlineError) -> float:
    """Seconds to wait after a stream that ended so, before the next try."""
    return PAUSE_S if error.retry_after_s is None else error.retry_after_s


def still_arriving(error: WorldlineError) -> bool:
    """Whether the host says that the session is on its way there: the next try goes to the same host."""
    return error.reason == "SESSION_NOT_YET_LIVE"


def is_gone(unknown: NotFound, error: WorldlineError | None) -> bool:
    """Whether a session that admission does not know is nowhere.

    Not so where only admission lacks it: it may not have placed it, or not have adopted it yet. `error` is how the
    stream to the session's host ended, None if it has not.
    """
    return isinstance(unknown, SessionLost) or isinstance(error, NotFound)


class Player:
    """One session's play. Feed it what the stream gives; do what it says, in order.

    `next_block`: the block to show next, where an earlier player ended; None begins wherever the session is.
    """

    def __init__(self, session: Session, *, with_state_crc: bool = False, next_block: int | None = None) -> None:
        if next_block is not None and next_block < 0:
            raise BadRequest(f"next_block {next_block} is below 0", violations={"next_block": "at least 0"})
        self.session = session
        self.host_id = session.host_id
        self.epoch = 0
        self.moves = 0
        self.action_bytes = 0
        self._with_state_crc = with_state_crc
        self._delivered: int | None = None if next_block is None else next_block - 1
        self._pending: tuple[int, bytes] | None = None
        # The block to show next was played for an earlier player, who never got it.
        self._played_unseen = False
        self._resuming = next_block is not None
        self._damaged: int | None = None

    @property
    def next_block(self) -> int:
        """Index of the block the next action is for; known once a stream was opened."""
        if self._delivered is None:
            raise WrongState("the session has not been opened yet")
        return self._delivered + 1

    def open(self) -> pb.PlayRequest:
        """First message of every stream."""
        return pb.PlayRequest(
            open=pb.PlayOpen(
                session_id=self.session.session_id,
                resume_token=self.session.resume_token,
                with_state_crc=self._with_state_crc,
            )
        )

    def act(self, action: bytes) -> list[Output]:
        """The player acts. One action may be pending at a time; the same one again goes on waiting for its block."""
        if self._pending is not None:
            if self._pending[1] != action:
                raise WrongState(
                    f"block {self._pending[0]} has not been delivered yet: act again with its own action to wait for it"
                )
            return [] if self._played_unseen else [self._action()]
        self._pending = (self.next_block, action)
        return [self._replay() if self._played_unseen else self._action()]

    def receive(self, response: pb.PlayResponse) -> list[Output]:
        """Something came in.

        Raises:
            DataLoss: the host is at another block than this player's history allows, or a readout's CRC is wrong twice.
            Unavailable: the host ends; the session may live elsewhere.
            WrongState: the stream ended because the session was closed or another player took it.
        """
        kind = response.WhichOneof("message")
        if kind == "opened":
            return self._opened(response.opened)
        if kind == "block":
            return self._block(response.block)
        if kind == "moved":
            if response.moved.epoch <= self.epoch:
                raise DataLoss(
                    f"moved to epoch {response.moved.epoch}, but epoch {self.epoch} was played",
                    reason="REWOUND",
                )
            self.moves += 1
            return [Reconnect(response.moved.public_address)]
        if kind == "ended" and response.ended.reason in _HOST_ENDS:
            raise Unavailable(
                f"{self.host_id} serves session {self.session.session_id} no more: {response.ended.reason}",
                reason=f"PLAY_{response.ended.reason}",
            )
        if kind == "ended":
            raise WrongState(
                f"play of session {self.session.session_id} ended: {response.ended.reason}",
                reason=f"PLAY_{response.ended.reason}",
            )
        raise WorldlineError("the host sent an empty message")

    def relocated(self, where: admission_pb.LocateSessionResponse | None, address: str, *, broken: bool) -> str | None:
        """Where to open the next stream; None: go on waiting on the open one.

        `where` is what admission answered, None if it could not say. `broken`: the stream to `address` is over, and not
        only silent.

        Raises:
            DataLoss: admission knows only an older epoch than was played.
        """
        if where is not None and where.epoch < self.epoch:
            raise DataLoss(f"admission knows epoch {where.epoch}, but epoch {self.epoch} was played", reason="REWOUND")
        if where is not None and where.public_address != address:
            return where.public_address
        return address if broken else None

    def _opened(self, opened: pb.PlayOpened) -> list[Output]:
        self.host_id = opened.host_id
        self.action_bytes = opened.action_bytes
        at, epoch = opened.session.next_block, opened.session.epoch
        if epoch < self.epoch:
            raise DataLoss(f"the session is at epoch {epoch}, but was played at {self.epoch}", reason="REWOUND")
        self.epoch = epoch
        if self._delivered is None:
            self._delivered = at - 1
        if self._resuming:
            self._resuming = False
            self._played_unseen = at == self._delivered + 2
        out: list[Output] = []
        if at and self._delivered == at - 1:
            out.append(Send(pb.PlayRequest(ack=pb.PlayAck(block_index=at - 1))))
        if self._pending is not None and self._pending[0] == at:
            out.append(self._action())
        elif self._pending is not None and self._pending[0] == at - 1:
            out.append(self._replay())
        elif self._pending is not None or at != self._delivered + (2 if self._played_unseen else 1):
            raise DataLoss(
                f"the host is at block {at}, but this player has had block {self._delivered} last",
                reason="REWOUND" if at <= self._delivered else "PLAYED_BY_ANOTHER",
            )
        return out

    def _block(self, block: pb.PlayBlock) -> list[Output]:
        if self._pending is None or block.block_index != self._pending[0]:
            if self._delivered is not None and block.block_index == self._delivered:
                return []  # a replay that was asked twice
            raise DataLoss(f"block {block.block_index} came, which was not asked for", reason="UNEXPECTED_BLOCK")
        if crc32(block.readout) != block.readout_crc:
            if self._damaged != block.block_index:
                self._damaged = block.block_index
                return [self._replay()]
            raise DataLoss(
                f"the readout of block {block.block_index} was damaged on its way, twice", reason="READOUT_DAMAGED"
            )
        self._delivered = block.block_index
        self._pending = None
        self._played_unseen = False
        return [
            Send(pb.PlayRequest(ack=pb.PlayAck(block_index=block.block_index))),
            Deliver(
                Block(
                    index=block.block_index,
                    epoch=block.epoch,
                    host_id=self.host_id,
                    frames=block.frames,
                    height=block.height,
                    width=block.width,
                    channels=block.channels,
                    readout=block.readout,
                    readout_crc=block.readout_crc,
                    state_crc=block.state_crc if block.HasField("state_crc") else None,
                    replayed=block.replayed,
                )
            ),
        ]

    @staticmethod
    def _replay() -> Send:
        return Send(pb.PlayRequest(replay=pb.PlayReplay()))

    def _action(self) -> Send:
        if self._pending is None:
            raise WrongState("no action is pending")
        index, action = self._pending
        return Send(pb.PlayRequest(action=pb.PlayAction(block_index=index, payload=action)))

"""How an open play gets its next block through moves, silence and lost connections, without I/O.

A `Course` is a generator that asks for one thing after another and is sent each answer; both clients, the one for
threads and the one for asyncio, do what it asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from worldline.errors import NotFound, TimedOut, Unavailable, WorldlineError, WrongState
from worldline.playing import (
    Block,
    Deliver,
    Output,
    Player,
    Reconnect,
    Send,
    Session,
    ends_play,
    is_gone,
    pause_s,
    still_arriving,
)
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import engine_host_service_pb2 as pb

# A host that is silent this long may have lost the session: admission is asked where it lives.
SILENCE_S = 2.0
LOCATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Open:
    """Close the stream, if one is open, and open one to `address` that begins with `first`."""

    address: str
    first: pb.PlayRequest


@dataclass(frozen=True, slots=True)
class Close:
    """Close the stream."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the stream. Answer: what came, the error that it ended with, or None after `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for nothing."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask admission where the session lives. Answer: what it said, or the error."""

    timeout_s: float


Ask = Open | Close | Send | Wait | Sleep | Locate
Answer = pb.PlayResponse | admission_pb.LocateSessionResponse | WorldlineError | None
T = TypeVar("T")
Course = Generator[Ask, Answer, T]


class Following:
    """One open play of a session. `patience_s` bounds each wait for a block, over all reconnects.

    `address`: the host that was asked last, host:port.
    """

    def __init__(
        self,
        session: Session,
        *,
        with_state_crc: bool,
        patience_s: float,
        next_block: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.player = Player(session, with_state_crc=with_state_crc, next_block=next_block)
        self.address = session.address
        self.closed = False
        self._patience_s = patience_s
        self._clock = clock

    def opening(self) -> Course[None]:
        """Open the first stream. Raises as `step`."""
        yield self._open()
        yield from self._run(until_opened=True)

    def step(self, action: bytes, *, connected: bool) -> Course[Block]:
        """Act, and get the block. `connected`: a stream is open.

        Raises:
            SessionLost: the session died with its host.
            TimedOut: no block for `patience_s`; the same action again goes on waiting for the same block.
            DataLoss: the world was rewound or damaged; play does not go on.
            WrongState: the play was closed.
        """
        self._require_open()
        outputs = self.player.act(action)
        if connected:
            yield from self._do(outputs)
        else:
            # What is pending is sent once the stream has opened.
            yield self._open()
        block = yield from self._run()
        if block is None:
            raise TimedOut("the stream opened, but no block came")
        return block

    def _require_open(self) -> None:
        if self.closed:
            raise WrongState("this play was closed; open another one", reason="PLAY_CLOSED")

    def _open(self) -> Open:
        return Open(self.address, self.player.open())

    def _run(self, *, until_opened: bool = False) -> Course[Block | None]:
        deadline_s = self._clock() + self._patience_s
        while True:
            self._require_open()
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                # The next step begins with a stream of its own.
                yield Close()
                raise TimedOut(
                    f"session {self.player.session.session_id}: no answer for {self._patience_s} s, last from "
                    f"{self.address}",
                    reason="PLAY_TIMED_OUT",
                )
            got = yield Wait(min(left_s, SILENCE_S))
            if not isinstance(got, pb.PlayResponse | WorldlineError):
                yield from self._relocate(left_s, None)
                continue
            try:
                if isinstance(got, WorldlineError):
                    raise got
                outputs = self.player.receive(got)
            except WorldlineError as error:
                if ends_play(error):
                    raise
                yield Sleep(min(pause_s(error), left_s))
                yield from self._relocate(left_s, error)
                continue
            block = yield from self._do(outputs)
            if block is not None or (until_opened and got.WhichOneof("message") == "opened"):
                return block

    def _do(self, outputs: Sequence[Output]) -> Course[Block | None]:
        delivered: Block | None = None
        for output in outputs:
            if isinstance(output, Deliver):
                delivered = output.block
            elif isinstance(output, Reconnect):
                self.address = output.address
                yield self._open()
            else:
                yield output
        return delivered

    def _relocate(self, left_s: float, error: WorldlineError | None) -> Course[None]:
        """Ask admission where the session is, and open a stream there. No `error`: its host is only silent."""
        self._require_open()
        where: admission_pb.LocateSessionResponse | None = None
        if error is None or not still_arriving(error):
            where = yield from self._located(left_s, error)
        address = self.player.relocated(where, self.address, broken=error is not None)
        if address is not None:
            self.address = address
            yield self._open()

    def _located(
        self, left_s: float, error: WorldlineError | None
    ) -> Course[admission_pb.LocateSessionResponse | None]:
        """Raises NotFound: neither the session's host nor admission knows it. SessionLost: it died with its host."""
        answer = yield Locate(min(left_s, LOCATE_TIMEOUT_S))
        if isinstance(answer, admission_pb.LocateSessionResponse):
            return answer
        if isinstance(answer, NotFound):
            if is_gone(answer, error):
                raise answer
        elif isinstance(answer, WorldlineError) and not isinstance(answer, Unavailable | TimedOut):
            raise answer
        return None  # admission may be restarting


class Shown:
    """What an open play, of either client, shows of its player."""

    _following: Following

    @property
    def host_id(self) -> str:
        """Engine host that plays the session now."""
        return self._following.player.host_id

    @property
    def epoch(self) -> int:
        """Epoch of ownership."""
        return self._following.player.epoch

    @property
    def next_block(self) -> int:
        """Index of the block the next action is for."""
        return self._following.player.next_block

    @property
    def action_bytes(self) -> int:
        """Bytes of one action; 0 if the engine takes any size."""
        return self._following.player.action_bytes

    @property
    def moves(self) -> int:
        """Moves that were followed."""
        return self._following.player.moves

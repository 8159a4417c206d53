"""One player's stream: what it asked for, and what waits to be sent. Bounded on both sides."""

from __future__ import annotations

import threading
from collections import deque

from worldline.errors import BadRequest, Exhausted, WorldlineError
from worldline.v1 import engine_host_service_pb2 as pb

MAX_AHEAD = 64
MAX_ACTION_BYTES = 65_536
MAX_WAITING = 64


class Stream:
    """Actions by block index, and responses in order. Its owner, the session, guards `actions` and `replay_wanted`."""

    def __init__(self, *, with_state_crc: bool) -> None:
        self.with_state_crc = with_state_crc
        self.actions: dict[int, bytes] = {}
        self.replay_wanted = False
        self._waiting: deque[pb.PlayResponse] = deque()
        self._error: WorldlineError | None = None
        self._ended = False
        self._cond = threading.Condition()

    def take_action(self, block_index: int, payload: bytes, next_block: int, action_bytes: int) -> None:
        """Keep an action until its block is played; one for a block already played is ignored.

        Raises:
            BadRequest: not of the engine's size, or too far ahead.
        """
        if len(payload) > MAX_ACTION_BYTES or (action_bytes and len(payload) != action_bytes):
            wanted = f"{action_bytes}" if action_bytes else f"at most {MAX_ACTION_BYTES}"
            raise BadRequest(
                f"an action of {len(payload)} bytes; {wanted} are needed",
                violations={"action.payload": f"{wanted} bytes"},
            )
        if block_index >= next_block + MAX_AHEAD:
            raise BadRequest(
                f"an action for block {block_index}, but block {next_block} is next: at most {MAX_AHEAD} ahead",
                violations={"action.block_index": f"below {next_block + MAX_AHEAD}"},
            )
        if block_index >= next_block:
            self.actions[block_index] = payload

    def push(self, response: pb.PlayResponse) -> None:
        """Send this when the player takes it. A player that takes nothing loses its stream."""
        with self._cond:
            if self._ended:
                return
            if len(self._waiting) >= MAX_WAITING:
                self._error = Exhausted(
                    f"{MAX_WAITING} messages wait for the player", reason="SLOW_PLAYER", retry_after_s=0.5
                )
                self._ended = True
            else:
                self._waiting.append(response)
            self._cond.notify_all()

    def finish(self, last: pb.PlayResponse | None = None, error: WorldlineError | None = None) -> None:
        """End the stream after what waits, with `last` or with `error`. Only the first end counts."""
        with self._cond:
            if self._ended:
                return
            if last is not None:
                self._waiting.append(last)
            self._error = error
            self._ended = True
            self._cond.notify_all()

    @property
    def ended(self) -> bool:
        """Whether nothing more will be sent than what waits."""
        return self._ended

    def next(self) -> pb.PlayResponse | None:
        """The next response, waiting for it; None at the end. Raises the error the stream ended with."""
        with self._cond:
            self._cond.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None


def ended(reason: str) -> pb.PlayResponse:
    """The last message of a stream whose session plays no more on it."""
    return pb.PlayResponse(ended=pb.PlayEnded(reason=reason))

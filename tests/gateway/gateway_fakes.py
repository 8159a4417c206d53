"""A fleet in miniature for the gateway example: admission and two engine hosts over real gRPC, with scripted trouble.

The session is a hash chain over its actions, so one action lost, doubled or out of order changes every later readout.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import zlib
from collections.abc import Iterator
from typing import Literal

import grpc

from worldline.errors import (
    Exhausted,
    Internal,
    NotFound,
    Owned,
    SessionLost,
    TimedOut,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from worldline.rpc import Server
from worldline.settings import ServiceSettings, load
from worldline.v1 import admission_service_pb2 as admission_pb2
from worldline.v1 import admission_service_pb2_grpc as admission_grpc
from worldline.v1 import engine_host_service_pb2 as host_pb2
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc
from worldline.v1 import state_pb2

Trouble = Literal[
    "move",  # before the block is played: its action goes unplayed
    "move-after",  # after it was played and before its readout is sent
    "move-early",  # as "move", and the destination is not yet live when the player comes
    "break",  # the stream fails before the block is played
    "lose",  # the block is played, then the stream fails without its readout
    "gone",  # the session moves, and the stream fails instead of saying so
    "drop-end",  # the stream ends well without a word
    "corrupt",  # the readout is damaged on its way, once
    "silent",  # nothing more comes, though the connection is open
    "closed",
    "replaced",
    "draining",
    "fenced",
    "full",
    "owned",
    "failed",
    "internal",
    "slow",
    "lost",  # the host dies with the session
    "behind",  # the host comes back with an older state
]
ACTION_BYTES = 3
TOKEN = "token"


def action(index: int, size: int) -> bytes:
    """The action that tests play."""
    return index.to_bytes(size, "big")


def unmoved(blocks: int) -> list[bytes]:
    """Readouts of a session that never met trouble."""
    readout, readouts = b"", []
    for index in range(blocks):
        readout = hashlib.sha256(readout + action(index, ACTION_BYTES)).digest()
        readouts.append(readout)
    return readouts


class FakeFleet:
    """Admission and two hosts with one session. `script`: block index -> what goes wrong there, once each."""

    def __init__(self) -> None:
        self.script: dict[int, Trouble] = {}
        self.admission_away = 0  # calls to admission that still fail
        self.not_yet_live = 0  # opens that still come too early
        self.placed: set[str] = set()
        self.moves = 0
        self.closed = False
        self.unknown = False  # neither host nor admission has heard of the session
        self._lock = threading.Lock()
        self._reset()
        self._admission = Server(load(ServiceSettings), ())
        admission_grpc.add_AdmissionServiceServicer_to_server(_Admission(self), self._admission.grpc)  # type: ignore[abstract]
        self.admission_address = self._admission.start()
        self.hosts: list[Server] = []
        for index in range(2):
            server = Server(load(ServiceSettings), ())
            host_grpc.add_EngineHostServiceServicer_to_server(_Host(self, index), server.grpc)  # type: ignore[abstract]
            server.start()
            self.hosts.append(server)

    def _reset(self) -> None:
        self.home = 0
        self.played = 0
        self.acknowledged = -1
        self.readout = b""
        self.lost = False

    @property
    def address(self) -> str:
        return self.hosts[self.home].address

    def begin(self, script: dict[int, Trouble]) -> None:
        """A fresh session and new trouble."""
        with self._lock:
            self._reset()
            self.script, self.moves, self.placed, self.closed = dict(script), 0, set(), False
            self.unknown = False

    def move(self) -> None:
        with self._lock:
            self.home, self.moves, self.acknowledged = 1 - self.home, self.moves + 1, -1

    def play(self, payload: bytes) -> None:
        assert len(payload) == ACTION_BYTES
        assert self.played == 0 or self.acknowledged >= self.played - 1, "played before the last block was acknowledged"
        self.readout = hashlib.sha256(self.readout + payload).digest()
        self.played += 1

    def block(self, *, damaged: bool = False, replayed: bool = False) -> host_pb2.PlayResponse:
        crc = zlib.crc32(self.readout) ^ damaged
        block = host_pb2.PlayBlock(
            block_index=self.played - 1, epoch=self.moves + 1, readout=self.readout, readout_crc=crc, replayed=replayed
        )
        return host_pb2.PlayResponse(block=block)

    def moved(self) -> host_pb2.PlayResponse:
        moved = host_pb2.PlayMoved(host_id=f"host-{self.home}", public_address=self.address, epoch=self.moves + 1)
        return host_pb2.PlayResponse(moved=moved)

    def stop(self) -> None:
        for server in (self._admission, *self.hosts):
            server.stop(0)


class _Admission(admission_grpc.AdmissionServiceServicer):
    def __init__(self, fleet: FakeFleet) -> None:
        self._fleet = fleet

    def _maybe_away(self) -> None:
        if self._fleet.admission_away > 0:
            self._fleet.admission_away -= 1
            raise Unavailable("admission starts again", retry_after_s=0.01)

    def PlaceSession(
        self, request: admission_pb2.PlaceSessionRequest, context: grpc.ServicerContext
    ) -> admission_pb2.PlaceSessionResponse:
        self._fleet.placed.add(request.request_id)
        self._maybe_away()
        session = host_pb2.SessionInfo(descriptor=state_pb2.SessionDescriptor(session_id="s-1"))
        return admission_pb2.PlaceSessionResponse(
            session=session, host_id="host-0", public_address=self._fleet.address, resume_token=TOKEN
        )

    def LocateSession(
        self, request: admission_pb2.LocateSessionRequest, context: grpc.ServicerContext
    ) -> admission_pb2.LocateSessionResponse:
        self._maybe_away()
        if self._fleet.lost:
            raise SessionLost("session s-1 died with its host", resource=("session", "s-1"))
        if self._fleet.unknown:
            raise NotFound("no such session", reason="UNKNOWN_SESSION", resource=("session", "s-1"))
        return admission_pb2.LocateSessionResponse(session_id="s-1", public_address=self._fleet.address)


class _Host(host_grpc.EngineHostServiceServicer):
    def __init__(self, fleet: FakeFleet, index: int) -> None:
        self._fleet = fleet
        self._index = index

    def CloseSession(
        self, request: host_pb2.CloseSessionRequest, context: grpc.ServicerContext
    ) -> host_pb2.CloseSessionResponse:
        self._fleet.closed = True
        return host_pb2.CloseSessionResponse()

    def Play(
        self, requests: Iterator[host_pb2.PlayRequest], context: grpc.ServicerContext
    ) -> Iterator[host_pb2.PlayResponse]:
        fleet = self._fleet
        opened = next(requests).open
        if opened.resume_token != TOKEN:
            raise Unauthenticated("wrong resume token")
        if fleet.lost or fleet.unknown:
            raise NotFound("no such session", resource=("session", "s-1"))
        if fleet.home != self._index:
            yield fleet.moved()
            return
        if fleet.not_yet_live > 0:
            fleet.not_yet_live -= 1
            raise Unavailable("not yet live", reason="SESSION_NOT_YET_LIVE", retry_after_s=0.01)
        info = host_pb2.SessionInfo(next_block=fleet.played)
        yield host_pb2.PlayResponse(
            opened=host_pb2.PlayOpened(session=info, host_id=f"host-{self._index}", action_bytes=ACTION_BYTES)
        )
        for request in requests:
            kind = request.WhichOneof("message")
            if kind == "ack":
                fleet.acknowledged = max(fleet.acknowledged, request.ack.block_index)
            elif kind == "replay":
                yield fleet.block(replayed=True)
            elif request.action.block_index == fleet.played:
                trouble = fleet.script.pop(fleet.played, None)
                yield from self._play(request.action.payload, trouble, context)
                if trouble not in (None, "corrupt"):
                    return

    def _play(
        self, payload: bytes, trouble: Trouble | None, context: grpc.ServicerContext
    ) -> Iterator[host_pb2.PlayResponse]:
        fleet = self._fleet
        match trouble:
            case None | "corrupt":
                fleet.play(payload)
                yield fleet.block(damaged=trouble == "corrupt")
            case "move" | "move-early":
                fleet.not_yet_live = 2 if trouble == "move-early" else 0
                fleet.move()
                yield fleet.moved()
            case "move-after":
                fleet.play(payload)
                fleet.move()
                yield fleet.moved()
            case "gone":
                fleet.move()
                raise Unavailable("the host stops")
            case "break":
                raise Unavailable("the host stops")
            case "lose":
                fleet.play(payload)
                raise Unavailable("the host stops")
            case "behind":
                fleet.played -= 2
                raise Unavailable("the host stops")
            case "lost":
                fleet.lost = True
                raise Unavailable("the host dies")
            case "silent":
                left: queue.SimpleQueue[None] = queue.SimpleQueue()
                context.add_callback(lambda: left.put(None))
                left.get()
            case "full":
                raise Exhausted("no stream is free", reason="STREAMS", retry_after_s=0.01)
            case "owned":
                raise Owned("a move has it", retry_after_s=0.01)
            case "failed":
                raise WrongState("not now", retry_after_s=0.01)
            case "internal":
                raise Internal("a bug", retry_after_s=0.01)
            case "slow":
                raise TimedOut("too late", retry_after_s=0.01)
            case "closed" | "replaced" | "draining" | "fenced":
                yield host_pb2.PlayResponse(ended=host_pb2.PlayEnded(reason=trouble.upper()))
            case "drop-end":
                return

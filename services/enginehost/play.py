"""A play stream: actions in, blocks out. One thread reads what the player sends; the call's own sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import grpc

from enginehost.host import Host
from enginehost.info import session_info
from enginehost.lifecycle import require_token
from enginehost.ownership import State
from enginehost.session import Moved, Session
from enginehost.source import moved_to
from enginehost.stream import Stream, ended
from enginehost.suspension import resume
from worldline.errors import BadRequest, Exhausted, TimedOut, Unavailable, WorldlineError
from worldline.move import require_id
from worldline.v1 import engine_host_service_pb2 as pb

OPEN_TIMEOUT_S = 5.0
_NOT_YET_S = 0.2


class _Reader:
    """Reads a player's requests: the first for the handler, those after `follow` into the stream."""

    def __init__(self, host: Host, requests: Iterator[pb.PlayRequest]) -> None:
        self._host = host
        self._requests = requests
        self._first: SimpleQueue[pb.PlayRequest | None] = SimpleQueue()
        self._attached: SimpleQueue[tuple[Session, Stream] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="play-reader", daemon=True)
        self._thread.start()

    def first(self) -> pb.PlayOpen:
        """The opening message. Raises BadRequest or TimedOut."""
        try:
            request = self._first.get(timeout=OPEN_TIMEOUT_S)
        except Empty:
            raise TimedOut(f"nothing came on the play stream for {OPEN_TIMEOUT_S:.0f} s", reason="NOT_OPENED") from None
        if request is None or request.WhichOneof("message") != "open":
            raise BadRequest("a play stream begins with `open`", violations={"open": "it has to come first"})
        return request.open

    def follow(self, session: Session, stream: Stream) -> None:
        """Read on, for this session."""
        self._attached.put((session, stream))

    def leave(self) -> None:
        """Nothing was opened."""
        self._attached.put(None)

    def _run(self) -> None:
        stream: Stream | None = None
        try:
            self._first.put(next(self._requests, None))
            attached = self._attached.get()
            if attached is None:
                return
            session, stream = attached
            for request in self._requests:
                _take(session, stream, request)
                self._host.scheduler.wake(session)
            stream.finish()
        except WorldlineError as error:
            if stream is not None:
                stream.finish(error=error)
        except Exception:
            # gRPC's way of saying that the call is over.
            self._first.put(None)
            if stream is not None:
                stream.finish()


def _take(session: Session, stream: Stream, request: pb.PlayRequest) -> None:
    kind = request.WhichOneof("message")
    with session.cond:
        copy = session.copy
        if session.stream is not stream or copy is None:
            return
        if kind == "action":
            action = request.action
            stream.take_action(action.block_index, action.payload, session.next_block, copy.preset.action_bytes)
        elif kind == "ack":
            if request.ack.block_index >= session.next_block:
                raise BadRequest(
                    f"block {request.ack.block_index} was acknowledged, but block {session.next_block} is next",
                    violations={"ack.block_index": "not played yet"},
                )
            session.acked = max(session.acked, request.ack.block_index)
        elif kind == "replay":
            stream.replay_wanted = session.next_block > 0
        else:
            raise BadRequest("a play stream is opened once; then come actions, acks and replays")


def play(host: Host, requests: Iterator[pb.PlayRequest], context: grpc.ServicerContext) -> Iterator[pb.PlayResponse]:
    """One player's stream, until it ends, is replaced, moves or the player leaves."""
    if not host.streams.acquire(blocking=False):
        raise Exhausted(
            f"engine host {host.host_id} has no play stream free",
            reason="STREAMS",
            violations={"rpc_threads": "all play streams are taken"},
            retry_after_s=1.0,
        )
    try:
        reader = _Reader(host, requests)
        try:
            opening = reader.first()
            session, stream = _open(host, opening)
        except BaseException:
            reader.leave()
            raise
        if isinstance(stream, Moved):
            reader.leave()
            yield moved_to(stream)
            return
        if not context.add_callback(stream.finish):
            stream.finish()
        reader.follow(session, stream)
        host.scheduler.wake(session)
        try:
            while (response := stream.next()) is not None:
                yield response
        finally:
            stream.finish()
            _detach(session, stream)
    finally:
        host.streams.release()


def _open(host: Host, opening: pb.PlayOpen) -> tuple[Session, Stream | Moved]:
    session = host.sessions.get(require_id(opening.session_id, "open.session_id"))
    if session.descriptor is None and session.copy is None:
        session.require_copy()
    require_token(session, opening.resume_token)
    if session.host_copy is not None:
        resume(host, session.session_id, OPEN_TIMEOUT_S)
    stream = Stream(with_state_crc=opening.with_state_crc)
    with session.cond:
        state = session.ownership.state
        if state is State.GONE and session.moved is not None:
            return session, session.moved
        if state in (State.STAGED, State.READY):
            raise Unavailable(
                f"session {session.session_id} is on its way here and not yet live; ask again",
                reason="SESSION_NOT_YET_LIVE",
                retry_after_s=_NOT_YET_S,
            )
        if host.ended:
            raise Unavailable(f"engine host {host.host_id} is draining", reason="DRAINING", retry_after_s=1.0)
        copy = session.require_copy()
        if session.host_copy is not None:
            raise Unavailable(
                f"session {session.session_id} was suspended while it was opened; ask again",
                reason="SESSION_SUSPENDED",
                retry_after_s=_NOT_YET_S,
            )
        session.ownership = session.ownership.wake()
        replaced, session.stream = session.stream, stream
        stream.replay_wanted = opening.replay_last and session.next_block > 0
        stream.push(
            pb.PlayResponse(
                opened=pb.PlayOpened(
                    session=session_info(session),
                    host_id=host.host_id,
                    action_bytes=copy.preset.action_bytes,
                )
            )
        )
    if replaced is not None:
        replaced.finish(ended("REPLACED"))
    return session, stream


def _detach(session: Session, stream: Stream) -> None:
    with session.cond:
        if session.stream is stream:
            session.stream = None
            session.away_since_s = time.monotonic()

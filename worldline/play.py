"""One open session for threads: does what `worldline.following` asks for, over a stream."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Self, TypeVar

import grpc

from worldline import rpc
from worldline.errors import Unavailable, WorldlineError
from worldline.following import Answer, Ask, Close, Course, Following, Locate, Open, Shown, Sleep, Wait
from worldline.playing import Block, Session
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

if TYPE_CHECKING:
    from worldline.client import Client

T = TypeVar("T")


class _Stream:
    """One open play stream: a thread reads it into a queue, so that every wait can be bounded."""

    def __init__(self, address: str, tls: rpc.Tls | None, first: host_pb.PlayRequest) -> None:
        self.address = address
        self._channel = rpc.channel(address, tls)
        self._out: queue.SimpleQueue[host_pb.PlayRequest | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[host_pb.PlayResponse | WorldlineError] = queue.SimpleQueue()
        self._out.put(first)
        self._call = EngineHostServiceStub(self._channel).Play(iter(self._out.get, None))
        self._reader = threading.Thread(target=self._read, name="worldline-play", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            with rpc.calling(self.address):
                for response in self._call:
                    self._in.put(response)
            self._in.put(Unavailable(f"{self.address} ended the stream", reason="PEER_GONE", retry_after_s=0.1))
        except WorldlineError as error:
            self._in.put(error)
        except grpc.FutureCancelledError:
            self._in.put(Unavailable("closed", reason="PEER_GONE"))

    def send(self, request: host_pb.PlayRequest) -> None:
        self._out.put(request)

    def receive(self, timeout_s: float) -> host_pb.PlayResponse | WorldlineError | None:
        """What came; None if nothing came in time."""
        try:
            return self._in.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()  # type: ignore[no-untyped-call]
        self._reader.join(timeout=5.0)
        self._channel.close()


class Play(Shown):
    """An open session. `step` plays one block; moves and lost connections are followed inside."""

    def __init__(
        self, client: Client, session: Session, *, with_state_crc: bool, patience_s: float, next_block: int | None
    ) -> None:
        self._client = client
        self._session_id = session.session_id
        self._following = Following(
            session, with_state_crc=with_state_crc, patience_s=patience_s, next_block=next_block
        )
        self._stream: _Stream | None = None
        try:
            self._go(self._following.opening())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, action: bytes) -> Block:
        """Act, and wait for the block. After TimedOut, the same action again goes on waiting for the same block.

        Raises:
            SessionLost: the session died with its host.
            TimedOut: no block for `patience_s`.
            DataLoss: the world was rewound or damaged; play does not go on.
        """
        return self._go(self._following.step(action, connected=self._stream is not None))

    def close(self) -> None:
        """End the stream; the session stays where it is. From any thread: a step that waits raises PLAY_CLOSED."""
        self._following.closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _go(self, course: Course[T]) -> T:
        answer: Answer = None
        while True:
            try:
                ask = course.send(answer)
            except StopIteration as over:
                result: T = over.value
                return result
            answer = self._done(ask)

    def _done(self, ask: Ask) -> Answer:
        stream = self._stream
        if isinstance(ask, Wait):
            return stream.receive(ask.timeout_s) if stream is not None else None
        if isinstance(ask, Locate):
            return self._locate(ask.timeout_s)
        if isinstance(ask, Sleep):
            time.sleep(ask.seconds)
        elif isinstance(ask, Open):
            self._disconnect()
            self._stream = _Stream(ask.address, self._client.tls, ask.first)
            if self._following.closed:
                # Meanwhile, by another thread, which may not have seen this stream.
                self._disconnect()
        elif isinstance(ask, Close):
            self._disconnect()
        elif stream is not None:
            stream.send(ask.request)
        return None

    def _locate(self, timeout_s: float) -> pb.LocateSessionResponse | WorldlineError:
        try:
            with rpc.calling("admission"):
                return self._client.admission.LocateSession(
                    pb.LocateSessionRequest(session_id=self._session_id), timeout=timeout_s
                )
        except WorldlineError as error:
            return error

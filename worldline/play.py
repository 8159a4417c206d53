"""One open session: the play protocol of `worldline.playing` over a stream, through moves and lost connections."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from worldline import rpc
from worldline.errors import NotFound, TimedOut, Unavailable, WorldlineError, WrongState
from worldline.playing import (
    Block,
    Deliver,
    Output,
    Player,
    Send,
    Session,
    Shown,
    ends_play,
    is_gone,
    pause_s,
    still_arriving,
)
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

if TYPE_CHECKING:
    from worldline.client import Client

CALL_TIMEOUT_S = 30.0


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

    # A host that is silent this long may have lost the session: admission is asked where it lives.
    SILENCE_S = 2.0

    def __init__(
        self, client: Client, session: Session, *, with_state_crc: bool, patience_s: float, next_block: int | None
    ) -> None:
        self._client = client
        self._player = Player(session, with_state_crc=with_state_crc, next_block=next_block)
        self._patience_s = patience_s
        self._address = session.address
        self._stream: _Stream | None = None
        self._closed = False
        self._connect()
        try:
            self._run(until_opened=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, action: bytes) -> Block:
        """Act, and wait for the block. After TimedOut, the same action again goes on waiting for the same block.

        Raises:
            SessionLost: the session died with its host.
            TimedOut: no block for `patience_s`.
            DataLoss: the world was rewound or damaged; play does not go on.
        """
        if self._closed:
            raise WrongState("this play was closed; open another one", reason="PLAY_CLOSED")
        outputs = self._player.act(action)
        if self._stream is None:
            self._connect()
        else:
            self._do(outputs)
        block = self._run()
        if block is None:
            raise TimedOut("the stream opened, but no block came")
        return block

    def close(self) -> None:
        """End the stream; the session stays where it is."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self) -> None:
        self._disconnect()
        self._stream = _Stream(self._address, self._client.tls, self._player.open())

    def _do(self, outputs: list[Output]) -> Block | None:
        delivered: Block | None = None
        for output in outputs:
            if isinstance(output, Send):
                if self._stream is not None:
                    self._stream.send(output.request)
            elif isinstance(output, Deliver):
                delivered = output.block
            else:
                self._address = output.address
                self._connect()
        return delivered

    def _run(self, *, until_opened: bool = False) -> Block | None:
        deadline = time.monotonic() + self._patience_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or self._stream is None:
                # The next step begins with a stream of its own.
                self._disconnect()
                raise TimedOut(
                    f"session {self._player.session.session_id}: no answer for {self._patience_s} s, last from "
                    f"{self._address}",
                    reason="PLAY_TIMED_OUT",
                )
            got = self._stream.receive(min(left, self.SILENCE_S))
            if got is None:
                self._relocate(left)
                continue
            try:
                if isinstance(got, WorldlineError):
                    raise got
                outputs = self._player.receive(got)
            except WorldlineError as error:
                if ends_play(error):
                    raise
                time.sleep(min(pause_s(error), left))
                self._relocate(left, error)
                continue
            block = self._do(outputs)
            if block is not None or (until_opened and got.WhichOneof("message") == "opened"):
                return block

    def _relocate(self, left_s: float, error: WorldlineError | None = None) -> None:
        """Ask admission where the session is, and open a stream there. No `error`: its host is only silent.

        Raises:
            NotFound: neither its host nor admission knows it. SessionLost: it died with its host.
        """
        where: pb.LocateSessionResponse | None = None
        if error is None or not still_arriving(error):
            where = self._locate(left_s, error)
        address = self._player.relocated(where, self._address, broken=error is not None)
        if address is not None:
            self._address = address
            self._connect()

    def _locate(self, left_s: float, error: WorldlineError | None) -> pb.LocateSessionResponse | None:
        try:
            with rpc.calling("admission"):
                return self._client.admission.LocateSession(
                    pb.LocateSessionRequest(session_id=self._player.session.session_id),
                    timeout=min(left_s, CALL_TIMEOUT_S),
                )
        except (Unavailable, TimedOut):
            return None  # admission may be restarting
        except NotFound as unknown:
            if is_gone(unknown, error):
                raise
            return None

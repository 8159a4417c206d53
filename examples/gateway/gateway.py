"""A minimal game gateway: places a session, plays it, and stays with it wherever it moves.

One file, gRPC and the generated stubs only: copy it. `docs/gateway.md` is the contract that it follows.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from worldline.v1 import admission_service_pb2 as admission_pb2
from worldline.v1 import admission_service_pb2_grpc as admission_grpc
from worldline.v1 import engine_host_service_pb2 as host_pb2
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc

CALL_S = 5.0  # longest wait for a unary answer
PLACE_S = 30.0  # the same for PlaceSession, which makes the session's state
QUIET_S = 35.0  # longest silence of a stream that owes us a block: longer than the longest freeze
GIVE_UP_S = 120.0  # longest time without a new block
RETRY_S = 0.5  # pause where the server named none

Action = Callable[[int, int], bytes]  # (block index, bytes that an action has) -> action
T = TypeVar("T")


class Ended(Exception):
    """The session is over or out of reach; the message says why."""


class Gateway:
    """One session, wherever it lives."""

    def __init__(self, admission: str, engine: str, preset: str, seed: int) -> None:
        """Places a new session by the admission service at `admission` (host:port)."""
        self._channel = grpc.insecure_channel(admission)
        self._admission = admission_grpc.AdmissionServiceStub(self._channel)
        self._progress_at = time.monotonic()
        # The same request id with every try: however often it is asked, one session is made.
        request = admission_pb2.PlaceSessionRequest(
            request_id=str(uuid.uuid4()), engine=engine, preset=preset, seed=seed
        )
        placed = self._ask(lambda: self._admission.PlaceSession(request, timeout=PLACE_S))
        self.session_id = placed.session.descriptor.session_id
        self.address = placed.public_address
        self._token = placed.resume_token
        self._wanted = 0  # index of the block to deliver next
        self._action: bytes | None = None  # its action: kept until the block is here, so that it can be sent again

    def blocks(self, count: int, action: Action) -> Iterator[host_pb2.PlayBlock]:
        """Plays `count` blocks: every block once, in order, through moves, crashes and restarts."""
        last = self._wanted + count
        self._progress_at = time.monotonic()
        while self._wanted < last:
            try:
                yield from self._stream(last, action)
            except grpc.RpcError as error:
                self._after(error)

    def close(self) -> None:
        """Closes the session on its host."""
        with grpc.insecure_channel(self.address) as channel:
            request = host_pb2.CloseSessionRequest(session_id=self.session_id, resume_token=self._token)
            host_grpc.EngineHostServiceStub(channel).CloseSession(request, timeout=CALL_S)
        self._channel.close()

    def _stream(self, last: int, action: Action) -> Iterator[host_pb2.PlayBlock]:
        """Plays on one stream until `last` or the stream's end; after that, `address` is where to go on."""
        send: queue.SimpleQueue[host_pb2.PlayRequest | None] = queue.SimpleQueue()
        open_ = host_pb2.PlayOpen(session_id=self.session_id, resume_token=self._token)
        send.put(host_pb2.PlayRequest(open=open_))
        action_bytes = 0
        with grpc.insecure_channel(self.address) as channel:
            call = host_grpc.EngineHostServiceStub(channel).Play(iter(send.get, None))
            try:
                for message in _watched(call):
                    self._check_patience()
                    kind = message.WhichOneof("message")
                    if kind == "moved":
                        self.address = message.moved.public_address
                        return
                    if kind == "ended":
                        if message.ended.reason in ("CLOSED", "REPLACED"):
                            raise Ended(f"session {self.session_id} ended: {message.ended.reason}")
                        break
                    if kind == "opened":
                        action_bytes = message.opened.action_bytes
                        at = message.opened.session.next_block
                        if at not in (self._wanted, self._wanted + 1):
                            raise Ended(f"{self.address} is at block {at} where {self._wanted} is due: never play on")
                        missing = at > self._wanted  # played, and its readout was lost on the way
                    elif message.block.block_index != self._wanted:
                        continue  # delivered before
                    else:
                        missing = zlib.crc32(message.block.readout) != message.block.readout_crc
                        if not missing:
                            self._wanted, self._action = self._wanted + 1, None
                            yield message.block
                            self._progress_at = time.monotonic()
                    if missing:
                        send.put(host_pb2.PlayRequest(replay=host_pb2.PlayReplay()))
                        continue
                    if self._wanted > 0:  # on a new stream too: the old one may have lost it
                        send.put(host_pb2.PlayRequest(ack=host_pb2.PlayAck(block_index=self._wanted - 1)))
                    if self._wanted == last:
                        return
                    if self._action is None:
                        self._action = action(self._wanted, action_bytes)
                    bound = host_pb2.PlayAction(block_index=self._wanted, payload=self._action)
                    send.put(host_pb2.PlayRequest(action=bound))
            finally:
                send.put(None)
                call.cancel()  # type: ignore[no-untyped-call]
        time.sleep(RETRY_S)
        self._locate()

    def _after(self, error: grpc.RpcError) -> None:
        """After a failed stream: waits as told, then finds out where the session lives."""
        self._check_patience()
        told = _told(error)
        if told.reason in ("SESSION_LOST", "SESSION_CLOSED") or told.code in _FINAL:
            raise Ended(f"{self.address}: {told.code.name} {told.text}") from None
        time.sleep(told.retry_s)
        if told.reason != "SESSION_NOT_YET_LIVE":
            self._locate()

    def _locate(self) -> None:
        request = admission_pb2.LocateSessionRequest(session_id=self.session_id)
        self.address = self._ask(lambda: self._admission.LocateSession(request, timeout=CALL_S)).public_address

    def _ask(self, call: Callable[[], T]) -> T:
        """An idempotent call to admission, again and again while admission is away."""
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                told = _told(error)
                if told.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise Ended(f"admission: {told.code.name} {told.text}") from None
                self._check_patience()
                time.sleep(told.retry_s)

    def _check_patience(self) -> None:
        if time.monotonic() - self._progress_at > GIVE_UP_S:
            raise Ended(f"no new block of the session for {GIVE_UP_S:.0f} s")


# Asking again would be answered alike.
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


def _watched(call: grpc.CallIterator[host_pb2.PlayResponse]) -> Iterator[host_pb2.PlayResponse]:
    """The stream's messages; a host that is silent though its connection is open ends it as CANCELLED."""
    messages = iter(call)
    while True:
        timer = threading.Timer(QUIET_S, call.cancel)
        timer.start()
        try:
            message = next(messages)
        except StopIteration:
            return
        finally:
            timer.cancel()
        yield message


class Told(NamedTuple):
    """What a failed call says: `reason` is "" if it has none, `retry_s` the seconds to wait before the next try."""

    code: grpc.StatusCode
    reason: str
    retry_s: float
    text: str


def _told(error: grpc.RpcError) -> Told:
    call = cast("grpc.Call", error)  # every RpcError of a stub is one
    reason, retry_s = "", RETRY_S
    status = rpc_status.from_call(call)
    for detail in status.details if status is not None else ():
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(retry):
            retry_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Told(call.code(), reason, retry_s, call.details() or "")


def main() -> int:
    """Plays a session and prints a line for each block."""
    parser = argparse.ArgumentParser(description="Plays one Worldline session and follows it wherever it moves.")
    parser.add_argument("--admission", default="localhost:7400", help="admission service, host:port")
    parser.add_argument("--engine", default="window-rewrite")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=100, help="blocks to play")
    options = parser.parse_args()
    try:
        gateway = Gateway(options.admission, options.engine, options.preset, options.seed)
        print(f"session {gateway.session_id} at {gateway.address}", flush=True)
        for block in gateway.blocks(options.blocks, lambda index, size: bytes([index % 256]) * (size or 1)):
            where = f"epoch {block.epoch} at {gateway.address}"
            print(f"block {block.block_index} crc {block.readout_crc:08x} {where}", flush=True)
        gateway.close()
    except (Ended, KeyboardInterrupt) as end:
        print(f"gateway: {end or 'interrupted'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The client library: places and plays sessions, follows their moves, asks for moves and reads the fleet.

with Client("localhost:7400") as client:
    session = client.place("window-rewrite", "tiny", seed=7)
    with client.play(session) as play:
        block = play.step(bytes(8))
        client.move(session.session_id)          # plays on meanwhile, and afterwards elsewhere
        block = play.step(bytes(8))
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import grpc

from worldline import rpc, telemetry, wire
from worldline.aio import AsyncClient
from worldline.contract import Contract
from worldline.errors import DataLoss, NotFound, SessionLost, TimedOut, Unavailable, WorldlineError
from worldline.move import Fault
from worldline.playing import Block, Deliver, Output, Player, Send, Session
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

__all__ = ["CLOSED_STATES", "AsyncClient", "Block", "Client", "Play", "Session"]

CALL_TIMEOUT_S = 30.0

# States after which a move changes no more.
CLOSED_STATES = frozenset(
    {move_pb2.MOVE_STATE_REFUSED, move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED, move_pb2.MOVE_STATE_LOST}
)


class Client:
    """Calls admission at `target` (host:port) and the engine hosts that it names. Safe to share between threads."""

    def __init__(self, target: str, *, tls: rpc.Tls | None = None, traced: bool = False) -> None:
        self.target = target
        self._tls = tls
        self._traced = traced
        self._channel = rpc.channel(target, tls, traced=traced)
        self.admission = AdmissionServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    # --- sessions

    def place(
        self,
        engine: str,
        preset: str,
        seed: int,
        *,
        contract: Contract | None = None,
        host_id: str = "",
        request_id: str = "",
    ) -> Session:
        """Create a session where admission picks, or on `host_id`."""
        request = pb.PlaceSessionRequest(
            request_id=request_id or str(uuid.uuid4()),
            engine=engine,
            preset=preset,
            seed=seed,
            contract=wire.contract_to(contract) if contract else None,
            host_id=host_id,
        )
        with rpc.calling("admission"):
            placed = self.admission.PlaceSession(request, timeout=120.0)
        return Session(placed.session.descriptor.session_id, placed.resume_token, placed.public_address, placed.host_id)

    def locate(self, session_id: str) -> pb.LocateSessionResponse:
        """Where a session lives now. Raises SessionLost if it died with its host."""
        with rpc.calling("admission"):
            return self.admission.LocateSession(pb.LocateSessionRequest(session_id=session_id), timeout=CALL_TIMEOUT_S)

    def play(self, session: Session, *, with_state_crc: bool = False, patience_s: float = 60.0) -> Play:
        """Open a session for playing. `patience_s` bounds each wait for a block, over all reconnects."""
        return Play(self, session, with_state_crc=with_state_crc, patience_s=patience_s)

    def close_session(self, session: Session) -> None:
        """Close a session where it lives now."""
        where = self.locate(session.session_id)
        with self.host(where.public_address) as stub, rpc.calling(where.host_id):
            stub.CloseSession(
                host_pb.CloseSessionRequest(session_id=session.session_id, resume_token=session.resume_token),
                timeout=CALL_TIMEOUT_S,
            )

    def host(self, address: str) -> _Host:
        """A short-lived stub of an engine host."""
        return _Host(address, self._tls, self._traced)

    # --- moves

    def request_move(
        self,
        session_id: str,
        destination: str = "",
        *,
        patience_s: float = 0.0,
        transport: str = "",
        request_id: str = "",
        faults: Iterable[Fault] = (),
    ) -> move_pb2.Move:
        """Ask for a move; returns with the verdict, while an admitted move goes on."""
        request = pb.RequestMoveRequest(
            request_id=request_id or str(uuid.uuid4()),
            session_id=session_id,
            destination_host_id=destination,
            mode=move_pb2.MOVE_MODE_FROZEN,
            patience_s=patience_s,
            transport=transport,
            faults=wire.faults_to(faults),
        )
        with telemetry.span("client.request_move", {"session.id": session_id}), rpc.calling("admission"):
            return self.admission.RequestMove(request, timeout=CALL_TIMEOUT_S).move

    def evaluate(
        self,
        session_id: str,
        destination: str = "",
        *,
        live: bool = False,
        patience_s: float = 0.0,
        transport: str = "",
    ) -> pb.EvaluateMoveResponse:
        """The verdict on a move that is not made."""
        request = pb.EvaluateMoveRequest(
            session_id=session_id,
            destination_host_id=destination,
            mode=move_pb2.MOVE_MODE_LIVE if live else move_pb2.MOVE_MODE_FROZEN,
            patience_s=patience_s,
            transport=transport,
        )
        with rpc.calling("admission"):
            return self.admission.EvaluateMove(request, timeout=CALL_TIMEOUT_S)

    def get_move(self, move_id: str) -> move_pb2.Move:
        """One move, whole."""
        with rpc.calling("admission"):
            return self.admission.GetMove(pb.GetMoveRequest(move_id=move_id), timeout=CALL_TIMEOUT_S).move

    def moves(self, session_id: str = "", *, page_size: int = 100) -> Iterator[move_pb2.Move]:
        """All moves, newest first."""
        token = ""
        while True:
            request = pb.ListMovesRequest(page_size=page_size, page_token=token, session_id=session_id)
            with rpc.calling("admission"):
                page = self.admission.ListMoves(request, timeout=CALL_TIMEOUT_S)
            yield from page.moves
            token = page.next_page_token
            if not token:
                return

    def watch(self, move_id: str, *, timeout_s: float | None = None) -> Iterator[move_pb2.Move]:
        """The move each time it changes, until it is closed."""
        with rpc.calling("admission"):
            for response in self.admission.WatchMove(pb.WatchMoveRequest(move_id=move_id), timeout=timeout_s):
                yield response.move

    def wait(self, move_id: str, *, timeout_s: float | None = None) -> move_pb2.Move:
        """The closed move."""
        for move in self.watch(move_id, timeout_s=timeout_s):
            if move.state in CLOSED_STATES:
                break
        return self.get_move(move_id)

    def move(self, session_id: str, destination: str = "", *, timeout_s: float | None = None) -> move_pb2.Move:
        """Ask for a move and wait until it is closed."""
        with telemetry.span("client.move", {"session.id": session_id}):
            asked = self.request_move(session_id, destination)
            return asked if asked.state in CLOSED_STATES else self.wait(asked.move_id, timeout_s=timeout_s)

    def cancel(self, move_id: str) -> move_pb2.Move:
        """Cancel a move that is not yet at COMMIT."""
        with rpc.calling("admission"):
            return self.admission.CancelMove(pb.CancelMoveRequest(move_id=move_id), timeout=CALL_TIMEOUT_S).move

    # --- fleet

    def hosts(self) -> list[pb.EngineHostInfo]:
        """The fleet's engine hosts and their sessions."""
        hosts: list[pb.EngineHostInfo] = []
        token = ""
        while True:
            request = pb.ListEngineHostsRequest(page_size=1000, page_token=token)
            with rpc.calling("admission"):
                page = self.admission.ListEngineHosts(request, timeout=CALL_TIMEOUT_S)
            hosts.extend(page.hosts)
            token = page.next_page_token
            if not token:
                return hosts

    def fault_injection(self) -> bool:
        """Whether this fleet accepts faults in requests."""
        with rpc.calling("admission"):
            return self.admission.ListEngineHosts(
                pb.ListEngineHostsRequest(page_size=1), timeout=CALL_TIMEOUT_S
            ).fault_injection

    def fence(self, host_id: str, incarnation: int, reason: str) -> pb.FenceHostResponse:
        """Declare an incarnation of a host dead. It must not play again: be sure."""
        request = pb.FenceHostRequest(host_id=host_id, incarnation=incarnation, reason=reason)
        with rpc.calling("admission"):
            return self.admission.FenceHost(request, timeout=CALL_TIMEOUT_S)


class _Host:
    """A stub of an engine host whose channel closes with its context."""

    def __init__(self, address: str, tls: rpc.Tls | None, traced: bool) -> None:
        self._channel = rpc.channel(address, tls, traced=traced)

    def __enter__(self) -> EngineHostServiceStub:
        return EngineHostServiceStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self._channel.close()


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


class Play:
    """An open session. `step` plays one block; moves and lost connections are followed inside."""

    # A host that is silent this long may have lost the session: admission is asked where it lives.
    SILENCE_S = 2.0

    def __init__(self, client: Client, session: Session, *, with_state_crc: bool, patience_s: float) -> None:
        self._client = client
        self._player = Player(session, with_state_crc=with_state_crc)
        self._patience_s = patience_s
        self._address = session.address
        self._stream: _Stream | None = None
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

    @property
    def host_id(self) -> str:
        """Engine host that plays the session now."""
        return self._player.host_id

    @property
    def epoch(self) -> int:
        """Epoch of ownership."""
        return self._player.epoch

    @property
    def next_block(self) -> int:
        """Index of the block the next action is for."""
        return self._player.next_block

    @property
    def action_bytes(self) -> int:
        """Bytes of one action; 0 if the engine takes any size."""
        return self._player.action_bytes

    @property
    def moves(self) -> int:
        """Moves that were followed."""
        return self._player.moves

    def step(self, action: bytes) -> Block:
        """Act, and wait for the block.

        Raises:
            SessionLost: the session died with its host.
            TimedOut: no block for `patience_s`.
            DataLoss: the world was rewound or damaged; play does not go on.
        """
        self._do(self._player.act(action))
        block = self._run()
        if block is None:
            raise TimedOut("the stream opened, but no block came")
        return block

    def close(self) -> None:
        """End the stream; the session stays where it is."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self) -> None:
        self.close()
        self._stream = _Stream(self._address, self._client._tls, self._player.open())

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
                raise TimedOut(
                    f"session {self._player.session.session_id}: no answer for {self._patience_s} s, last from "
                    f"{self._address}",
                    reason="PLAY_TIMED_OUT",
                )
            got = self._stream.receive(min(left, self.SILENCE_S))
            if got is None:
                self._relocate(left, silent=True)
            elif isinstance(got, WorldlineError):
                if not isinstance(got, Unavailable | NotFound) or isinstance(got, SessionLost):
                    raise got
                # NotFound: its host restarted, or it is on its way; admission knows.
                time.sleep(min(got.retry_after_s or 0.1, 1.0, left))
                self._relocate(left, silent=False)
            else:
                block = self._do(self._player.receive(got))
                if block is not None or (until_opened and got.WhichOneof("message") == "opened"):
                    return block

    def _relocate(self, left_s: float, *, silent: bool) -> None:
        """Ask admission where the session is; open a stream there unless a silent host still has it."""
        try:
            with rpc.calling("admission"):
                where = self._client.admission.LocateSession(
                    pb.LocateSessionRequest(session_id=self._player.session.session_id),
                    timeout=min(left_s, CALL_TIMEOUT_S),
                )
        except (Unavailable, TimedOut):
            where = None
        except NotFound as error:
            if isinstance(error, SessionLost):
                raise
            where = None  # not placed by this admission, or not yet adopted by it
        if where is not None and where.epoch < self._player.epoch:
            raise DataLoss(
                f"admission knows epoch {where.epoch}, but epoch {self._player.epoch} was played", reason="REWOUND"
            )
        moved = where is not None and where.public_address != self._address
        if where is not None and moved:
            self._address = where.public_address
        if moved or not silent:
            self._connect()

"""The client library for asyncio: the same calls and the same play protocol as `worldline.client`.

async with AsyncClient("localhost:7400") as client:
    session = await client.place("window-rewrite", "tiny", seed=7)
    async with await client.play(session) as play:
        block = await play.step(bytes(8))
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Self

import grpc.aio

from worldline import rpc, telemetry, wire
from worldline.contract import Contract
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
from worldline.v1 import move_pb2
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

CALL_TIMEOUT_S = 30.0
SILENCE_S = 2.0


def _trace() -> tuple[tuple[str, str], ...]:
    return tuple(telemetry.inject().items())


class AsyncClient:
    """Calls admission at `target` (as `Client`) and the engine hosts that it names. Belongs to one asyncio loop."""

    def __init__(self, target: str, *, tls: rpc.Tls | None = None) -> None:
        self.target = target
        self._tls = tls
        self._channel = rpc.aio_channel(target, tls)
        self.admission = AdmissionServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close(None)

    async def place(
        self, engine: str, preset: str, seed: int, *, contract: Contract | None = None, host_id: str = ""
    ) -> Session:
        """Create a session where admission picks, or on `host_id`."""
        request = pb.PlaceSessionRequest(
            request_id=str(uuid.uuid4()),
            engine=engine,
            preset=preset,
            seed=seed,
            contract=wire.contract_to(contract) if contract else None,
            host_id=host_id,
        )
        with rpc.calling("admission"):
            placed = await self.admission.PlaceSession(request, timeout=120.0, metadata=_trace())
        return Session(placed.session.descriptor.session_id, placed.resume_token, placed.public_address, placed.host_id)

    async def locate(self, session_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> pb.LocateSessionResponse:
        """Where a session lives now. Raises SessionLost if it died with its host."""
        with rpc.calling("admission"):
            return await self.admission.LocateSession(pb.LocateSessionRequest(session_id=session_id), timeout=timeout_s)

    async def request_move(self, session_id: str, destination: str = "", *, patience_s: float = 0.0) -> move_pb2.Move:
        """Ask for a move; returns with the verdict, while an admitted move goes on."""
        request = pb.RequestMoveRequest(
            request_id=str(uuid.uuid4()),
            session_id=session_id,
            destination_host_id=destination,
            mode=move_pb2.MOVE_MODE_FROZEN,
            patience_s=patience_s,
        )
        with rpc.calling("admission"):
            return (await self.admission.RequestMove(request, timeout=CALL_TIMEOUT_S, metadata=_trace())).move

    async def watch(self, move_id: str) -> AsyncIterator[move_pb2.Move]:
        """The move each time it changes, until it is closed."""
        with rpc.calling("admission"):
            async for response in self.admission.WatchMove(pb.WatchMoveRequest(move_id=move_id)):
                yield response.move

    async def get_move(self, move_id: str) -> move_pb2.Move:
        """One move, whole."""
        with rpc.calling("admission"):
            return (await self.admission.GetMove(pb.GetMoveRequest(move_id=move_id), timeout=CALL_TIMEOUT_S)).move

    async def wait(self, move_id: str) -> move_pb2.Move:
        """The closed move."""
        async for _ in self.watch(move_id):
            pass
        return await self.get_move(move_id)

    async def play(
        self,
        session: Session,
        *,
        with_state_crc: bool = False,
        patience_s: float = 60.0,
        next_block: int | None = None,
    ) -> AsyncPlay:
        """Open a session for playing. `patience_s` bounds each wait for a block, over all reconnects.

        `next_block`: go on where an earlier play ended, with the block it would have shown next; without it play
        begins at whatever block the session is at.
        """
        play = AsyncPlay(self, session, with_state_crc=with_state_crc, patience_s=patience_s, next_block=next_block)
        try:
            await play.open()
        except BaseException:
            await play.close()
            raise
        return play


class AsyncPlay(Shown):
    """An open session. `step` plays one block; moves and lost connections are followed inside."""

    def __init__(
        self, client: AsyncClient, session: Session, *, with_state_crc: bool, patience_s: float, next_block: int | None
    ) -> None:
        self._client = client
        self._player = Player(session, with_state_crc=with_state_crc, next_block=next_block)
        self._patience_s = patience_s
        self._address = session.address
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        self._reader: asyncio.Task[None] | None = None
        self._in: asyncio.Queue[host_pb.PlayResponse | WorldlineError] = asyncio.Queue()
        self._out: asyncio.Queue[host_pb.PlayRequest | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the first stream."""
        await self._connect()
        await self._run(until_opened=True)

    async def step(self, action: bytes) -> Block:
        """Act, and wait for the block. Raises as `worldline.client.Play.step` does."""
        if self._closed:
            raise WrongState("this play was closed; open another one", reason="PLAY_CLOSED")
        outputs = self._player.act(action)
        if self._channel is None:
            await self._connect()
        else:
            await self._do(outputs)
        block = await self._run()
        if block is None:
            raise TimedOut("the stream opened, but no block came")
        return block

    async def close(self) -> None:
        """End the stream; the session stays where it is."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        self._out.put_nowait(None)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None

    async def _connect(self) -> None:
        await self._disconnect()
        self._in, self._out = asyncio.Queue(), asyncio.Queue()
        self._channel = rpc.aio_channel(self._address, self._client._tls)
        self._out.put_nowait(self._player.open())
        self._reader = asyncio.create_task(self._read(self._channel, self._out, self._in, self._address))

    @staticmethod
    async def _read(
        channel: grpc.aio.Channel,
        out: asyncio.Queue[host_pb.PlayRequest | None],
        into: asyncio.Queue[host_pb.PlayResponse | WorldlineError],
        address: str,
    ) -> None:
        async def requests() -> AsyncIterator[host_pb.PlayRequest]:
            while (request := await out.get()) is not None:
                yield request

        try:
            with rpc.calling(address):
                async for response in EngineHostServiceStub(channel).Play(requests()):
                    into.put_nowait(response)
            into.put_nowait(Unavailable(f"{address} ended the stream", reason="PEER_GONE", retry_after_s=0.1))
        except WorldlineError as error:
            into.put_nowait(error)

    async def _do(self, outputs: list[Output]) -> Block | None:
        delivered: Block | None = None
        for output in outputs:
            if isinstance(output, Send):
                self._out.put_nowait(output.request)
            elif isinstance(output, Deliver):
                delivered = output.block
            else:
                self._address = output.address
                await self._connect()
        return delivered

    async def _run(self, *, until_opened: bool = False) -> Block | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            left = deadline - loop.time()
            if left <= 0:
                # The next step begins with a stream of its own.
                await self._disconnect()
                raise TimedOut(
                    f"session {self._player.session.session_id}: no answer for {self._patience_s} s, last from "
                    f"{self._address}",
                    reason="PLAY_TIMED_OUT",
                )
            try:
                got = await asyncio.wait_for(self._in.get(), min(left, SILENCE_S))
            except TimeoutError:
                await self._relocate(left)
                continue
            try:
                if isinstance(got, WorldlineError):
                    raise got
                outputs = self._player.receive(got)
            except WorldlineError as error:
                if ends_play(error):
                    raise
                await asyncio.sleep(min(pause_s(error), left))
                await self._relocate(left, error)
                continue
            block = await self._do(outputs)
            if block is not None or (until_opened and got.WhichOneof("message") == "opened"):
                return block

    async def _relocate(self, left_s: float, error: WorldlineError | None = None) -> None:
        where: pb.LocateSessionResponse | None = None
        if error is None or not still_arriving(error):
            where = await self._locate(left_s, error)
        address = self._player.relocated(where, self._address, broken=error is not None)
        if address is not None:
            self._address = address
            await self._connect()

    async def _locate(self, left_s: float, error: WorldlineError | None) -> pb.LocateSessionResponse | None:
        session_id = self._player.session.session_id
        try:
            return await self._client.locate(session_id, timeout_s=min(left_s, CALL_TIMEOUT_S))
        except (Unavailable, TimedOut):
            return None  # admission may be restarting
        except NotFound as unknown:
            if is_gone(unknown, error):
                raise
            return None

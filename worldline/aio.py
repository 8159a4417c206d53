"""The client library for asyncio: the same calls and the same play protocol as `worldline.client`.

async with AsyncClient("localhost:7400") as client:
    session = await client.place("window-rewrite", "tiny", seed=7)
    async with await client.play(session) as play:
        block = await play.step(bytes(8))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import grpc.aio

from worldline import rpc, telemetry
from worldline.contract import Contract
from worldline.errors import Unavailable, WorldlineError
from worldline.following import Answer, Ask, Close, Course, Following, Locate, Open, Shown, Sleep, Wait
from worldline.playing import Block, Session
from worldline.requests import (
    CALL_TIMEOUT_S,
    HOSTS_A_PAGE,
    PLACE_TIMEOUT_S,
    PREWARM_TIMEOUT_S,
    move_request,
    place_request,
    placed_session,
    public_address,
)
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2
from worldline.v1.admission_service_pb2_grpc import AdmissionServiceStub
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

if TYPE_CHECKING:
    from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceAsyncStub

T = TypeVar("T")


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
        request = place_request(engine, preset, seed, contract, host_id)
        with rpc.calling("admission"):
            return placed_session(
                await self.admission.PlaceSession(request, timeout=PLACE_TIMEOUT_S, metadata=_trace())
            )

    async def locate(self, session_id: str, *, timeout_s: float = CALL_TIMEOUT_S) -> pb.LocateSessionResponse:
        """Where a session lives now. Raises SessionLost if it died with its host."""
        with rpc.calling("admission"):
            return await self.admission.LocateSession(pb.LocateSessionRequest(session_id=session_id), timeout=timeout_s)

    async def suspend(self, session_id: str) -> host_pb.SuspendSessionResponse:
        """Take a session's state to host memory where it lives now, and free its slot. It can be resumed or opened."""
        where = await self.locate(session_id)
        request = host_pb.SuspendSessionRequest(session_id=session_id)
        async with self._host(where.public_address) as stub:
            with rpc.calling(where.host_id):
                return await stub.SuspendSession(request, timeout=CALL_TIMEOUT_S)

    async def resume(self, session_id: str) -> host_pb.ResumeSessionResponse:
        """Bring a suspended session back into a slot where it lives now."""
        where = await self.locate(session_id)
        request = host_pb.ResumeSessionRequest(session_id=session_id)
        async with self._host(where.public_address) as stub:
            with rpc.calling(where.host_id):
                return await stub.ResumeSession(request, timeout=CALL_TIMEOUT_S)

    async def prewarm(self, host_id: str, engine: str, preset: str, slots: int = 0) -> host_pb.PrewarmResponse:
        """Make a preset warm on a host, with `slots` kept allocated ahead there. Raises NotFound: no such host."""
        address = public_address(await self.hosts(), host_id)
        request = host_pb.PrewarmRequest(engine=engine, preset=preset, slots=slots)
        async with self._host(address) as stub:
            with rpc.calling(host_id):
                return await stub.Prewarm(request, timeout=PREWARM_TIMEOUT_S)

    @asynccontextmanager
    async def _host(self, address: str) -> AsyncIterator[EngineHostServiceAsyncStub]:
        """A short-lived stub of an engine host."""
        channel = rpc.aio_channel(address, self._tls)
        try:
            yield EngineHostServiceStub(channel)
        finally:
            await channel.close(None)

    async def hosts(self) -> list[pb.EngineHostInfo]:
        """The fleet's engine hosts and their sessions."""
        hosts: list[pb.EngineHostInfo] = []
        token = ""
        while True:
            request = pb.ListEngineHostsRequest(page_size=HOSTS_A_PAGE, page_token=token)
            with rpc.calling("admission"):
                page = await self.admission.ListEngineHosts(request, timeout=CALL_TIMEOUT_S)
            hosts.extend(page.hosts)
            token = page.next_page_token
            if not token:
                return hosts

    async def request_move(self, session_id: str, destination: str = "", *, patience_s: float = 0.0) -> move_pb2.Move:
        """Ask for a move; returns with the verdict, while an admitted move goes on."""
        request = move_request(session_id, destination, patience_s)
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
        self._session_id = session.session_id
        self._following = Following(
            session, with_state_crc=with_state_crc, patience_s=patience_s, next_block=next_block
        )
        self._channel: grpc.aio.Channel | None = None
        self._reader: asyncio.Task[None] | None = None
        self._in: asyncio.Queue[host_pb.PlayResponse | WorldlineError] = asyncio.Queue()
        self._out: asyncio.Queue[host_pb.PlayRequest | None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the first stream."""
        await self._go(self._following.opening())

    async def step(self, action: bytes) -> Block:
        """Act, and wait for the block. Raises as `worldline.client.Play.step` does."""
        return await self._go(self._following.step(action, connected=self._channel is not None))

    async def close(self) -> None:
        """End the stream; the session stays where it is."""
        self._following.closed = True
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

    async def _connect(self, address: str, first: host_pb.PlayRequest) -> None:
        await self._disconnect()
        self._in, self._out = asyncio.Queue(), asyncio.Queue()
        self._channel = rpc.aio_channel(address, self._client._tls)
        self._out.put_nowait(first)
        self._reader = asyncio.create_task(self._read(self._channel, self._out, self._in, address))

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

    async def _go(self, course: Course[T]) -> T:
        answer: Answer = None
        while True:
            try:
                ask = course.send(answer)
            except StopIteration as over:
                result: T = over.value
                return result
            answer = await self._done(ask)

    async def _done(self, ask: Ask) -> Answer:
        if isinstance(ask, Wait):
            try:
                return await asyncio.wait_for(self._in.get(), ask.timeout_s)
            except TimeoutError:
                return None
        if isinstance(ask, Locate):
            try:
                return await self._client.locate(self._session_id, timeout_s=ask.timeout_s)
            except WorldlineError as error:
                return error
        if isinstance(ask, Sleep):
            await asyncio.sleep(ask.seconds)
        elif isinstance(ask, Open):
            await self._connect(ask.address, ask.first)
        elif isinstance(ask, Close):
            await self._disconnect()
        else:
            self._out.put_nowait(ask.request)
        return None

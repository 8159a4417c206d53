"""The client library: places and plays sessions, follows their moves, asks for moves and reads the fleet.

with Client("localhost:7400") as client:
    session = client.place("window-rewrite", "tiny", seed=7)
    with client.play(session) as play:
        block = play.step(bytes(8))
        client.move(session.session_id)          # plays on meanwhile, and afterwards elsewhere
        block = play.step(bytes(8))
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Self

from worldline import rpc, telemetry
from worldline.aio import AsyncClient
from worldline.contract import Contract
from worldline.move import Fault
from worldline.plan import Placement
from worldline.play import Play
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

__all__ = ["CLOSED_STATES", "AsyncClient", "Block", "Client", "Play", "Session"]

# States after which a move changes no more.
CLOSED_STATES = frozenset(
    {move_pb2.MOVE_STATE_REFUSED, move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED, move_pb2.MOVE_STATE_LOST}
)


class Client:
    """Calls admission at `target` and the engine hosts that it names. Safe to share between threads.

    `target`: host:port; or several with commas, where several admission processes stand by for each other.
    """

    def __init__(self, target: str, *, tls: rpc.Tls | None = None, traced: bool = False) -> None:
        self.target = target
        self.tls = tls
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
        request = place_request(engine, preset, seed, contract, host_id, request_id)
        with rpc.calling("admission"):
            return placed_session(self.admission.PlaceSession(request, timeout=PLACE_TIMEOUT_S))

    def locate(self, session_id: str) -> pb.LocateSessionResponse:
        """Where a session lives now. Raises SessionLost if it died with its host."""
        with rpc.calling("admission"):
            return self.admission.LocateSession(pb.LocateSessionRequest(session_id=session_id), timeout=CALL_TIMEOUT_S)

    def play(
        self,
        session: Session,
        *,
        with_state_crc: bool = False,
        patience_s: float = 60.0,
        next_block: int | None = None,
    ) -> Play:
        """Open a session for playing. `patience_s` bounds each wait for a block, over all reconnects.

        `next_block`: go on where an earlier play ended, with the block it would have shown next; without it play
        begins at whatever block the session is at.
        """
        return Play(self, session, with_state_crc=with_state_crc, patience_s=patience_s, next_block=next_block)

    def close_session(self, session: Session) -> None:
        """Close a session where it lives now."""
        where = self.locate(session.session_id)
        with self.host(where.public_address) as stub, rpc.calling(where.host_id):
            stub.CloseSession(
                host_pb.CloseSessionRequest(session_id=session.session_id, resume_token=session.resume_token),
                timeout=CALL_TIMEOUT_S,
            )

    def suspend(self, session_id: str) -> host_pb.SuspendSessionResponse:
        """Take a session's state to host memory where it lives now, and free its slot. It can be resumed or opened."""
        where = self.locate(session_id)
        with self.host(where.public_address) as stub, rpc.calling(where.host_id):
            return stub.SuspendSession(host_pb.SuspendSessionRequest(session_id=session_id), timeout=CALL_TIMEOUT_S)

    def resume(self, session_id: str) -> host_pb.ResumeSessionResponse:
        """Bring a suspended session back into a slot where it lives now."""
        where = self.locate(session_id)
        with self.host(where.public_address) as stub, rpc.calling(where.host_id):
            return stub.ResumeSession(host_pb.ResumeSessionRequest(session_id=session_id), timeout=CALL_TIMEOUT_S)

    def prewarm(self, host_id: str, engine: str, preset: str, slots: int = 0) -> host_pb.PrewarmResponse:
        """Make a preset warm on a host, with `slots` kept allocated ahead there. Raises NotFound: no such host."""
        address = public_address(self.hosts(), host_id)
        request = host_pb.PrewarmRequest(engine=engine, preset=preset, slots=slots)
        with self.host(address) as stub, rpc.calling(host_id):
            return stub.Prewarm(request, timeout=PREWARM_TIMEOUT_S)

    def host(self, address: str) -> _Host:
        """A short-lived stub of an engine host."""
        return _Host(address, self.tls, self._traced)

    # --- moves

    def request_move(
        self,
        session_id: str,
        destination: str = "",
        *,
        patience_s: float = 0.0,
        transport: str = "",
        codec: str = "",
        placement: Placement | None = None,
        request_id: str = "",
        faults: Iterable[Fault] = (),
    ) -> move_pb2.Move:
        """Ask for a move; returns with the verdict, while an admitted move goes on.

        What is left empty of `destination`, `transport`, `codec` and `placement` is admission's to pick.
        """
        request = move_request(
            session_id,
            destination,
            patience_s,
            transport=transport,
            codec=codec,
            placement=placement,
            request_id=request_id,
            faults=faults,
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
        codec: str = "",
        placement: Placement | None = None,
    ) -> pb.EvaluateMoveResponse:
        """The verdict on a move that is not made."""
        request = pb.EvaluateMoveRequest(
            session_id=session_id,
            destination_host_id=destination,
            mode=move_pb2.MOVE_MODE_LIVE if live else move_pb2.MOVE_MODE_FROZEN,
            patience_s=patience_s,
            transport=transport,
            codec=codec,
            placement=int(placement or 0),  # type: ignore[arg-type]
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

    # --- schedules

    def drain(
        self, host_id: str, *, dry_run: bool = False, patience_s: float = 0.0, request_id: str = ""
    ) -> pb.Schedule:
        """Move every session off a host, in rounds; it takes none from now on. Returns while the drain goes on."""
        request = pb.DrainRequest(
            request_id=request_id or str(uuid.uuid4()), host_id=host_id, dry_run=dry_run, patience_s=patience_s
        )
        with telemetry.span("client.drain", {"host.id": host_id}), rpc.calling("admission"):
            return self.admission.Drain(request, timeout=CALL_TIMEOUT_S).schedule

    def undrain(self, host_id: str) -> str:
        """Let a host take sessions again. Returns the drain that this cancelled, empty if none ran."""
        with rpc.calling("admission"):
            return self.admission.Undrain(pb.UndrainRequest(host_id=host_id), timeout=CALL_TIMEOUT_S).schedule_id

    def plan(
        self,
        moves: Iterable[tuple[str, str]],
        *,
        dry_run: bool = False,
        patience_s: float = 0.0,
        request_id: str = "",
    ) -> pb.Schedule:
        """Make several moves of (session, destination or "") in rounds. Returns while they go on."""
        request = pb.PlanRequest(
            request_id=request_id or str(uuid.uuid4()),
            moves=[pb.PlannedMove(session_id=session, destination_host_id=host) for session, host in moves],
            dry_run=dry_run,
            patience_s=patience_s,
        )
        with telemetry.span("client.plan"), rpc.calling("admission"):
            return self.admission.Plan(request, timeout=CALL_TIMEOUT_S).schedule

    def schedule(self, schedule_id: str) -> pb.Schedule:
        """One drain or plan."""
        with rpc.calling("admission"):
            request = pb.GetScheduleRequest(schedule_id=schedule_id)
            return self.admission.GetSchedule(request, timeout=CALL_TIMEOUT_S).schedule

    def watch_schedule(self, schedule_id: str, *, timeout_s: float | None = None) -> Iterator[pb.Schedule]:
        """The drain or plan each time it changes, until it is closed."""
        request = pb.WatchScheduleRequest(schedule_id=schedule_id)
        with rpc.calling("admission"):
            for response in self.admission.WatchSchedule(request, timeout=timeout_s):
                yield response.schedule

    def cancel_schedule(self, schedule_id: str) -> pb.Schedule:
        """Begin no more moves of a drain or plan."""
        with rpc.calling("admission"):
            request = pb.CancelScheduleRequest(schedule_id=schedule_id)
            return self.admission.CancelSchedule(request, timeout=CALL_TIMEOUT_S).schedule

    # --- fleet

    def hosts(self) -> list[pb.EngineHostInfo]:
        """The fleet's engine hosts and their sessions."""
        hosts: list[pb.EngineHostInfo] = []
        token = ""
        while True:
            request = pb.ListEngineHostsRequest(page_size=HOSTS_A_PAGE, page_token=token)
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

"""What the tests of whole fleets share."""

from __future__ import annotations

import time
from collections.abc import Callable

from worldline import rpc
from worldline.client import Block, Client, Play
from worldline.move import Fault, FaultKind
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub


def until(what: str, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for a condition; timing decides nothing but when to give up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s} s")
        time.sleep(0.01)


def action(index: int, size: int) -> bytes:
    """Some keys, different for each block."""
    return bytes((index * 31 + at * 7) % 3 for at in range(size or 8))


def step(play: Play) -> Block:
    """Play the next block with its own action."""
    return play.step(action(play.next_block, play.action_bytes))


def shown(block: Block) -> tuple[int, bytes, int | None]:
    """What must be equal between a moved session and one that was never moved."""
    return block.index, block.readout, block.state_crc


SEED = 42
# Of a fleet whose members are stopped and killed: silence and stalls are noticed soon.
QUICK_TIMERS = {"admission": {"heartbeat_s": 0.2, "silent_s": 1.0, "stall_s": 1.0, "no_progress_s": 2.0}}


class Reference:
    """The blocks of a session that is never moved, by index, played as far as they are needed."""

    def __init__(self, client: Client, host_id: str, preset: str = "tiny") -> None:
        self._client = client
        self._session = client.place("window-rewrite", preset, SEED, host_id=host_id)
        self._play = client.play(self._session, with_state_crc=True, patience_s=60)
        self._blocks: list[tuple[int, bytes, int | None]] = []

    def __getitem__(self, index: int) -> tuple[int, bytes, int | None]:
        while len(self._blocks) <= index:
            self._blocks.append(shown(step(self._play)))
        return self._blocks[index]

    def upto(self, blocks: int) -> Reference:
        """Play ahead, so that its host is needed no more."""
        _ = self[blocks - 1]
        return self

    def close(self) -> None:
        """End it."""
        self._play.close()
        self._client.close_session(self._session)


def owners(client: Client, session_id: str) -> list[str]:
    """Engine hosts that say the session is live there."""
    return [
        host.registration.host_id
        for host in client.hosts()
        for info in host.status.sessions
        if info.descriptor.session_id == session_id
        and info.state in (host_pb.SESSION_STATE_LIVE, host_pb.SESSION_STATE_SUSPENDED)
    ]


def direct_sessions(address: str) -> list[host_pb.SessionInfo]:
    """What an engine host says of its sessions now, not at its last heartbeat."""
    with rpc.channel(address) as channel:
        answer = EngineHostServiceStub(channel).ListSessions(host_pb.ListSessionsRequest(), timeout=10)
    return list(answer.sessions)


def all_ready(client: Client) -> bool:
    """Whether admission takes every engine host for a destination."""
    return all(host.ready for host in client.hosts())


def all_free(client: Client) -> bool:
    """Whether every engine host has all of its slot memory free."""
    return all(host.status.free_bytes == host.registration.budget_bytes for host in client.hosts())


def hold(at: str, seconds: float) -> Fault:
    """Hold the move at a step."""
    return Fault(FaultKind.HOLD, step=at, seconds=seconds)


def await_hold(client: Client, move_id: str, at: str) -> move_pb2.Move:
    """Wait until the move is held at a step."""
    for move in client.watch(move_id, timeout_s=60):
        if move.stage == f"hold:{at}":
            return move
    raise AssertionError(f"the move was never held at {at}: {client.get_move(move_id)}")

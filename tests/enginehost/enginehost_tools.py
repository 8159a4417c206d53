"""What the engine host's tests share: a toy engine, a host in this process, and hosts as processes."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from enginehost.destination import Destination
from enginehost.host import Host
from enginehost.lifecycle import Lifecycle, Wanted
from enginehost.session import Session
from enginehost.settings import EngineHostSettings
from enginehost.source import Source
from enginehost.stream import Stream
from worldline import rpc
from worldline.contract import Contract, ContractClass, Tier
from worldline.crc import crc32
from worldline.engine import Preset, Readout, StateTree
from worldline.errors import BadRequest, WorldlineError
from worldline.move import Fence
from worldline.plan import Placement, Plan
from worldline.settings import load
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1.engine_host_service_pb2_grpc import EngineHostServiceStub

PLAN = Plan("tcp", 4096, 2, Placement.PIPELINED, 10.0, 10.0, 2.0)


def until(what: str, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition; timing decides nothing but when to give up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        time.sleep(0.005)


class ToyEngine:
    """A small engine whose blocks can be made to misbehave: `misbehave` is called by each block with its session."""

    name = "toy"
    version = "1"

    def __init__(self) -> None:
        self.misbehave: Callable[[ToySession], None] = lambda _: None
        self.state_bytes = 1 << 16

    def presets(self) -> Mapping[str, Preset]:
        return {"one": Preset("one", self.state_bytes, 4, 2, Contract(ContractClass.C1, 5.0, Tier.T0))}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": "toy"}

    def create(self, preset: str, seed: int) -> StateTree:
        base = torch.arange(300, dtype=torch.float32) + seed
        return {
            "block": 0,
            "a": base[:100].clone(),
            "b": base[100:200].clone(),
            "shared": [base[200:], base[210:220]],
            "noise": torch.Generator().manual_seed(seed),
            "cold": torch.full((64,), seed, dtype=torch.int64),
        }

    def load(self, preset: str, tree: StateTree) -> ToySession:
        return ToySession(self, tree)


class ToySession:
    """Every block mixes noise and action into the tensors, and swaps nothing unless told."""

    def __init__(self, engine: ToyEngine, tree: StateTree) -> None:
        assert isinstance(tree, dict)
        self.engine = engine
        self.tree = tree
        self.action = b""

    def begin_block(self, action: bytes) -> None:
        if action == b"bad!":
            raise BadRequest("an action that is none", violations={"action": "bad!"})
        self.action = action

    def step(self, quantum: int) -> None:
        noise = torch.rand(100, generator=self.tree["noise"])
        self.tree["a"].mul_(0.5).add_(noise).add_(sum(self.action))
        self.tree["b"].add_(self.tree["a"])
        self.tree["shared"][0].add_(self.tree["b"][0])

    def end_block(self) -> None:
        self.tree["block"] += 1
        self.engine.misbehave(self)

    def readout(self) -> Readout:
        parts = [self.tree["a"], self.tree["b"], self.tree["shared"][0], self.tree["shared"][1]]
        return Readout(1, 1, 320, 4, torch.cat(parts)[:320].contiguous().numpy().tobytes().ljust(1280, b"\0"))

    def state_tree(self) -> StateTree:
        return self.tree

    def dirty_bytes_per_block(self) -> int:
        return 1200

    def cold_paths(self) -> Sequence[str]:
        return ("cold",)


class LocalHost:
    """A whole host in this process, without gRPC."""

    def __init__(self, directory: Path, host_id: str = "local", **values: object) -> None:
        self.engine = ToyEngine()
        settings = load(
            EngineHostSettings,
            host_id=host_id,
            state_dir=directory / "state",
            regions_dir=directory,
            **{"budget_bytes": 1 << 20, "grace_s": 60.0, **values},
        )
        self.host = Host(settings, {"toy": self.engine}, 1, state_id="d" * 32)
        self.host.regions.start()
        self.host.scheduler.start()
        self.life = Lifecycle(self.host)
        self.life.start()
        self.source = Source(self.host)
        self.destination = Destination(self.host)

    def create(self, session_id: str = "s", seed: int = 1, contract: Contract | None = None) -> Session:
        wanted = Wanted("toy", "one", seed, contract, session_id)
        session, token = self.life.create(str(uuid.uuid4()), wanted, 10.0)
        self.token = token
        return session

    def fence(self, session_id: str = "s", move_id: str = "", epoch: int = 1, term: int = 1) -> Fence:
        return Fence(move_id or str(uuid.uuid4()), session_id, epoch, self.host.incarnation, term)

    def stream(self, session: Session, *, with_state_crc: bool = False) -> Stream:
        """A player's stream without gRPC."""
        stream = Stream(with_state_crc=with_state_crc)
        with session.cond:
            session.stream = stream
        return stream

    def play(self, session: Session, blocks: int, action: bytes = b"\1\2\3\4") -> list[pb.PlayBlock]:
        """Play blocks, each acknowledged."""
        stream = self.stream(session, with_state_crc=True)
        played = []
        for _ in range(blocks):
            with session.cond:
                session.acked = session.next_block - 1
                stream.take_action(session.next_block, action, session.next_block, 4)
            self.host.scheduler.wake(session)
            response = stream.next()
            assert response is not None
            played.append(response.block)
        with session.cond:
            session.stream = None
        return played

    def close(self) -> None:
        self.host.end_all("DRAINING")
        self.life.stop()
        for session in self.host.sessions.held():
            session.let_go()
        self.host.regions.close()


def crcs_of(session: Session, plan: Plan = PLAN) -> list[int]:
    """What a mover would find in a region."""
    copy = session.require_copy()
    region = bytes(copy.slot.arena.map)
    return [crc32(region[c.offset : c.offset + c.size_bytes]) for c in plan.chunks(len(region))]


# --- processes


def refused(call: object, request: object) -> WorldlineError:
    """The error a call ends with."""
    with pytest.raises(WorldlineError) as caught:
        with rpc.calling("the host"):
            call(request, timeout=20)  # type: ignore[operator]
    return caught.value


class Process:
    """One engine host process and a stub to it."""

    def __init__(self, directory: Path, host_id: str, **values: object) -> None:
        self.regions = directory / f"{host_id}.sock"
        self.host_id = host_id
        settings = {"host_id": host_id, "state_dir": directory, "regions_dir": directory, "grace_s": 60, **values}
        command = [sys.executable, "-m", "enginehost", "--exit-with-parent"]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        support = Path(__file__).resolve().parents[1] / "support"
        environment = {**os.environ, "PYTHONPATH": str(support)}
        self.log = directory / f"{host_id}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        self.ready: dict[str, str | int] = {}

    def wait_ready(self) -> Process:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline() if readable else b""
        assert line, self.log.read_text()
        self.ready = json.loads(line)
        self.channel = rpc.channel(self.address)
        self.stub = EngineHostServiceStub(self.channel)
        return self

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    @property
    def incarnation(self) -> int:
        return int(self.ready["incarnation"])

    def create(self, session_id: str = "", engine: str = "window-rewrite", seed: int = 7) -> pb.CreateSessionResponse:
        return self.stub.CreateSession(
            pb.CreateSessionRequest(
                request_id=str(uuid.uuid4()), engine=engine, preset="tiny", seed=seed, session_id=session_id
            ),
            timeout=60,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.channel.close()
        self.process.send_signal(number)
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def processes(directory: Path, *host_ids: str, **values: object) -> Iterator[tuple[Process, ...]]:
    """Engine host processes, started at once."""
    started = [Process(directory, host_id, **values) for host_id in host_ids]
    try:
        yield tuple(process.wait_ready() for process in started)
    finally:
        for process in started:
            if process.process.poll() is None:
                process.stop()
            elif process.process.stdout is not None:
                process.channel.close()
                process.process.stdout.close()


class Player:
    """A play stream to one host."""

    def __init__(self, host: Process, session_id: str, token: str, *, replay_last: bool = False) -> None:
        self._requests: queue.SimpleQueue[pb.PlayRequest | None] = queue.SimpleQueue()
        self._responses = host.stub.Play(iter(self._requests.get, None), timeout=60)
        self.send(
            open=pb.PlayOpen(session_id=session_id, resume_token=token, replay_last=replay_last, with_state_crc=True)
        )

    def send(self, **message: object) -> None:
        self._requests.put(pb.PlayRequest(**message))

    def next(self) -> pb.PlayResponse:
        return next(self._responses)

    def opened(self) -> pb.SessionInfo:
        return self.next().opened.session

    def act(self, index: int, size: int = 8) -> None:
        self.send(action=pb.PlayAction(block_index=index, payload=bytes([index % 7]) * size))

    def ack(self, index: int) -> None:
        self.send(ack=pb.PlayAck(block_index=index))

    def blocks(self, first: int, last: int, size: int = 8) -> list[pb.PlayBlock]:
        """Play blocks first .. last - 1."""
        played = []
        for index in range(first, last):
            self.act(index, size)
            played.append(self.next().block)
            self.ack(index)
        return played

    def close(self) -> None:
        self._responses.cancel()
        self._requests.put(None)

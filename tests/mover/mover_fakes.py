"""A small engine host in the test's process, with real memory and a real socket, and mover processes."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from worldline import rpc, wire
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import WorldlineError
from worldline.layout import Layout, Leaf, LeafKind
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.move import Fault, Fence, HostRef
from worldline.plan import Placement, Plan
from worldline.receipt import Receipt, Side, whole_crc
from worldline.settings import ServiceSettings
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import mover_service_pb2 as pb
from worldline.v1.engine_host_service_pb2_grpc import (
    EngineHostServiceServicer,
    add_EngineHostServiceServicer_to_server,
)
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

START_S = 20.0
SESSION = "session-1"
EPOCH = 7
FINGERPRINT = Fingerprint({"torch": "none", "arch": "test"})


def until(what: str, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition; timing decides nothing but when to give up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s} s")
        time.sleep(0.01)


def layout_of(size_bytes: int) -> Layout:
    """One leaf of bytes."""
    return Layout((Leaf("state", LeafKind.TENSOR, "uint8", (size_bytes,), (), 0, size_bytes, 0),), size_bytes)


class FakeHost(EngineHostServiceServicer):
    """Answers what movers ask of an engine host, for one session, and shares memfds by ticket."""

    def __init__(self, host_id: str, regions_dir: Path, size_bytes: int = 1 << 20) -> None:
        self.host_id = host_id
        self.layout = layout_of(size_bytes)
        self.descriptor = Descriptor(
            SESSION, "engine", "1", "preset", 1, Contract(ContractClass.C3, 0.0, Tier.T0), bytes(32)
        )
        self.content = os.urandom(size_bytes)
        self.calls: list[str] = []
        # What a test may change.
        self.before: dict[str, Callable[[], None]] = {}
        self.refuse: dict[str, WorldlineError] = {}
        self.slot: int | None = None
        self._source = os.memfd_create("worldline-slot-test")
        os.pwrite(self._source, self.content, 0)
        self._tickets: dict[bytes, int] = {}
        self._server = rpc.Server(ServiceSettings(), ["worldline.v1.EngineHostService"])
        add_EngineHostServiceServicer_to_server(self, self._server.grpc)
        self.address = self._server.start()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = regions_dir / f"{host_id}.sock"
        self._socket.bind(str(self._path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve_regions, daemon=True)
        self._thread.start()

    @property
    def ref(self) -> HostRef:
        """How movers are told of it."""
        return HostRef(self.host_id, 1, self.address)

    def fill(self, content: bytes) -> None:
        """Let the session's state be this."""
        self.content = content
        os.pwrite(self._source, content, 0)

    def slot_bytes(self) -> bytes:
        """What lies in the shadow slot."""
        assert self.slot is not None
        return os.pread(self.slot, self.layout.region_bytes, 0)

    def close(self) -> None:
        """End it."""
        self._server.stop(0)
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self._path.unlink()
        for descriptor in (self._source, self.slot, *self._tickets.values()):
            if descriptor is not None:
                os.close(descriptor)

    # --- verbs

    def _asked(self, verb: str) -> None:
        self.calls.append(verb)
        self.before.get(verb, lambda: None)()
        if verb in self.refuse:
            raise self.refuse[verb]

    def RegisterState(
        self, request: host_pb.RegisterStateRequest, context: grpc.ServicerContext
    ) -> host_pb.RegisterStateResponse:
        self._asked("RegisterState")
        ticket = secrets.token_bytes(32)
        # Read-only, so that a mover that wrote into its source would fail.
        self._tickets[ticket] = os.open(f"/proc/self/fd/{self._source}", os.O_RDONLY)
        return host_pb.RegisterStateResponse(
            layout=wire.layout_to(self.layout),
            descriptor=wire.descriptor_to(self.descriptor),
            fingerprint=wire.fingerprint_to(FINGERPRINT),
            region_ticket=ticket,
        )

    def Stage(self, request: host_pb.StageRequest, context: grpc.ServicerContext) -> host_pb.StageResponse:
        self._asked("Stage")
        layout = wire.layout_from(request.layout)
        if self.slot is not None:
            os.close(self.slot)
        self.layout = layout
        self.slot = os.memfd_create("worldline-slot-test")
        os.ftruncate(self.slot, layout.region_bytes)
        ticket = secrets.token_bytes(32)
        self._tickets[ticket] = os.dup(self.slot)
        return host_pb.StageResponse(region_ticket=ticket, prefault_s=0.001)

    def Freeze(self, request: host_pb.FreezeRequest, context: grpc.ServicerContext) -> host_pb.FreezeResponse:
        self._asked("Freeze")
        manifest = Manifest(
            self.layout.digest, self.descriptor.digest, SESSION, EPOCH, 3, FINGERPRINT.digest, Tier.T0, bytes(32)
        )
        return host_pb.FreezeResponse(manifest=wire.manifest_to(manifest), boundary_s=0.0)

    def Attest(self, request: host_pb.AttestRequest, context: grpc.ServicerContext) -> host_pb.AttestResponse:
        side = Side(request.side)
        self._asked(f"Attest.{side.name}")
        plan, manifest = wire.plan_from(request.plan), wire.manifest_from(request.manifest)
        crcs = tuple(request.chunk_crcs)
        chunks = plan.chunks(self.layout.region_bytes)
        fence = wire.fence_from(request.fence)
        receipt = Receipt(
            side,
            fence.move_id,
            manifest.epoch,
            manifest.layout_digest,
            manifest.digest,
            plan.digest,
            self.layout.region_bytes,
            crcs,
            whole_crc(chunks, crcs),
            self.host_id,
            fence.incarnation,
        )
        return host_pb.AttestResponse(receipt=wire.receipt_to(receipt))

    def _serve_regions(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected, suppress(BrokenPipeError):  # the mover may have gone meanwhile
                descriptor = self._tickets.pop(connected.recv(32), None)
                if descriptor is None:
                    connected.sendall(b"\x00")
                    continue
                try:
                    socket.send_fds(connected, [b"\x01"], [descriptor])
                finally:
                    os.close(descriptor)


class MoverProcess:
    """A real mover."""

    def __init__(self, mover_id: str, regions_dir: Path, log: Path, **settings: object) -> None:
        command = [sys.executable, "-m", "mover", "--exit-with-parent", "--mover-id", mover_id]
        values = {"regions_dir": regions_dir, "fault_injection": True, **settings}
        for name, value in values.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else b""
        assert line, log.read_text()
        self.ready = json.loads(line)
        self.address: str = self.ready["address"]
        self.channel = rpc.channel(self.address)
        self.stub = MoverServiceStub(self.channel)
        self.status()  # connects, so that no test seems to leave the connection behind

    def status(self) -> pb.GetStatusResponse:
        """What it says of itself."""
        return self.stub.GetStatus(pb.GetStatusRequest(), timeout=5)

    def signal_plane(self, number: signal.Signals) -> int:
        """Signal its data plane. Returns the process id that was signalled."""
        pid = self.status().data_plane_pid
        os.kill(pid, number)
        return pid

    def idle(self) -> bool:
        """No move in flight and nothing mapped."""
        status = self.status()
        return not status.moves and not status.mapped_regions

    def close(self) -> int:
        """SIGTERM. Returns its exit status."""
        self.channel.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


class Pair:
    """Two movers with a host each. `source` and `destination` are hosts, `a` and `b` their movers."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directories = [directory / name for name in ("a", "b")]
        for each in self.directories:
            each.mkdir()
        self.a = MoverProcess("mover-a", self.directories[0], directory / "a.log", **settings)
        self.b = MoverProcess("mover-b", self.directories[1], directory / "b.log", **settings)

    @contextmanager
    def hosts(self, size_bytes: int = 1 << 20) -> Iterator[tuple[FakeHost, FakeHost]]:
        """A host at each mover, for one test."""
        source = FakeHost("host-a", self.directories[0], size_bytes)
        destination = FakeHost("host-b", self.directories[1], size_bytes)
        try:
            yield source, destination
        finally:
            source.close()
            destination.close()

    def close(self) -> list[int]:
        """End both."""
        return [self.a.close(), self.b.close()]


def plan(**changes: object) -> Plan:
    """A plan for a region of a megabyte."""
    values: dict[str, object] = {
        "transport": "tcp",
        "chunk_bytes": 64 << 10,
        "streams": 2,
        "placement": Placement.PIPELINED,
        "deadline_s": 20.0,
        "max_freeze_s": 20.0,
        "no_progress_s": 5.0,
        **changes,
    }
    return Plan(**values)  # type: ignore[arg-type]


def request(
    source: FakeHost,
    destination: FakeHost,
    mover_address: str,
    plan: Plan,
    faults: tuple[Fault, ...] = (),
    move_id: str = "",
) -> pb.MoveRequest:
    """A `Move` request."""
    fence = Fence(move_id or str(uuid.uuid4()), SESSION, EPOCH, 1, 1)
    return pb.MoveRequest(
        fence=wire.fence_to(fence),
        plan=wire.plan_to(plan),
        source=wire.host_to(source.ref),
        destination=wire.host_to(destination.ref),
        destination_mover_address=mover_address,
        faults=wire.faults_to(faults),
    )


def moved(mover: MoverProcess, message: pb.MoveRequest, timeout_s: float = 30.0) -> list[pb.MoveResponse]:
    """Every message of a move. Raises our errors."""
    with rpc.calling("mover"):
        return list(mover.stub.Move(message, timeout=timeout_s))

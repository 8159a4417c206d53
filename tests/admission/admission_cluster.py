"""An admission service in this process, with two fake hosts and two fake movers around it."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from admission_fakes import FakeHost, FakeMover, until

from admission.service import Admission
from admission.settings import AdmissionSettings
from worldline import rpc
from worldline.settings import load
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import admission_service_pb2_grpc as pb_grpc
from worldline.v1 import move_pb2

SESSION = "s-1"


class Cluster:
    """Everything, and what tests do with it. Heartbeats come when a test says so."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings = load(
            AdmissionSettings,
            journal=folder / "admission.db",
            fault_injection=True,
            stall_s=0.3,
            call_timeout_s=2.0,
            silent_s=30.0,
            **settings,
        )
        self.hosts: dict[str, FakeHost] = {}
        self.movers = {name: FakeMover(name, self.hosts) for name in ("mover-a", "mover-b")}
        self.hosts["host-a"] = FakeHost("host-a", "mover-a")
        self.hosts["host-b"] = FakeHost("host-b", "mover-b")
        self.a, self.b = self.hosts["host-a"], self.hosts["host-b"]
        self._gates: list[threading.Event] = []
        self.start()

    def start(self) -> None:
        """Start admission and join everybody."""
        self.admission = Admission(self.settings)
        self.address = self.admission.start()
        self.channel = rpc.channel(self.address)
        self.stub = pb_grpc.AdmissionServiceStub(self.channel)
        for mover in self.movers.values():
            self.stub.RegisterMover(pb.RegisterMoverRequest(registration=mover.registration()))
        self.register()

    def register(self) -> None:
        """Every host registers."""
        for host in self.hosts.values():
            self.stub.RegisterEngineHost(
                pb.RegisterEngineHostRequest(registration=host.registration(), status=host.status())
            )

    def beat(self, host: FakeHost) -> pb.HeartbeatEngineHostResponse:
        """One heartbeat."""
        return self.stub.HeartbeatEngineHost(
            pb.HeartbeatEngineHostRequest(
                host_id=host.host_id,
                incarnation=host.incarnation,
                status=host.status(),
                instance_id=host.instance_id,
            )
        )

    def stop_admission(self) -> None:
        """Stop admission as SIGTERM would."""
        self.channel.close()
        self.admission.stop()

    def restart_admission(self) -> None:
        """Stop admission and start it again on the same journal."""
        self.stop_admission()
        self.start()

    def restart_host(self, host: FakeHost) -> FakeHost:
        """The host dies with all it had and comes back as its next incarnation."""
        host.stop()
        again = FakeHost(host.host_id, host.mover_id, host.incarnation + 1)
        self.hosts[host.host_id] = again
        self.a, self.b = self.hosts["host-a"], self.hosts["host-b"]
        self.stub.RegisterEngineHost(
            pb.RegisterEngineHostRequest(registration=again.registration(), status=again.status())
        )
        return again

    def with_session(self, host: FakeHost | None = None) -> None:
        """`SESSION` is live on `host`, and admission knows it."""
        owner = host or self.a
        owner.hold_session(SESSION)
        self.beat(owner)

    def gate(self) -> threading.Event:
        """An event that is set at the end at the latest."""
        self._gates.append(threading.Event())
        return self._gates[-1]

    def hold_mover(self) -> threading.Event:
        """Moves wait after the freeze until the event is set."""
        gate = self.gate()
        for mover in self.movers.values():
            mover.gate = gate
        return gate

    def silence(self, host: FakeHost, verb: str) -> threading.Event:
        """`verb` of `host` is not answered until the event is set."""
        gate = self.gate()
        host.silent[verb] = gate
        return gate

    def move(self, destination: str = "host-b", **fields: object) -> move_pb2.Move:
        """Ask for a move of `SESSION`."""
        request = pb.RequestMoveRequest(
            request_id=str(uuid.uuid4()),
            session_id=SESSION,
            destination_host_id=destination,
            **fields,  # type: ignore[arg-type]
        )
        return self.stub.RequestMove(request, timeout=10).move

    def get(self, move_id: str) -> move_pb2.Move:
        """The move now."""
        return self.stub.GetMove(pb.GetMoveRequest(move_id=move_id)).move

    def reach(self, move_id: str, *states: int, timeout_s: float = 10.0) -> move_pb2.Move:
        """Wait until the move is in one of `states`."""
        until(
            f"the move is in {[move_pb2.MoveState.Name(state) for state in states]}",  # type: ignore[arg-type]
            lambda: self.get(move_id).state in states,
            timeout_s,
        )
        return self.get(move_id)

    def held_at(self, move_id: str, step: str) -> None:
        """Wait until the move is held at `step`."""
        until(f"held at {step}", lambda: self.get(move_id).stage == f"hold:{step}")

    def locate(self, session_id: str = SESSION) -> pb.LocateSessionResponse:
        """Where a session is."""
        return self.stub.LocateSession(pb.LocateSessionRequest(session_id=session_id))

    def close(self) -> None:
        """Stop all."""
        for gate in self._gates:
            gate.set()
        self.stop_admission()
        for host in self.hosts.values():
            host.stop()
        for mover in self.movers.values():
            mover.server.stop(0)

"""Engine hosts and a mover for tests of admission: real gRPC servers with the host's rules and no bytes."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc

from worldline import errors, rpc, wire
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Descriptor, Fingerprint, Manifest
from worldline.plan import Plan
from worldline.receipt import Receipt, Side, whole_crc
from worldline.settings import ServiceSettings, load
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import engine_host_service_pb2_grpc as host_grpc
from worldline.v1 import move_pb2
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1 import mover_service_pb2_grpc as mover_grpc

LIVE, FROZEN, RELEASED, STAGED, READY, GONE, NOTHING = (
    host_pb.SESSION_STATE_LIVE,
    host_pb.SESSION_STATE_FROZEN,
    host_pb.SESSION_STATE_RELEASED,
    host_pb.SESSION_STATE_STAGED,
    host_pb.SESSION_STATE_READY,
    host_pb.SESSION_STATE_GONE,
    host_pb.SESSION_STATE_UNSPECIFIED,
)
FINGERPRINT = Fingerprint({"torch": "2.13.0+cpu", "cpu": "AVX512"})
STATE_BYTES = 1 << 20
DEADLINE = Contract(ContractClass.C1, 5.0, Tier.T0)


def until(what: str, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition, polled."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.005)


def descriptor(session_id: str, contract: Contract = DEADLINE, preset: str = "tiny") -> Descriptor:
    """A session's descriptor."""
    return Descriptor(session_id, "window-rewrite", "1", preset, 7, contract, hashlib.sha256(b"token").digest())


@dataclass
class Held:
    """One session on a fake host."""

    descriptor: Descriptor
    state: int
    epoch: int
    move_id: str = ""
    state_bytes: int = STATE_BYTES

    def info(self) -> host_pb.SessionInfo:
        """As the host reports it."""
        return host_pb.SessionInfo(
            descriptor=wire.descriptor_to(self.descriptor),
            state=self.state,  # type: ignore[arg-type]
            epoch=self.epoch,
            next_block=3,
            state_bytes=self.state_bytes,
            dirty_bytes_per_block=self.state_bytes // 2,
            block_s=0.1,
            move_id=self.move_id,
        )


class FakeHost(host_grpc.EngineHostServiceServicer):
    """Holds sessions by the rules of docs/architecture.md. `fail` maps a verb to the error it raises."""

    def __init__(self, host_id: str, mover_id: str, incarnation: int = 1, free_bytes: int = 1 << 30) -> None:
        self.host_id, self.mover_id, self.incarnation, self.free_bytes = host_id, mover_id, incarnation, free_bytes
        self.sessions: dict[str, Held] = {}
        self.presets = ["window-rewrite/tiny"]
        self.fingerprint = FINGERPRINT
        self.draining = False
        self.instance_id = uuid.uuid4().hex
        self.state_id = uuid.uuid5(uuid.NAMESPACE_OID, host_id).hex
        self.closed: set[str] = set()
        self.odd_states: list[int] = []
        self.asked: list[str] = []
        self.fail: dict[str, errors.WorldlineError] = {}
        self.silent: dict[str, threading.Event] = {}
        self.resumed: set[str] = set()
        self.refused: set[str] = set()
        self.moved_to = ""
        self.lock = threading.RLock()
        self.server = rpc.Server(load(ServiceSettings), [])
        host_grpc.add_EngineHostServiceServicer_to_server(self, self.server.grpc)
        self.address = self.server.start()

    def stop(self) -> None:
        """Die: whatever was in memory is gone."""
        for event in self.silent.values():
            event.set()
        self.server.stop(0)

    def hold_session(self, session_id: str, contract: Contract = DEADLINE) -> Held:
        """A live session, as if created here."""
        self.sessions[session_id] = Held(descriptor(session_id, contract), LIVE, 1)
        return self.sessions[session_id]

    def close_session(self, session_id: str) -> None:
        """Its player closes it."""
        with self.lock:
            del self.sessions[session_id]
            self.closed.add(session_id)

    def status(self) -> pb.EngineHostStatus:
        """Its status."""
        with self.lock:
            sessions = [held.info() for held in self.sessions.values()]
        return pb.EngineHostStatus(free_bytes=self.free_bytes, sessions=sessions, draining=self.draining)

    def registration(self) -> pb.EngineHostRegistration:
        """Its registration."""
        return pb.EngineHostRegistration(
            host_id=self.host_id,
            incarnation=self.incarnation,
            cluster_address=self.address,
            public_address=f"public.{self.host_id}:7000",
            mover_id=self.mover_id,
            fingerprint=wire.fingerprint_to(self.fingerprint),
            engines=self.presets,
            budget_bytes=1 << 30,
            instance_id=self.instance_id,
            state_id=self.state_id,
        )

    # --- verbs

    def _enter(self, verb: str, fence: move_pb2.Fence | None = None) -> None:
        self.asked.append(verb)
        gate = self.silent.get(verb)
        if gate is not None:
            gate.wait(30)
        if fence is not None and fence.incarnation != self.incarnation:
            raise errors.StaleFence("another incarnation was meant", reason="WRONG_INCARNATION")
        if verb in self.fail:
            raise self.fail[verb]

    def _held(self, session_id: str) -> Held:
        if session_id not in self.sessions:
            raise errors.NotFound(f"no session {session_id}")
        return self.sessions[session_id]

    def CreateSession(
        self, request: host_pb.CreateSessionRequest, context: grpc.ServicerContext
    ) -> host_pb.CreateSessionResponse:
        self._enter("create")
        session_id = f"s-{uuid.uuid5(uuid.NAMESPACE_OID, request.request_id)}"
        with self.lock:
            if session_id in self.closed:
                # As the real one: the same request is answered as before, with what the session is now.
                gone = Held(descriptor(session_id), NOTHING, 1).info()
                return host_pb.CreateSessionResponse(session=gone, resume_token="token")
            held = self.sessions.get(session_id) or self.hold_session(session_id)
        return host_pb.CreateSessionResponse(session=held.info(), resume_token="token")

    def Release(self, request: host_pb.ReleaseRequest, context: grpc.ServicerContext) -> host_pb.ReleaseResponse:
        self._enter("release", request.fence)
        with self.lock:
            held = self._held(request.fence.session_id)
            if held.state == LIVE or held.move_id != request.fence.move_id:
                return host_pb.ReleaseResponse(resumed=True)
            held.state = RELEASED
        return host_pb.ReleaseResponse(grant=grant_of(request.fence.move_id))

    def Commit(self, request: host_pb.CommitRequest, context: grpc.ServicerContext) -> host_pb.CommitResponse:
        self._enter("commit", request.fence)
        fence = request.fence
        if request.grant != grant_of(fence.move_id):
            raise errors.Mismatch("another grant")
        with self.lock:
            held = self._held(fence.session_id)
            if held.state == STAGED:
                held.state, held.epoch = READY, held.epoch + 1
            if held.state not in (READY, LIVE):
                raise errors.WrongState("not staged")
            manifest = manifest_of(held.descriptor, fence.epoch, fence.move_id)
            return host_pb.CommitResponse(manifest=wire.manifest_to(manifest), epoch=held.epoch)

    def Activate(self, request: host_pb.ActivateRequest, context: grpc.ServicerContext) -> host_pb.ActivateResponse:
        self._enter("activate", request.fence)
        with self.lock:
            held = self._held(request.fence.session_id)
            if held.state not in (READY, LIVE):
                raise errors.WrongState("not ready")
            held.state, held.move_id = LIVE, ""
            return host_pb.ActivateResponse(session=held.info())

    def Free(self, request: host_pb.FreeRequest, context: grpc.ServicerContext) -> host_pb.FreeResponse:
        self._enter("free", request.fence)
        with self.lock:
            held = self._held(request.fence.session_id)
            if held.state not in (RELEASED, GONE):
                raise errors.WrongState("not released")
            held.state, held.move_id, self.moved_to = GONE, "", request.destination_public_address
        return host_pb.FreeResponse(freed_bytes=held.state_bytes)

    def Rollback(self, request: host_pb.RollbackRequest, context: grpc.ServicerContext) -> host_pb.RollbackResponse:
        action, fence = request.action, request.fence
        verb = host_pb.RollbackAction.Name(action).rpartition("_")[2].lower()
        self._enter(verb, fence)
        if self.odd_states:
            return host_pb.RollbackResponse(state=self.odd_states.pop())  # type: ignore[arg-type]
        with self.lock:
            held = self.sessions.get(fence.session_id)
            if action == host_pb.ROLLBACK_ACTION_DROP:
                if held is not None and held.state == STAGED:
                    del self.sessions[fence.session_id]
                elif held is not None and held.state in (READY, LIVE):
                    raise errors.WrongState("never dropped")
                return host_pb.RollbackResponse(state=NOTHING)
            if held is None:
                return host_pb.RollbackResponse(state=NOTHING, closed=fence.session_id in self.closed)
            if held.state == RELEASED and action == host_pb.ROLLBACK_ACTION_RESUME:
                raise errors.WrongState("released")
            held.state, held.move_id = LIVE, ""
        return host_pb.RollbackResponse(state=LIVE)


def grant_of(move_id: str) -> bytes:
    """The grant a fake source gives."""
    return hashlib.sha256(b"grant" + move_id.encode()).digest()


def manifest_of(described: Descriptor, epoch: int, move_id: str) -> Manifest:
    """The manifest of a fake freeze."""
    return Manifest(
        hashlib.sha256(b"layout").digest(),
        described.digest,
        described.session_id,
        epoch,
        3,
        FINGERPRINT.digest,
        described.contract.tier,
        hashlib.sha256(grant_of(move_id)).digest(),
    )


@dataclass
class FakeMover(mover_grpc.MoverServiceServicer):
    """Stages and freezes at the fake hosts, and gives both receipts. `gate` is waited for before the receipts."""

    mover_id: str
    hosts: dict[str, FakeHost]
    transports: tuple[str, ...] = ("tcp", "local")
    max_receives: int = 4
    gate: threading.Event | None = None
    error: errors.WorldlineError | None = None
    corrupt: Callable[[mover_pb.MoveResponse], None] | None = None
    requests: list[mover_pb.MoveRequest] = field(default_factory=list)
    broken_off: int = 0
    verified_at_s: dict[str, float] = field(default_factory=dict)  # by move
    on_probe: Callable[[mover_pb.ProbeRequest], mover_pb.ProbeResponse] | None = None

    def __post_init__(self) -> None:
        self.server = rpc.Server(load(ServiceSettings), [])
        mover_grpc.add_MoverServiceServicer_to_server(self, self.server.grpc)
        self.address = self.server.start()

    def registration(self) -> pb.MoverRegistration:
        """Its registration."""
        return pb.MoverRegistration(
            mover_id=self.mover_id,
            address=self.address,
            transports=self.transports,
            max_receives=self.max_receives,
        )

    def Probe(self, request: mover_pb.ProbeRequest, context: grpc.ServicerContext) -> mover_pb.ProbeResponse:
        if self.on_probe is None:
            raise errors.Unsupported("this fake takes no probes")
        return self.on_probe(request)

    def Move(self, request: mover_pb.MoveRequest, context: grpc.ServicerContext) -> Iterator[mover_pb.MoveResponse]:
        self.requests.append(request)
        fence = wire.fence_from(request.fence)
        source, destination = self.hosts[request.source.host_id], self.hosts[request.destination.host_id]
        yield mover_pb.MoveResponse(stage="reserve")
        with destination.lock:
            held = source.sessions[fence.session_id]
            destination.sessions[fence.session_id] = Held(
                held.descriptor, STAGED, fence.epoch, fence.move_id, held.state_bytes
            )
        yield mover_pb.MoveResponse(stage="freeze")
        with source.lock:
            held.state, held.move_id = FROZEN, fence.move_id
        yield mover_pb.MoveResponse(stage="wire", total_bytes=held.state_bytes)
        while self.gate is not None and not self.gate.wait(0.01):
            if not context.is_active():
                self.broken_off += 1
                return
        if self.error is not None:
            raise self.error
        last = self._receipts(request, held)
        if self.corrupt is not None:
            self.corrupt(last)
        self.verified_at_s[fence.move_id] = time.time()
        yield last

    def _receipts(self, request: mover_pb.MoveRequest, held: Held) -> mover_pb.MoveResponse:
        plan: Plan = wire.plan_from(request.plan)
        chunks = plan.chunks(held.state_bytes)
        crcs = tuple(chunk.index for chunk in chunks)
        manifest = manifest_of(held.descriptor, request.fence.epoch, request.fence.move_id)
        receipts = [
            Receipt(
                side,
                request.fence.move_id,
                request.fence.epoch,
                manifest.layout_digest,
                manifest.digest,
                plan.digest,
                held.state_bytes,
                crcs,
                whole_crc(chunks, crcs),
                host.host_id,
                host.incarnation,
            )
            for side, host in ((Side.SOURCE, request.source), (Side.DESTINATION, request.destination))
        ]
        return mover_pb.MoveResponse(
            stage="verified",
            landed_bytes=held.state_bytes,
            total_bytes=held.state_bytes,
            stages=move_pb2.StageTimes(reserve_s=0.01, freeze_s=0.01, wire_s=0.02, verify_s=0.01),
            manifest=wire.manifest_to(manifest),
            source_receipt=wire.receipt_to(receipts[0]),
            destination_receipt=wire.receipt_to(receipts[1]),
        )

"""An engine host and its admission: registration, heartbeats, fencing, and the verbs that others do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from enginehost_tools import PLAN, LocalHost, crcs_of, until

from enginehost.driving import Driving
from enginehost.registration import Registration
from worldline import rpc, wire
from worldline.errors import BadRequest, Internal, NotFound, Unsupported
from worldline.move import HostRef
from worldline.receipt import Receipt
from worldline.v1 import admission_service_pb2 as admission_pb
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import move_pb2
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.admission_service_pb2_grpc import (
    AdmissionServiceServicer,
    add_AdmissionServiceServicer_to_server,
)
from worldline.v1.mover_service_pb2_grpc import MoverServiceServicer, add_MoverServiceServicer_to_server


class Fake(AdmissionServiceServicer, MoverServiceServicer):
    """An admission and a mover that say what the test wants."""

    def __init__(self) -> None:
        self.registered: list[admission_pb.RegisterEngineHostRequest] = []
        self.beats: list[admission_pb.HeartbeatEngineHostRequest] = []
        self.unknown = self.fenced = self.stale = False
        self.moves: list[mover_pb.MoveResponse] = []
        self.asked: list[mover_pb.MoveRequest] = []
        self.server = grpc.server(ThreadPoolExecutor(4))
        add_AdmissionServiceServicer_to_server(self, self.server)
        add_MoverServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def RegisterEngineHost(
        self, request: admission_pb.RegisterEngineHostRequest, context: grpc.ServicerContext
    ) -> admission_pb.RegisterEngineHostResponse:
        self.registered.append(request)
        self.unknown = False
        return admission_pb.RegisterEngineHostResponse(term=3, heartbeat_s=0.02)

    def HeartbeatEngineHost(
        self, request: admission_pb.HeartbeatEngineHostRequest, context: grpc.ServicerContext
    ) -> admission_pb.HeartbeatEngineHostResponse:
        self.beats.append(request)
        return admission_pb.HeartbeatEngineHostResponse(term=3, unknown=self.unknown, fenced=self.fenced)

    def EvaluateMove(
        self, request: admission_pb.EvaluateMoveRequest, context: grpc.ServicerContext
    ) -> admission_pb.EvaluateMoveResponse:
        assert request.session_id == "s"
        clause = move_pb2.Clause(name="deadline_gate", verdict=move_pb2.VERDICT_KIND_REJECT, reason="TOO_SLOW")
        verdict = move_pb2.Verdict(kind=move_pb2.VERDICT_KIND_REJECT, clauses=[clause])
        return admission_pb.EvaluateMoveResponse(verdict=verdict, destination_host_id=request.destination_host_id)

    def Move(self, request: mover_pb.MoveRequest, context: grpc.ServicerContext) -> Iterator[mover_pb.MoveResponse]:
        self.asked.append(request)
        yield from self.moves


@pytest.fixture
def fake() -> Iterator[Fake]:
    served = Fake()
    yield served
    served.server.stop(None).wait()


@pytest.fixture
def local(tmp_path: Path, fake: Fake) -> Iterator[LocalHost]:
    host = LocalHost(tmp_path, admission=fake.address, mover_id="mover", mover_address=fake.address)
    yield host
    host.close()


@pytest.fixture
def channels(local: LocalHost) -> Iterator[rpc.Channels]:
    opened = rpc.Channels(local.host.settings)
    yield opened
    opened.close()


def test_a_host_registers_and_beats_and_registers_again(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    local.create()
    registration = Registration(local.host, channels, "a:1", "b:2", lambda: None)
    registration.start()
    until("heartbeats", lambda: len(fake.beats) >= 2)
    said = fake.registered[0].registration
    assert (said.host_id, said.cluster_address, said.public_address, said.mover_id) == ("local", "a:1", "b:2", "mover")
    assert list(said.engines) == ["toy/one"]
    assert said.budget_bytes == 1 << 20
    assert wire.fingerprint_from(said.fingerprint) == local.host.fingerprints.host
    status = fake.beats[-1].status
    assert [info.descriptor.session_id for info in status.sessions] == ["s"]
    assert status.free_bytes == local.host.budget.free_bytes < 1 << 20
    fake.unknown = True
    until("a second registration", lambda: len(fake.registered) >= 2)
    registration.stop()


def test_a_staged_copy_is_not_reported_as_this_hosts(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    copy = local.create().require_copy()
    there = LocalHost(local.host.settings.state_dir, "there", admission=fake.address)
    fence = there.fence()
    there.destination.stage(fence, copy.slot.layout, copy.descriptor, copy.fingerprint, 5.0)
    registration = Registration(there.host, channels, "a:1", "b:2", lambda: None)
    registration.start()
    until("a heartbeat", lambda: bool(fake.beats))
    registration.stop()
    assert not fake.beats[-1].status.sessions
    there.destination.drop(fence, 1.0)
    there.close()


def test_a_fenced_host_ends_all_sessions(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    session = local.create()
    stream = local.stream(session)
    fenced = threading.Event()

    def on_fenced() -> None:
        local.host.end_all("FENCED")
        fenced.set()

    registration = Registration(local.host, channels, "a:1", "b:2", on_fenced)
    registration.start()
    until("a heartbeat", lambda: bool(fake.beats))
    fake.fenced = True
    assert fenced.wait(20)
    last = stream.next()
    assert last is not None
    assert last.ended.reason == "FENCED"
    # Nothing is played any more.
    again = local.stream(session)
    with session.cond:
        again.take_action(0, b"aaaa", 0, 4)
    local.host.scheduler.wake(session)
    assert session.next_block == 0


def test_an_admission_that_is_away_is_waited_for(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    fake.server.stop(None).wait()
    session = local.create()
    registration = Registration(local.host, channels, "a:1", "b:2", lambda: None)
    registration.start()
    assert len(local.play(session, 2)) == 2
    registration.stop()


def test_admit_asks_admission(local: LocalHost, channels: rpc.Channels) -> None:
    verdict = Driving(local.host, channels).admit("s", "other", move_pb2.MOVE_MODE_FROZEN, 5.0)
    assert [clause.reason for clause in verdict.failed] == ["TOO_SLOW"]


def test_migrate_asks_the_mover(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    session = local.create()
    driving = Driving(local.host, channels)
    fence = local.fence()
    manifest = local.source.freeze(fence, 30.0, 5.0).manifest
    receipt: Receipt = local.source.attest(fence, manifest, PLAN, crcs_of(session))
    there = HostRef("other", 4, "c:3")
    fake.moves = [mover_pb.MoveResponse(stage="wire")]
    with pytest.raises(Internal):
        driving.migrate(fence, PLAN, there, "m:4", "a:1", 5.0)
    fake.moves.append(
        mover_pb.MoveResponse(
            manifest=wire.manifest_to(manifest),
            source_receipt=wire.receipt_to(receipt),
            destination_receipt=wire.receipt_to(receipt),
        )
    )
    assert driving.migrate(fence, PLAN, there, "m:4", "a:1", 5.0) == (manifest, receipt, receipt)
    asked = fake.asked[-1]
    assert asked.source == pb.HostRef(host_id="local", incarnation=1, address="a:1")
    assert asked.destination == wire.host_to(there)
    with pytest.raises(BadRequest, match="already"):
        driving.migrate(fence, PLAN, HostRef("local", 1, "a:1"), "m:4", "a:1", 5.0)
    with pytest.raises(NotFound):
        driving.migrate(local.fence("unknown", str(uuid.uuid4())), PLAN, there, "m:4", "a:1", 5.0)
    local.source.resume(fence, reinstate=False)


def test_verbs_that_others_do_say_so_where_nobody_is_set(tmp_path: Path) -> None:
    alone = LocalHost(tmp_path, "alone")
    alone.create()
    driving = Driving(alone.host, rpc.Channels(alone.host.settings))
    with pytest.raises(Unsupported, match="admission"):
        driving.admit("s", "", move_pb2.MOVE_MODE_FROZEN, 5.0)
    with pytest.raises(Unsupported, match="mover"):
        driving.migrate(alone.fence(), PLAN, HostRef("other", 1, "c:3"), "m:4", "a:1", 5.0)
    alone.close()

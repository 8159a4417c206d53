"""An engine host and its admission: registration, heartbeats, fencing, and the verbs that others do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from enginehost_tools import PLAN, LocalHost, Player, Process, crcs_of, processes, refused, until
from grpc_status import rpc_status

from enginehost.driving import Driving
from enginehost.registration import Registration
from worldline import rpc, wire
from worldline.errors import (
    BadRequest,
    Internal,
    NotFound,
    Owned,
    StaleFence,
    Unavailable,
    Unsupported,
    WorldlineError,
)
from worldline.move import HostRef
from worldline.receipt import Receipt
from worldline.status import to_status
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
        self.unknown = self.fenced = self.taken = False
        self.term, self.heartbeat_s = 3, 0.02
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
        if self.taken:
            refusal = Owned("host local is another process at x:1", reason="HOST_ID_TAKEN")
            context.abort_with_status(rpc_status.to_status(to_status(refusal)))
        self.registered.append(request)
        self.unknown = False
        return admission_pb.RegisterEngineHostResponse(term=self.term, heartbeat_s=self.heartbeat_s)

    def HeartbeatEngineHost(
        self, request: admission_pb.HeartbeatEngineHostRequest, context: grpc.ServicerContext
    ) -> admission_pb.HeartbeatEngineHostResponse:
        self.beats.append(request)
        return admission_pb.HeartbeatEngineHostResponse(term=self.term, unknown=self.unknown, fenced=self.fenced)

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
    registration = Registration(local.host, channels, "a:1", "b:2", lambda _: None)
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
    assert said.state_id == local.host.state_id == "d" * 32
    assert len(said.instance_id) == 32
    assert {beat.instance_id for beat in fake.beats} == {said.instance_id} == {local.host.instance_id}


def test_a_staged_copy_is_not_reported_as_this_hosts(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    copy = local.create().require_copy()
    there = LocalHost(local.host.settings.state_dir, "there", admission=fake.address, mover_id="mover")
    there.host.admission_term(1, registered=True)
    fake.term = 1
    fence = there.fence()
    there.destination.stage(fence, copy.slot.layout, copy.descriptor, copy.fingerprint, 5.0)
    registration = Registration(there.host, channels, "a:1", "b:2", lambda _: None)
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

    def on_fenced(_: WorldlineError) -> None:
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
    registration = Registration(local.host, channels, "a:1", "b:2", lambda _: None)
    registration.start()
    assert len(local.play(session, 2)) == 2
    registration.stop()


def test_admit_asks_admission(local: LocalHost, channels: rpc.Channels) -> None:
    verdict = Driving(local.host, channels).admit("s", "other", move_pb2.MOVE_MODE_FROZEN, 5.0)
    assert [clause.reason for clause in verdict.failed] == ["TOO_SLOW"]


def test_migrate_asks_the_mover(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    session = local.create()
    local.host.admission_term(1, registered=True)
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


@pytest.fixture
def joined(local: LocalHost, fake: Fake, channels: rpc.Channels) -> Iterator[Registration]:
    """Registered, and beating so seldom that only what is asked for at once comes."""
    fake.heartbeat_s = 3600.0
    local.create()
    registration = Registration(local.host, channels, "a:1", "b:2", lambda _: None)
    registration.start()
    until("the registration", lambda: bool(fake.registered))
    until("the term", lambda: accepts(local, 3))
    yield registration
    registration.stop()


def accepts(local: LocalHost, term: int) -> bool:
    """Whether messages of a controller of this term count."""
    try:
        return local.source.resume(local.fence(term=term), reinstate=False).name == "LIVE"
    except (StaleFence, Unavailable):
        return False


def test_a_stray_term_is_refused_and_changes_nothing(local: LocalHost, fake: Fake, joined: Registration) -> None:
    """Whatever a stranger says its term is, and whether the session exists or not: admission's own term counts on."""
    for session_id in ("s", "none"):
        for term in (4, 2**62):
            fence = local.fence(session_id, term=term)
            for verb in (
                lambda: local.source.freeze(fence, 1.0, 1.0),  # noqa: B023
                lambda: local.source.register(session_id, fence),  # noqa: B023
                lambda: local.source.release(fence),  # noqa: B023
                lambda: local.source.resume(fence, reinstate=True),  # noqa: B023
                lambda: local.source.free(fence, "b", "b:1", 2, 1.0),  # noqa: B023
                lambda: local.destination.drop(fence, 1.0),  # noqa: B023
                lambda: local.destination.activate(fence),  # noqa: B023
            ):
                with pytest.raises(Unavailable) as caught:
                    verb()
                assert (caught.value.reason, caught.value.retry_after_s) == ("UNKNOWN_TERM", 0.1)
    until("admission being asked at once", lambda: bool(fake.beats))
    with pytest.raises(StaleFence, match="term 2 is old"):
        local.source.resume(local.fence(term=2), reinstate=False)
    assert accepts(local, 3)


@pytest.mark.parametrize("term", [4, 1])
def test_an_admission_that_started_again_is_heard_at_once(
    local: LocalHost, fake: Fake, joined: Registration, term: int
) -> None:
    """Also one whose journal was replaced, so that its term is lower. The next heartbeat is an hour away."""
    fake.term, fake.unknown = term, True
    assert not accepts(local, 4), "nobody has told of it yet"
    until("the new term", lambda: accepts(local, term))
    assert len(fake.registered) == 2


def test_without_admission_only_a_message_that_was_done_raises_the_term(tmp_path: Path) -> None:
    alone = LocalHost(tmp_path, "alone")
    alone.create()
    for session_id, epoch in (("none", 1), ("s", 9)):
        with pytest.raises((NotFound, StaleFence)):
            alone.source.freeze(alone.fence(session_id, epoch=epoch, term=2**62), 1.0, 1.0)
    assert accepts(alone, 1)
    assert accepts(alone, 5)
    assert not accepts(alone, 4)
    alone.close()


def test_what_admission_must_know_at_once_is_told_at_once(local: LocalHost, fake: Fake, joined: Registration) -> None:
    local.host.draining = True
    joined.tell(20.0)
    assert fake.beats[-1].status.draining


def test_a_host_whose_id_is_taken_plays_no_more(local: LocalHost, fake: Fake, channels: rpc.Channels) -> None:
    fake.taken = True
    why: list[WorldlineError] = []
    Registration(local.host, channels, "a:1", "b:2", why.append).start()
    until("the refusal", lambda: bool(why))
    assert why[0].reason == "HOST_ID_TAKEN"


def test_a_host_that_had_joined_keeps_its_sessions(local: LocalHost, fake: Fake, joined: Registration) -> None:
    """An admission that has mixed it up with another process does not end what it has placed here."""
    fake.unknown = fake.taken = True
    joined.tell(20.0)
    joined.tell(20.0)
    assert len(local.play(local.host.sessions.get("s"), 2)) == 2


def test_the_process_of_a_taken_id_ends_with_status_2(tmp_path: Path, fake: Fake) -> None:
    fake.taken = True
    twin = Process(tmp_path, "twin", admission=fake.address, mover_id="mover")
    assert twin.process.wait(60) == 2
    assert "another process" in twin.log.read_text()
    assert twin.process.stdout is not None
    twin.process.stdout.close()


def test_a_host_drains_until_its_sessions_are_gone(tmp_path: Path, fake: Fake) -> None:
    """Admission hears of it, players play on, nothing new is taken; the last session's end is the host's."""
    with processes(tmp_path, "drained", admission=fake.address, mover_id="mover", drain_s=3600) as (host,):
        made = host.create()
        session_id = made.session.descriptor.session_id
        host.process.terminate()
        until("admission being told", lambda: any(beat.status.draining for beat in fake.beats))
        player = Player(host, session_id, made.resume_token)
        player.opened()
        assert [block.block_index for block in player.blocks(0, 3)] == [0, 1, 2]
        new = pb.CreateSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny")
        assert refused(host.stub.CreateSession, new).reason == "DRAINING"
        assert host.process.poll() is None
        host.stub.CloseSession(
            pb.CloseSessionRequest(session_id=session_id, resume_token=made.resume_token), timeout=20
        )
        assert player.next().ended.reason == "CLOSED"
        player.close()
        assert host.process.wait(20) == 0


def test_a_second_signal_ends_a_drain(tmp_path: Path, fake: Fake) -> None:
    with processes(tmp_path, "hasty", admission=fake.address, mover_id="mover", drain_s=3600) as (host,):
        host.create()
        host.process.terminate()
        until("admission being told", lambda: any(beat.status.draining for beat in fake.beats))
        host.process.terminate()
        assert host.process.wait(20) == 0


def test_session_ids_are_the_hosts_to_make(tmp_path: Path, fake: Fake) -> None:
    with processes(tmp_path, "placed", admission=fake.address, mover_id="mover") as (host,):
        chosen = pb.CreateSessionRequest(
            request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny", session_id="squatted"
        )
        error = refused(host.stub.CreateSession, chosen)
        assert isinstance(error, BadRequest)
        assert error.reason == "SESSION_ID_CHOSEN"
        made = {host.create().session.descriptor.session_id for _ in range(3)}
        assert len(made) == 3

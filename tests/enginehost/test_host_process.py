"""Engine hosts as processes over gRPC; the test plays, moves and misbehaves by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from enginehost_tools import PLAN, Player, Process, processes, refused, until
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginehost.regions import fetch
from worldline import rpc, wire
from worldline.crc import crc32
from worldline.errors import (
    BadRequest,
    NotFound,
    Owned,
    StaleFence,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import move_pb2, state_pb2

Pair = tuple[Process, Process]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with processes(tmp_path_factory.mktemp("pair"), "host-a", "host-b", budget_bytes=64 << 20) as (first, second):
        yield first, second


class Move:
    """A move between two processes, bytes carried by this one."""

    def __init__(self, source: Process, destination: Process, session_id: str, epoch: int = 1) -> None:
        self.source, self.destination, self.session_id, self.epoch = source, destination, session_id, epoch
        self.move_id = str(uuid.uuid4())

    def fence(self, host: Process, **values: int) -> move_pb2.Fence:
        fields = {"epoch": self.epoch, "incarnation": host.incarnation, "term": 1, **values}
        return move_pb2.Fence(move_id=self.move_id, session_id=self.session_id, **fields)

    def upto_receipts(self) -> None:
        at, to = self.fence(self.source), self.fence(self.destination)
        registered = self.source.stub.RegisterState(
            pb.RegisterStateRequest(session_id=self.session_id, fence=at), timeout=20
        )
        read = fetch(self.source.regions, registered.region_ticket)
        staged = self.destination.stub.Stage(
            pb.StageRequest(
                fence=to,
                layout=registered.layout,
                descriptor=registered.descriptor,
                fingerprint=registered.fingerprint,
            ),
            timeout=20,
        )
        write = fetch(self.destination.regions, staged.region_ticket)
        frozen = self.source.stub.Freeze(pb.FreezeRequest(fence=at, max_freeze_s=30), timeout=20)
        data = os.pread(read, registered.layout.region_bytes, 0)
        assert os.pwrite(write, data, 0) == len(data)
        os.close(read)
        os.close(write)
        crcs = [crc32(data[c.offset : c.offset + c.size_bytes]) for c in PLAN.chunks(len(data))]
        attest = {"manifest": frozen.manifest, "plan": wire.plan_to(PLAN), "chunk_crcs": crcs}
        self.given = self.source.stub.Attest(
            pb.AttestRequest(fence=at, side=state_pb2.RECEIPT_SIDE_SOURCE, **attest), timeout=20
        ).receipt
        self.taken = self.destination.stub.Attest(
            pb.AttestRequest(fence=to, side=state_pb2.RECEIPT_SIDE_DESTINATION, **attest), timeout=20
        ).receipt

    def hand_over(self) -> None:
        at, to = self.fence(self.source), self.fence(self.destination)
        grant = self.source.stub.Release(pb.ReleaseRequest(fence=at), timeout=20).grant
        verified = self.destination.stub.Verify(pb.VerifyRequest(fence=to, source_receipt=self.given), timeout=20)
        assert verified.verified
        assert verified.state_crc == self.given.state_crc
        taken = self.destination.stub.Commit(
            pb.CommitRequest(fence=to, grant=grant, source_receipt=self.given), timeout=20
        )
        assert taken.epoch == self.epoch + 1
        self.destination.stub.Activate(pb.ActivateRequest(fence=to), timeout=20)
        freed = self.source.stub.Free(
            pb.FreeRequest(
                fence=at,
                destination_host_id=self.destination.host_id,
                destination_public_address=self.destination.address,
                destination_epoch=taken.epoch,
            ),
            timeout=20,
        )
        assert freed.freed_bytes == self.given.size_bytes


@pytest.mark.parametrize(("engine", "size"), [("window-rewrite", 8), ("random-tree", 5)])
def test_a_session_moved_between_processes_equals_one_never_moved(pair: Pair, engine: str, size: int) -> None:
    here, there = pair
    made, still = here.create(engine=engine), here.create(engine=engine)
    reference = Player(here, still.session.descriptor.session_id, still.resume_token)
    reference.opened()
    wanted = reference.blocks(0, 12, size)
    reference.close()
    session_id = made.session.descriptor.session_id
    played: list[pb.PlayBlock] = []
    for epoch in range(1, 4):
        player = Player(here, session_id, made.resume_token)
        assert player.opened().epoch == epoch
        if played:
            player.ack(len(played) - 1)
        played += player.blocks(len(played), len(played) + 4, size)
        move = Move(here, there, session_id, epoch)
        move.upto_receipts()
        move.hand_over()
        moved = player.next().moved
        assert (moved.host_id, moved.public_address, moved.epoch) == (there.host_id, there.address, epoch + 1)
        with pytest.raises(StopIteration):
            player.next()
        player.close()
        here, there = there, here
    assert [(b.block_index, b.readout, b.state_crc) for b in played] == [
        (b.block_index, b.readout, b.state_crc) for b in wanted
    ]
    # The last readout survives a move, and a player who opens the old host is told where to go.
    again = Player(here, session_id, made.resume_token, replay_last=True)
    again.opened()
    block = again.next().block
    assert (block.block_index, block.readout, block.replayed) == (11, wanted[11].readout, True)
    again.close()
    late = Player(there, session_id, made.resume_token)
    assert late.next().moved.public_address == here.address
    late.close()
    info = there.stub.DescribeSession(pb.DescribeSessionRequest(session_id=session_id), timeout=20).session
    assert (info.state, info.moved_to) == (pb.SESSION_STATE_GONE, here.address)


def test_a_player_waits_through_a_freeze_and_plays_on_after_an_abort(pair: Pair) -> None:
    source, destination = pair
    made = source.create()
    session_id = made.session.descriptor.session_id
    player = Player(source, session_id, made.resume_token)
    player.opened()
    player.blocks(0, 2)
    move = Move(source, destination, session_id)
    move.upto_receipts()
    player.act(2)
    early = Player(destination, session_id, made.resume_token)
    with pytest.raises(Unavailable) as caught:
        with rpc.calling("the host"):
            early.next()
    assert caught.value.reason == "SESSION_NOT_YET_LIVE"
    assert caught.value.retry_after_s
    early.close()
    resume = pb.RollbackRequest(fence=move.fence(source), action=pb.ROLLBACK_ACTION_RESUME, reason="TEST")
    for _ in range(2):
        assert source.stub.Rollback(resume, timeout=20).state == pb.SESSION_STATE_LIVE
    drop = pb.RollbackRequest(fence=move.fence(destination), action=pb.ROLLBACK_ACTION_DROP)
    for _ in range(2):
        assert destination.stub.Rollback(drop, timeout=20).state == pb.SESSION_STATE_UNSPECIFIED
    assert player.next().block.block_index == 2
    assert source.stub.Release(pb.ReleaseRequest(fence=move.fence(source)), timeout=20).resumed
    player.close()


def test_a_freeze_that_lasts_too_long_ends_by_itself(pair: Pair) -> None:
    made = pair[0].create()
    session_id = made.session.descriptor.session_id
    move = Move(*pair, session_id)
    player = Player(pair[0], session_id, made.resume_token)
    player.opened()
    pair[0].stub.Freeze(pb.FreezeRequest(fence=move.fence(pair[0]), max_freeze_s=0.05), timeout=20)
    player.act(0)
    assert player.next().block.block_index == 0
    player.close()


def test_one_stream_a_session_and_the_newer_wins(pair: Pair) -> None:
    made = pair[0].create()
    session_id = made.session.descriptor.session_id
    first = Player(pair[0], session_id, made.resume_token)
    first.opened()
    first.act(0)
    first.next()
    second = Player(pair[0], session_id, made.resume_token, replay_last=True)
    assert second.opened().next_block == 1
    assert first.next().ended.reason == "REPLACED"
    assert second.next().block.replayed
    # Not acknowledged yet: the next action waits.
    second.act(1)
    second.act(0)
    second.send(replay=pb.PlayReplay())
    assert second.next().block.block_index == 0
    second.ack(0)
    assert second.next().block.block_index == 1
    pair[0].stub.CloseSession(pb.CloseSessionRequest(session_id=session_id, resume_token=made.resume_token), timeout=20)
    assert second.next().ended.reason == "CLOSED"
    first.close()
    second.close()


@pytest.mark.parametrize(
    "message",
    [
        {"action": pb.PlayAction(block_index=0, payload=b"short")},
        {"action": pb.PlayAction(block_index=1000, payload=b"x" * 8)},
        {"action": pb.PlayAction(block_index=0, payload=b"x" * 70_000)},
        {"ack": pb.PlayAck(block_index=3)},
        {"open": pb.PlayOpen()},
        {},
    ],
)
def test_what_a_player_may_not_send(pair: Pair, message: dict[str, object]) -> None:
    made = pair[0].create()
    player = Player(pair[0], made.session.descriptor.session_id, made.resume_token)
    player.opened()
    player.send(**message)
    with pytest.raises(BadRequest):
        with rpc.calling("the host"):
            player.next()
    player.close()


def test_who_may_not_play(pair: Pair) -> None:
    made = pair[0].create()
    for session_id, token, kind in [
        (made.session.descriptor.session_id, "wrong", Unauthenticated),
        ("unknown", made.resume_token, NotFound),
        ("x" * 10_000, made.resume_token, BadRequest),
        ("", made.resume_token, BadRequest),
    ]:
        player = Player(pair[0], session_id, token)
        with pytest.raises(kind):
            with rpc.calling("the host"):
                player.next()
        player.close()
    close = pb.CloseSessionRequest(session_id=made.session.descriptor.session_id, resume_token="wrong")
    assert isinstance(refused(pair[0].stub.CloseSession, close), Unauthenticated)


def test_creation_is_idempotent(pair: Pair) -> None:
    request = pb.CreateSessionRequest(
        request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny", seed=1, session_id="mine"
    )
    first, second = (pair[0].stub.CreateSession(request, timeout=60) for _ in range(2))
    assert first.resume_token == second.resume_token
    assert first.session.descriptor == second.session.descriptor
    request.seed = 2
    assert refused(pair[0].stub.CreateSession, request).reason == "REQUEST_ID_REUSED"


def test_sessions_are_listed_in_pages(pair: Pair) -> None:
    host = pair[1]
    ids = {host.create().session.descriptor.session_id for _ in range(3)}
    found, token = [], ""
    while True:
        page = host.stub.ListSessions(pb.ListSessionsRequest(page_size=2, page_token=token), timeout=20)
        assert len(page.sessions) <= 2
        found += [info.descriptor.session_id for info in page.sessions]
        token = page.next_page_token
        if not token:
            break
    assert found == sorted(found)
    assert ids <= set(found)


def test_streams_that_end_leave_no_thread(pair: Pair) -> None:
    host = pair[0]
    made = host.create()

    def threads() -> int:
        return len(os.listdir(f"/proc/{host.process.pid}/task"))

    def open_and_leave() -> None:
        player = Player(host, made.session.descriptor.session_id, made.resume_token)
        player.opened()
        player.close()

    open_and_leave()
    # The pool of gRPC grows to its bound; only threads beyond it would be leaked ones.
    before = threads() + 64
    for _ in range(100):
        open_and_leave()
    until("the end of the readers", lambda: threads() <= before)


def test_health_says_that_the_data_path_works(pair: Pair) -> None:
    health = health_pb2_grpc.HealthStub(pair[0].channel)
    for service in ("", rpc.DATAPATH, "worldline.v1.EngineHostService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_stale_fences_are_refused(pair: Pair) -> None:
    source, destination = pair
    made = source.create()
    move = Move(source, destination, made.session.descriptor.session_id)

    def freeze(**values: int) -> pb.FreezeRequest:
        return pb.FreezeRequest(fence=move.fence(source, **values), max_freeze_s=5)

    for values, reason in [
        ({"incarnation": 99}, "WRONG_INCARNATION"),
        ({"epoch": 2}, "STALE_EPOCH"),
        ({"term": 0}, "STALE_TERM"),
    ]:
        error = refused(source.stub.Freeze, freeze(**values))
        assert isinstance(error, StaleFence)
        assert error.reason == reason
    source.stub.Freeze(freeze(), timeout=20)
    error = refused(
        source.stub.Freeze,
        pb.FreezeRequest(fence=Move(source, destination, move.session_id).fence(source), max_freeze_s=5),
    )
    assert isinstance(error, Owned)
    source.stub.Rollback(pb.RollbackRequest(fence=move.fence(source), action=pb.ROLLBACK_ACTION_RESUME), timeout=20)


def bad_requests(host: Process) -> list[tuple[str, object]]:
    fence = move_pb2.Fence(
        move_id=str(uuid.uuid4()), session_id="nobody", epoch=1, incarnation=host.incarnation, term=1
    )
    lying = state_pb2.Layout(
        leaves=[
            state_pb2.Leaf(path="a", kind=state_pb2.LEAF_KIND_TENSOR, dtype="int8", shape=[1 << 63], size_bytes=1 << 63)
        ],
        region_bytes=1 << 40,
    )
    many = state_pb2.Layout(leaves=[state_pb2.Leaf(path="a")] * 100_000, region_bytes=64)
    plan = wire.plan_to(PLAN)
    return [
        ("CreateSession", pb.CreateSessionRequest(request_id="no uuid", engine="window-rewrite", preset="tiny")),
        ("CreateSession", pb.CreateSessionRequest(request_id=str(uuid.uuid4()), session_id="../etc")),
        ("CreateSession", pb.CreateSessionRequest(request_id=str(uuid.uuid4()), contract={})),
        ("DescribeSession", pb.DescribeSessionRequest(session_id="")),
        ("ListSessions", pb.ListSessionsRequest(page_size=100_000)),
        ("ListSessions", pb.ListSessionsRequest(page_token="\x00not base64")),
        ("ListSessions", pb.ListSessionsRequest(page_token="!!")),
        ("ListSessions", pb.ListSessionsRequest(page_token="Li4vZXRj")),
        ("CloseSession", pb.CloseSessionRequest(session_id="A B")),
        ("RegisterState", pb.RegisterStateRequest(session_id="x" * 1000)),
        ("RegisterState", pb.RegisterStateRequest(session_id="other", fence=fence)),
        ("Admit", pb.AdmitRequest(session_id="s", mode=77)),  # type: ignore[arg-type]
        ("Migrate", pb.MigrateRequest(fence=fence)),
        ("Verify", pb.VerifyRequest(fence=fence)),
        ("Commit", pb.CommitRequest(fence=fence, grant=b"x" * 100)),
        ("Rollback", pb.RollbackRequest(fence=fence)),
        ("Stage", pb.StageRequest(fence=fence)),
        ("Stage", pb.StageRequest(fence=fence, layout=lying)),
        ("Stage", pb.StageRequest(fence=fence, layout=many)),
        ("Freeze", pb.FreezeRequest(fence=move_pb2.Fence(move_id="x"), max_freeze_s=1)),
        ("Freeze", pb.FreezeRequest(fence=fence, max_freeze_s=-1)),
        ("Attest", pb.AttestRequest(fence=fence, plan=plan)),
        ("Attest", pb.AttestRequest(fence=fence, side=state_pb2.RECEIPT_SIDE_SOURCE, plan=plan)),
        ("Release", pb.ReleaseRequest()),
        ("Activate", pb.ActivateRequest(fence=move_pb2.Fence(move_id=str(uuid.uuid4()), session_id="-"))),
        ("Free", pb.FreeRequest(fence=fence, destination_host_id="b", destination_public_address="nowhere")),
    ]


def test_bad_fields_are_refused_by_name(pair: Pair) -> None:
    for name, request in bad_requests(pair[0]):
        error = refused(getattr(pair[0].stub, name), request)
        assert isinstance(error, BadRequest), (name, error)
        assert error.violations, name


def test_verbs_on_nothing(pair: Pair) -> None:
    host = pair[0]
    move = Move(*pair, "nobody")
    fence = move.fence(host)
    for name, request in [
        ("Freeze", pb.FreezeRequest(fence=fence, max_freeze_s=1)),
        ("Release", pb.ReleaseRequest(fence=fence)),
        ("Activate", pb.ActivateRequest(fence=fence)),
        (
            "Free",
            pb.FreeRequest(fence=fence, destination_host_id="b", destination_public_address="b:1", destination_epoch=2),
        ),
        ("RegisterState", pb.RegisterStateRequest(session_id="nobody")),
        ("DescribeSession", pb.DescribeSessionRequest(session_id="nobody")),
        ("CloseSession", pb.CloseSessionRequest(session_id="nobody")),
    ]:
        assert isinstance(refused(getattr(host.stub, name), request), NotFound), name
    for action in (pb.ROLLBACK_ACTION_RESUME, pb.ROLLBACK_ACTION_REINSTATE, pb.ROLLBACK_ACTION_DROP):
        answer = host.stub.Rollback(pb.RollbackRequest(fence=fence, action=action), timeout=20)
        assert answer.state == pb.SESSION_STATE_UNSPECIFIED
    # The drop is remembered: this move's stage comes too late.
    registered = host.create("late").session
    layout = host.stub.RegisterState(pb.RegisterStateRequest(session_id="late"), timeout=20)
    descriptor = wire.descriptor_from(registered.descriptor)
    stage = pb.StageRequest(
        fence=fence,
        layout=layout.layout,
        descriptor=wire.descriptor_to(type(descriptor)(**{**vars_of(descriptor), "session_id": "nobody"})),
        fingerprint=layout.fingerprint,
    )
    assert isinstance(refused(host.stub.Stage, stage), WrongState)


def vars_of(descriptor: object) -> dict[str, object]:
    return {name: getattr(descriptor, name) for name in type(descriptor).__dataclass_fields__}  # type: ignore[attr-defined]


def test_rollback_says_that_a_session_was_closed_here(pair: Pair) -> None:
    made = pair[0].create()
    session_id = made.session.descriptor.session_id

    def rollback() -> pb.RollbackResponse:
        fence = Move(*pair, session_id).fence(pair[0])
        return pair[0].stub.Rollback(pb.RollbackRequest(fence=fence, action=pb.ROLLBACK_ACTION_RESUME), timeout=20)

    assert not rollback().closed
    pair[0].stub.CloseSession(pb.CloseSessionRequest(session_id=session_id, resume_token=made.resume_token), timeout=20)
    answer = rollback()
    assert (answer.state, answer.closed) == (pb.SESSION_STATE_UNSPECIFIED, True)
    late = Player(pair[0], session_id, made.resume_token)
    with pytest.raises(NotFound) as caught:
        with rpc.calling("the host"):
            late.next()
    assert caught.value.reason == "SESSION_CLOSED"
    late.close()


STOPPED_PLAYER = """
import sys
from worldline.client import Client
from worldline.playing import Session
address, session_id, token = sys.argv[1:]
play = Client(address).play(Session(session_id, token, address))
print("plays", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_player_that_vanishes_without_a_word_gives_its_stream_back(tmp_path: Path) -> None:
    """Stopped, not ended: its connection stays open, and only pings tell that nobody is there."""
    with processes(tmp_path, "host-d", idle_s=0.1, rpc_threads=8) as (host,):
        made = host.create()
        session_id = made.session.descriptor.session_id
        command = [sys.executable, "-c", STOPPED_PLAYER, host.address, session_id, made.resume_token]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as player:
            assert player.stdout is not None
            assert player.stdout.readline() == b"plays\n"
            player.send_signal(signal.SIGSTOP)
            describe = pb.DescribeSessionRequest(session_id=session_id)
            until(
                "the session's suspension",
                lambda: host.stub.DescribeSession(describe, timeout=20).session.state == pb.SESSION_STATE_SUSPENDED,
                60,
            )
            player.kill()


def test_garbage_on_the_wire_is_refused(pair: Pair) -> None:
    call = pair[0].channel.unary_unary("/worldline.v1.EngineHostService/Stage")
    with pytest.raises(grpc.RpcError):
        call(os.urandom(4096), timeout=20)
    pair[0].create()


@pytest.mark.slow
def test_a_host_ends_cleanly_and_its_next_start_is_a_new_incarnation(tmp_path: Path) -> None:
    with processes(tmp_path, "host-c") as (host,):
        made = host.create()
        player = Player(host, made.session.descriptor.session_id, made.resume_token)
        player.opened()
        second = subprocess.run(
            [sys.executable, "-m", "enginehost", "--host-id", "host-c", "--state-dir", str(tmp_path)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert b"locked" in second.stderr
        assert host.process.poll() is None
        host.process.send_signal(signal.SIGTERM)
        assert player.next().ended.reason == "DRAINING"
        player.close()
        until("the end", lambda: host.process.poll() is not None)
        assert host.stop() == 0
        assert not host.regions.exists()
    with processes(tmp_path, "host-c") as (host,):
        assert host.incarnation == 2
        assert host.stub.ListSessions(pb.ListSessionsRequest(), timeout=20).sessions == []
        assert host.stop(signal.SIGKILL) == -signal.SIGKILL


PARENT = """
import subprocess, sys
command = [sys.executable, "-m", "enginehost", "--exit-with-parent", *sys.argv[1:]]
child = subprocess.Popen(command, stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_host_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "--state-dir", str(tmp_path), "--regions-dir", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline().split()[0])
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    until(
        "the host's end", lambda: not Path(f"/proc/{pid}/stat").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--no-such", "1"], b"no-such"),
        (["--budget-bytes", "-1"], b"budget_bytes"),
        (["--listen", "nonsense"], b"listen"),
        (["--admission", "nonsense", "--mover-id", "m"], b"admission"),
        (["--admission", "127.0.0.1:9"], b"mover_id"),
        (["--public-address", "nonsense"], b"public_address"),
        (["--cluster-address", "nonsense:0"], b"cluster_address"),
        (["--mover-id", "A B"], b"mover_id"),
        pytest.param(["--engines", "none"], b"none", marks=pytest.mark.slow),
    ],
)
def test_wrong_settings_refuse_to_start(tmp_path: Path, arguments: list[str], what: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "enginehost", "--state-dir", str(tmp_path), *arguments],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert what in ended.stderr

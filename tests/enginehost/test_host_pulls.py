"""Placement DEVICE between processes: the destination host pulls from the source host, the mover coordinates."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from enginehost_tools import Player, Process, processes, refused

from worldline import rpc, wire
from worldline.errors import BadRequest, DataLoss, NotAllowed, Precondition, Unsupported, WorldlineError, WrongState
from worldline.move import Fault, FaultKind, Fence, HostRef
from worldline.plan import Placement, Plan
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.mover_service_pb2_grpc import MoverServiceStub

PLAN = Plan("local", 64 << 10, 1, Placement.DEVICE, 10.0, 3.0, 3.0, tail_bytes=(5_000, 77))


@dataclass(frozen=True, slots=True)
class Node:
    """A mover and two engine hosts beside it."""

    first: Process
    second: Process
    mover: MoverServiceStub
    address: str


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("node")
    command = [sys.executable, "-m", "mover", "--exit-with-parent", "--mover-id", "mover", "--regions-dir"]
    command += [str(directory), "--transports", "local", "--fault-injection", "true"]
    with (directory / "mover.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        with processes(directory, "host-a", "host-b", budget_bytes=64 << 20, fault_injection=True) as (first, second):
            assert started.stdout is not None
            assert select.select([started.stdout], [], [], 60)[0]
            address = json.loads(started.stdout.readline())["address"]
            with rpc.channel(address) as channel:
                yield Node(first, second, MoverServiceStub(channel), address)
    finally:
        started.terminate()
        started.wait(20)
        assert started.stdout is not None
        started.stdout.close()


class Pulled:
    """A move of one session from `source` to `destination`, driven by hand."""

    def __init__(self, node: Node, source: Process, destination: Process, session_id: str, epoch: int = 1) -> None:
        self.node, self.source, self.destination = node, source, destination
        self.session_id, self.epoch, self.move_id = session_id, epoch, str(uuid.uuid4())

    def fence(self, host: Process) -> Fence:
        return Fence(self.move_id, self.session_id, self.epoch, host.incarnation, 1)

    def receipts(self, plan: Plan = PLAN, faults: Sequence[Fault] = ()) -> mover_pb.MoveResponse:
        """Run the move up to its receipts. Returns the mover's last message."""
        source = HostRef(str(self.source.ready["id"]), self.source.incarnation, self.source.address)
        destination = HostRef(str(self.destination.ready["id"]), self.destination.incarnation, self.destination.address)
        request = mover_pb.MoveRequest(
            fence=wire.fence_to(self.fence(self.source)),
            plan=wire.plan_to(plan),
            source=wire.host_to(source),
            destination=wire.host_to(destination),
            destination_mover_address=self.node.address,
            faults=wire.faults_to(faults),
        )
        with rpc.calling("the mover"):
            return list(self.node.mover.Move(request, timeout=60))[-1]

    def hand_over(self, last: mover_pb.MoveResponse) -> None:
        """Release, commit, activate, free."""
        at, to = wire.fence_to(self.fence(self.source)), wire.fence_to(self.fence(self.destination))
        grant = self.source.stub.Release(pb.ReleaseRequest(fence=at), timeout=20).grant
        with rpc.calling("the host"):
            taken = self.destination.stub.Commit(
                pb.CommitRequest(fence=to, grant=grant, source_receipt=last.source_receipt), timeout=20
            )
        self.destination.stub.Activate(pb.ActivateRequest(fence=to), timeout=20)
        free = pb.FreeRequest(
            fence=at,
            destination_host_id=str(self.destination.ready["id"]),
            destination_public_address=self.destination.address,
            destination_epoch=taken.epoch,
        )
        self.source.stub.Free(free, timeout=20)

    def give_up(self) -> None:
        at, to = wire.fence_to(self.fence(self.source)), wire.fence_to(self.fence(self.destination))
        resume = pb.RollbackRequest(fence=at, action=pb.ROLLBACK_ACTION_RESUME)
        assert self.source.stub.Rollback(resume, timeout=20).state == pb.SESSION_STATE_LIVE
        drop = pb.RollbackRequest(fence=to, action=pb.ROLLBACK_ACTION_DROP)
        assert self.destination.stub.Rollback(drop, timeout=20).state == pb.SESSION_STATE_UNSPECIFIED


def create(host: Process, seed: int = 7) -> tuple[str, str]:
    made = host.create(seed=seed)
    return made.session.descriptor.session_id, made.resume_token


def played(host: Process, session: tuple[str, str], first: int, last: int) -> list[tuple[bytes, int]]:
    player = Player(host, *session)
    player.opened()
    if first:
        player.ack(first - 1)
    blocks = player.blocks(first, last)
    player.close()
    return [(block.readout, block.state_crc) for block in blocks]


def failure(move: Pulled, plan: Plan = PLAN, faults: Sequence[Fault] = ()) -> WorldlineError:
    with pytest.raises(WorldlineError) as caught:
        move.receipts(plan, faults)
    return caught.value


def mapped_regions(host: Process) -> int:
    """How often slots of any host are mapped in this one."""
    maps = Path(f"/proc/{host.process.pid}/maps").read_text()
    return sum("memfd:worldline-slot" in line for line in maps.splitlines())


def test_a_pulled_session_plays_on_exactly(node: Node) -> None:
    session, still = create(node.first), create(node.second)
    assert played(node.first, session, 0, 2) == played(node.second, still, 0, 2)
    mapped = mapped_regions(node.second)
    move = Pulled(node, node.first, node.second, session[0])
    last = move.receipts()
    assert last.source_receipt.chunk_crcs == last.destination_receipt.chunk_crcs
    assert last.source_receipt.state_crc == last.destination_receipt.state_crc
    assert (last.stage, last.landed_bytes, last.retried_chunks) == ("verified", last.total_bytes, 0)
    assert mapped_regions(node.second) == mapped + 1, "its own slot; the source's region is unmapped"
    move.hand_over(last)
    assert played(node.second, session, 2, 4) == played(node.second, still, 2, 4)
    back = Pulled(node, node.second, node.first, session[0], epoch=2)
    back.hand_over(back.receipts())
    assert played(node.first, session, 4, 5) == played(node.second, still, 4, 5)


def test_flips_are_pulled_once_more(node: Node) -> None:
    session = create(node.first)
    move = Pulled(node, node.first, node.second, session[0])
    last = move.receipts(faults=[Fault(FaultKind.FLIP, chunk=1), Fault(FaultKind.FLIP, chunk=5)])
    assert (last.retried_chunks, last.injected_faults) == (2, 2)
    move.hand_over(last)


def test_a_flip_that_comes_back_is_never_installed(node: Node) -> None:
    session, still = create(node.first), create(node.second)
    mapped = mapped_regions(node.second)
    move = Pulled(node, node.first, node.second, session[0])
    error = failure(move, faults=[Fault(FaultKind.FLIP, chunk=3, times=0)])
    assert isinstance(error, DataLoss)
    assert error.reason == "CHUNK_MISMATCH"
    assert "chunk 3" in error.message
    move.give_up()
    assert mapped_regions(node.second) == mapped
    assert played(node.first, session, 0, 2) == played(node.second, still, 0, 2)


def test_nothing_is_pulled_after_the_receipt(node: Node) -> None:
    session = create(node.first)
    move = Pulled(node, node.first, node.second, session[0])
    last = move.receipts()
    pull = pb.PullRequest(fence=wire.fence_to(move.fence(node.second)), plan=wire.plan_to(PLAN), flip_chunks=[0])
    error = refused(node.second.stub.Pull, pull)
    assert isinstance(error, WrongState)
    assert error.reason == "NOT_ATTACHED"
    move.hand_over(last)


def test_checksums_are_only_of_a_frozen_session(node: Node) -> None:
    session = create(node.first)
    move = Pulled(node, node.first, node.second, session[0])
    request = pb.ChecksumRequest(fence=wire.fence_to(move.fence(node.first)), plan=wire.plan_to(PLAN))
    assert isinstance(refused(node.first.stub.Checksum, request), WrongState)


@pytest.mark.parametrize(
    ("plan", "faults", "kind"),
    [
        (replace(PLAN, transport="tcp"), (), Unsupported),
        (PLAN, (Fault(FaultKind.DELAY, chunk=0, seconds=0.1),), Unsupported),
    ],
)
def test_what_hosts_cannot_carry_is_refused(
    node: Node, plan: Plan, faults: Sequence[Fault], kind: type[WorldlineError]
) -> None:
    session = create(node.first)
    assert isinstance(failure(Pulled(node, node.first, node.second, session[0]), plan, faults), kind)
    assert played(node.first, session, 0, 1)


def test_a_wrong_ticket_or_device_maps_nothing(node: Node) -> None:
    session = create(node.first)
    move = Pulled(node, node.first, node.second, session[0])
    registered = node.first.stub.RegisterState(
        pb.RegisterStateRequest(session_id=session[0], fence=wire.fence_to(move.fence(node.first))), timeout=20
    )

    def stage(**region: str | bytes) -> pb.StageRequest:
        return pb.StageRequest(
            fence=wire.fence_to(move.fence(node.second)),
            layout=registered.layout,
            descriptor=registered.descriptor,
            fingerprint=registered.fingerprint,
            plan=wire.plan_to(PLAN),
            source_region=pb.RegionRef(
                **{"host_id": "host-a", "ticket": registered.region_ticket, **region}  # type: ignore[arg-type]
            ),
        )

    assert isinstance(refused(node.second.stub.Stage, stage(device_id="GPU-1")), Precondition)
    assert isinstance(refused(node.second.stub.Stage, stage(ticket=b"short")), BadRequest)
    assert isinstance(refused(node.second.stub.Stage, stage(host_id="../host-a")), BadRequest)
    assert refused(node.second.stub.Stage, stage(ticket=bytes(32))).reason == "NOT_FOUND"
    assert refused(node.second.stub.Stage, stage(host_id="nobody")).reason == "REGION_UNREACHABLE"
    move.give_up()


def test_flips_need_the_setting(tmp_path: Path) -> None:
    with processes(tmp_path, "host-c") as (host,):
        fence = Fence(str(uuid.uuid4()), "nothing", 1, host.incarnation, 1)
        pull = pb.PullRequest(fence=wire.fence_to(fence), plan=wire.plan_to(PLAN), flip_chunks=[0])
        assert isinstance(refused(host.stub.Pull, pull), NotAllowed)


def test_a_destination_that_dies_while_it_maps_the_source(node: Node, tmp_path: Path) -> None:
    session, still = create(node.first), create(node.second)
    directory = node.first.regions.parent
    with processes(directory, "host-d", budget_bytes=64 << 20) as (third,):
        move = Pulled(node, node.first, third, session[0])
        registered = node.first.stub.RegisterState(
            pb.RegisterStateRequest(session_id=session[0], fence=wire.fence_to(move.fence(node.first))), timeout=20
        )
        stage = pb.StageRequest(
            fence=wire.fence_to(move.fence(third)),
            layout=registered.layout,
            descriptor=registered.descriptor,
            fingerprint=registered.fingerprint,
            plan=wire.plan_to(PLAN),
            source_region=pb.RegionRef(host_id="host-a", ticket=registered.region_ticket),
        )
        third.stub.Stage(stage, timeout=20)
        assert mapped_regions(third) == 2
        third.process.kill()
        third.process.wait(20)
    assert played(node.first, session, 0, 2) == played(node.second, still, 0, 2)

"""Staged moves between GPUs: through pinned host memory, checksums on the devices, raw and coded there."""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cuda_tools import CudaHost, content, device, first_and_last, two_hosts
from e2e_tools import Reference, all_free, await_hold, hold, shown, step, until

from enginehost.charge import Budget
from enginehost.coded import CodedBuffer, decode, encode, frames_of
from enginehost.regions import fetch
from enginehost.session import Session
from enginehost.shadow import PullFrom
from enginehost.staging import Staging
from worldline.client import Client
from worldline.codec.parts import carried_bytes
from worldline.errors import BadRequest, DataLoss, Mismatch, Unsupported
from worldline.filling import complete
from worldline.fleet import ONE_NODE, TWO_NODES, Fleet, Node
from worldline.manifest import Manifest
from worldline.move import Fault, FaultKind, Fence
from worldline.plan import Chunk, Placement, Plan
from worldline.receipt import Receipt
from worldline.v1 import move_pb2

pytestmark = pytest.mark.cuda

MIB = 1 << 20
MOVED, ABORTED = move_pb2.MOVE_STATE_MOVED, move_pb2.MOVE_STATE_ABORTED
PLAN = Plan("tcp", 64 << 10, 1, Placement.DEVICE, 10.0, 3.0, 3.0, tail_bytes=(5_000, 77), staged=True)
CODED = replace(PLAN, codec="ans")
HAS_CODEC = device(0).frames is not None
PLANS = [PLAN, CODED] if HAS_CODEC else [PLAN]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[CudaHost, CudaHost]]:
    with two_hosts(tmp_path) as pair:
        yield pair
        for host in pair:
            host.host.staging.close()


class Staged:
    """A staged move between two hosts of this process; the test is the mover."""

    def __init__(self, source: CudaHost, destination: CudaHost, session: Session, plan: Plan) -> None:
        self.source, self.destination, self.session_id, self.plan = source, destination, session.session_id, plan
        self.fence = Fence(str(uuid.uuid4()), session.session_id, 1, 1, 1)

    def frozen(self) -> Manifest:
        """Reserve, freeze, fill the source's buffer and carry it over."""
        registered = self.source.source.register(self.session_id, self.fence, self.plan)
        assert registered.device_id == ""
        staged = self.destination.destination.stage(
            self.fence,
            registered.layout,
            registered.descriptor,
            registered.fingerprint,
            10.0,
            PullFrom(None, self.plan),
        )
        size = registered.layout.region_bytes
        self.there = _mapped(self.source, registered.ticket, size, mmap.PROT_READ)
        self.here = _mapped(self.destination, staged.ticket, size, mmap.PROT_READ | mmap.PROT_WRITE)
        manifest = self.source.source.freeze(self.fence, 3.0, 10.0).manifest
        found = self.source.source.checksum(self.fence, self.plan, 10.0)
        self.crcs, self.parts = list(found.chunk_crcs), found.parts
        self.here[:] = self.there[:]
        return manifest

    def pull(self) -> list[int]:
        return self.destination.destination.pull(
            self.fence, self.plan, (), flip=(), wanted=lambda: True, timeout_s=10.0, parts=self.parts
        ).crcs

    def attest(self, manifest: Manifest) -> Receipt:
        self.destination.destination.attest(self.fence, manifest, self.plan, self.crcs, 10.0)
        return self.source.source.attest(self.fence, manifest, self.plan, self.crcs)

    def take(self, receipt: Receipt) -> Session:
        grant = self.source.source.release(self.fence)
        assert grant is not None
        self.destination.destination.commit(self.fence, grant, receipt, 10.0)
        return self.destination.destination.activate(self.fence)


def _mapped(host: CudaHost, ticket: bytes, size_bytes: int, protection: int) -> mmap.mmap:
    descriptor = fetch(host.host.regions.path, ticket)
    try:
        return mmap.mmap(descriptor, size_bytes, prot=protection)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.codec)
def test_a_staged_session_is_the_same(hosts: tuple[CudaHost, CudaHost], plan: Plan) -> None:
    first, second = hosts
    session = first.create(5)
    move = Staged(first, second, session, plan)
    manifest = move.frozen()
    assert move.pull() == move.crcs
    arrived = move.take(move.attest(manifest))
    assert content(arrived) == content(session)
    first.source.free(move.fence, "host-b", "127.0.0.1:1", 2, 10.0)
    assert first.host.staging.kept_bytes
    assert second.host.staging.kept_bytes


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.codec)
def test_a_flip_in_a_buffer_is_never_installed(hosts: tuple[CudaHost, CudaHost], plan: Plan, side: str) -> None:
    first, second = hosts
    session = first.create(5)
    before = content(session)
    move = Staged(first, second, session, plan)
    manifest = move.frozen()
    at = (carried_bytes(move.parts) or len(move.here)) // 2
    if side == "source":
        wrong = bytearray(move.there[:])
        wrong[at] ^= 1
        move.here[:] = wrong
    else:
        move.here[at] ^= 1
    if move.parts:
        with pytest.raises(DataLoss) as lost:
            move.pull()
        assert lost.value.reason == "PART_MISMATCH"
    else:
        assert move.pull() != move.crcs
        with pytest.raises(Mismatch) as caught:
            move.attest(manifest)
        assert caught.value.reason == "PULLED_DIFFERS"
    first.source.resume(move.fence, reinstate=False)
    second.destination.drop(move.fence, 10.0)
    assert content(session) == before


def test_a_device_without_the_codec_refuses_it(
    hosts: tuple[CudaHost, CudaHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = hosts
    session = first.create(5)
    monkeypatch.setattr(first.host.device, "frames", None)
    with pytest.raises(Unsupported, match="install its library"):
        first.source.register(session.session_id, Fence(str(uuid.uuid4()), session.session_id, 1, 1, 1), CODED)


@pytest.mark.parametrize("kind", ["noise", "zeros", "bf16", "mixed"])
@pytest.mark.parametrize("odd", [0, 1])
def test_what_is_coded_comes_out_on_the_other_device(kind: str, odd: int) -> None:
    here, there = first_and_last()
    if here.frames is None or there.frames is None:
        with pytest.raises(Unsupported):
            frames_of(here, "ans")
        return
    size = 150 * MIB + odd
    source = here.allocate("a", size, Budget(size).reserve(size, "test"))
    slot = there.allocate("b", size, Budget(size).reserve(size, "test"))
    pool = Staging(size + 4 * MIB, here)
    buffer = pool.lend(size, "test")
    here.serve()
    generator = torch.Generator(here.torch_device).manual_seed(3)
    if kind in ("noise", "mixed"):
        noise = torch.randint(0, 256, (size,), dtype=torch.uint8, device=here.torch_device, generator=generator)
        source.tensor().copy_(noise)
    if kind in ("bf16", "mixed"):
        half = size // 4 * 2
        values = torch.randn(half // 2, device=here.torch_device, generator=generator).to(torch.bfloat16)
        source.tensor()[:half].copy_(values.view(torch.uint8))
    here.settle()
    with buffer.using() as address:
        parts = encode(here, here.frames, source, size, address)
    carried = carried_bytes(parts)
    assert carried <= size
    assert {"noise": carried == size, "zeros": carried == 0}.get(kind, carried < size)
    there.serve()
    chunks = [Chunk(index, index * 50 * MIB, min(50 * MIB, size - index * 50 * MIB)) for index in range(4)]
    chunks = [chunk for chunk in chunks if chunk.size_bytes > 0]
    coded = CodedBuffer(there, there.frames, buffer, parts)
    assert coded.pull(slot, chunks, flip=(), wanted=lambda: True).crcs == source.crcs(chunks).chunks
    if carried:
        wrong = complete(size, (*parts[:-1], replace(parts[-1], crc=parts[-1].crc ^ 1)))
        with buffer.using() as address, pytest.raises(DataLoss):
            decode(there, there.frames, wrong, address, slot, size)
    with pytest.raises(BadRequest):
        CodedBuffer(there, there.frames, buffer, parts[1:]).pull(slot, chunks, flip=(), wanted=lambda: True)
    buffer.give_back(unmapped=True)
    pool.close()
    for arena in (source, slot):
        arena.close()


# --- fleets


def _fleet(directory: Path, nodes: tuple[Node, ...]) -> Fleet:
    last = torch.cuda.device_count() - 1
    options = {
        "host-a": {"device": "cuda:0"},
        "host-b": {"device": f"cuda:{last}"},
        "enginehost": {"budget_bytes": 4 << 30},
        "admission": {"heartbeat_s": 0.2, "silent_s": 1.0, "stall_s": 1.0, "no_progress_s": 2.0},
    }
    return Fleet(directory, nodes, fault_injection=True, options=options)


@pytest.fixture(scope="module", params=["two nodes", "one node"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    nodes = TWO_NODES if request.param == "two nodes" else ONE_NODE
    with _fleet(tmp_path_factory.mktemp("staged"), nodes) as running, Client(running.target) as opened:
        yield opened


@pytest.mark.parametrize("codec", ["raw", "zstd", "ans"] if HAS_CODEC else ["raw", "zstd"])
def test_sessions_play_on_exactly_over_tcp(client: Client, codec: str) -> None:
    reference = Reference(client, "host-a", "small")
    session = client.place("window-rewrite", "small", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        for number in range(4):
            assert shown(step(play)) == reference[number]
            asked = client.request_move(
                session.session_id, ("host-b", "host-a")[number % 2], transport="tcp", codec=codec
            )
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == MOVED, move
            assert (move.plan.transport, move.plan.staged, move.plan.codec) == ("tcp", True, codec)
            assert move.plan.placement == int(Placement.DEVICE)
        assert shown(step(play)) == reference[4]
    client.close_session(session)
    reference.close()
    until("all memory is given back", lambda: all_free(client))


def test_what_the_wire_breaks_is_sent_again(client: Client) -> None:
    reference = Reference(client, "host-a")
    session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
    with client.play(session, with_state_crc=True) as play:
        assert shown(step(play)) == reference[0]
        for times, state in ((0, ABORTED), (1, MOVED)):
            fault = Fault(FaultKind.FLIP, chunk=1, times=times)
            asked = client.request_move(session.session_id, "host-b", transport="tcp", faults=[fault])
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == state, move
            assert shown(step(play)) == reference[play.next_block - 1]
    client.close_session(session)
    reference.close()


@pytest.mark.parametrize("victim", ["host-b", "mover-b"])
def test_a_process_dies_while_buffers_are_mapped(tmp_path: Path, victim: str) -> None:
    with _fleet(tmp_path / "fleet", TWO_NODES) as fleet, Client(fleet.target) as client:
        reference = Reference(client, "host-a").upto(3)
        session = client.place("window-rewrite", "tiny", 42, host_id="host-a")
        with client.play(session, with_state_crc=True, patience_s=60) as play:
            assert shown(step(play)) == reference[0]
            asked = client.request_move(session.session_id, "host-b", faults=[hold("verify", 3.0)])
            await_hold(client, asked.move_id, "verify")
            fleet.kill(victim)
            fleet.restart(victim)
            move = client.wait(asked.move_id, timeout_s=60)
            assert move.state == ABORTED, move
            assert shown(step(play)) == reference[1]
        client.close_session(session)
        reference.close()

"""The motion set on engine hosts: proven before they are ready, made in slots, bound by receipts, refused if false."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from enginehost_tools import PLAN, LocalHost, ToyEngine, ToySession, crcs_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginehost.cold_proof import prove
from enginehost.info import session_info
from enginehost.motion import MIN_MADE_BYTES, MOST_TOLD, made_of
from enginehost.ownership import State
from enginehost.session import Session
from enginehost.shadow import PullFrom
from worldline import wire
from worldline.crc import crc32
from worldline.engine import StateTree
from worldline.errors import BadRequest, DataLoss, Exhausted, Mismatch, NotFound
from worldline.layout import Layout, Leaf, LeafKind, aligned
from worldline.made import Made
from worldline.manifest import Manifest
from worldline.move import Fence, RegionRef
from worldline.plan import Placement, Plan
from worldline.receipt import Receipt

PULLED = replace(PLAN, transport="local", placement=Placement.DEVICE)
COLD = ("cold", "ones", "spare")


class SpareSession(ToySession):
    cold: Sequence[str] = COLD

    def cold_paths(self) -> Sequence[str]:
        return self.cold


class SpareEngine(ToyEngine):
    """With leaves that nothing uses: 40,000 bytes of zeros and 6,000 of ones in bfloat16."""

    def create(self, preset: str, seed: int) -> StateTree:
        tree = super().create(preset, seed)
        assert isinstance(tree, dict)
        return {**tree, "ones": torch.ones(3_000, dtype=torch.bfloat16), "spare": torch.zeros(10_000)}

    def load(self, preset: str, tree: StateTree) -> SpareSession:
        return SpareSession(self, tree)


def host(directory: Path, host_id: str, motion_set: str = "toy/one", **values: object) -> LocalHost:
    local = LocalHost(directory, host_id, motion_set=motion_set, motion_set_blocks=3, **values)
    local.engine = SpareEngine()
    local.host.engines["toy"] = local.engine
    return local


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[LocalHost, LocalHost]]:
    pair = host(tmp_path, "host-a"), host(tmp_path, "host-b")
    yield pair
    for local in pair:
        local.close()


class ByHand:
    """A move between two hosts of this process; `carry` is what a mover does."""

    def __init__(self, source: LocalHost, destination: LocalHost, session: Session, plan: Plan) -> None:
        self.source, self.destination, self.session, self.plan = source, destination, session, plan
        self.fence: Fence = source.fence(session.session_id, epoch=session.ownership.epoch)

    def stage(self, pull: bool = False) -> None:
        told = self.source.source.register(self.session.session_id, self.fence)
        region = RegionRef(self.source.host.host_id, told.ticket, "")
        self.destination.destination.stage(
            self.fence,
            told.layout,
            told.descriptor,
            told.fingerprint,
            10.0,
            PullFrom(region, self.plan) if pull else None,
            self.plan,
        )
        self.there = self.destination.host.sessions.get(self.session.session_id)

    def freeze(self) -> Manifest:
        return self.source.source.freeze(self.fence, 10.0, 10.0).manifest

    def carry(self) -> None:
        """Copy what is sent."""
        source, slot = (session.require_copy().slot.arena.map for session in (self.session, self.there))
        for chunk in self.plan.chunks(len(slot)):
            if not chunk.fill:
                end = chunk.offset + chunk.size_bytes
                slot[chunk.offset : end] = source[chunk.offset : end]

    def receipts(self) -> Receipt:
        self.stage()
        manifest = self.freeze()
        self.carry()
        self.destination.destination.attest(self.fence, manifest, self.plan, crcs_of(self.there, self.plan))
        return self.source.source.attest(self.fence, manifest, self.plan, crcs_of(self.session, self.plan))

    def take(self, receipt: Receipt) -> Session:
        grant = self.source.source.release(self.fence)
        assert grant is not None
        self.destination.destination.commit(self.fence, grant, receipt, 10.0)
        session = self.destination.destination.activate(self.fence)
        self.source.source.free(self.fence, self.destination.host.host_id, "127.0.0.1:1", session.ownership.epoch, 10.0)
        return session

    def give_up(self) -> None:
        assert self.source.source.resume(self.fence, reinstate=False) is State.LIVE
        self.destination.destination.drop(self.fence, 10.0)


def told(session: Session) -> tuple[Made, ...]:
    """What admission is told of it."""
    return wire.made_from(session_info(session).made)


def place(session: Session, path: str) -> Leaf:
    return next(leaf for leaf in session.require_copy().slot.layout.leaves if leaf.path == path)


def write(session: Session, path: str, at: int = 0) -> None:
    """Write into the live region, as an engine would that lies."""
    session.require_copy().slot.arena.map[place(session, path).offset + at] ^= 1


def test_off_unless_it_is_set(tmp_path: Path) -> None:
    local = host(tmp_path, "host-a", motion_set="")
    prove(local.host)
    assert told(local.create()) == ()
    local.close()


def test_what_is_proven_is_told(hosts: tuple[LocalHost, LocalHost]) -> None:
    here, _ = hosts
    free_bytes = here.host.budget.free_bytes
    prove(here.host)
    assert here.host.budget.free_bytes == free_bytes
    session = here.create()
    ones, spare = place(session, "ones"), place(session, "spare")
    assert told(session) == (
        Made(ones.offset, 6_000, b"\x80\x3f"),
        Made(spare.offset, 40_000),
    )


def test_a_session_moved_k_times_goes_on_as_one_that_never_was(hosts: tuple[LocalHost, LocalHost]) -> None:
    for local in hosts:
        prove(local.host)
    session, still = hosts[0].create("moved"), hosts[1].create("still")
    for number in range(4):
        at, to = hosts[number % 2], hosts[(number + 1) % 2]
        mine, theirs = at.play(session, 2), hosts[1].play(still, 2)
        assert [(block.readout, block.state_crc) for block in mine] == [
            (block.readout, block.state_crc) for block in theirs
        ]
        made = told(session)
        assert sum(item.size_bytes for item in made) == 46_000
        move = ByHand(at, to, session, replace(PLAN, made=made))
        session = move.take(move.receipts())


class DrawnEngine(SpareEngine):
    """Leaves of drawn sizes and contents, of which some are declared cold."""

    def __init__(self, drawn: Sequence[tuple[int, str, bool]]) -> None:
        super().__init__()
        self.drawn = drawn

    def create(self, preset: str, seed: int) -> StateTree:
        tree = ToyEngine.create(self, preset, seed)
        assert isinstance(tree, dict)
        noise = torch.Generator().manual_seed(seed)
        for number, (size, content, _) in enumerate(self.drawn):
            values = {
                "zeros": torch.zeros(size, dtype=torch.int16),
                "ones": torch.ones(size, dtype=torch.int16),
                "noise": torch.randint(-(1 << 15), 1 << 15, (size,), dtype=torch.int16, generator=noise),
            }
            tree[f"n{number}"] = values[content]
        return tree

    def load(self, preset: str, tree: StateTree) -> SpareSession:
        session = super().load(preset, tree)
        session.cold = ["cold", *(f"n{number}" for number, (_, _, cold) in enumerate(self.drawn) if cold)]
        return session


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(
        st.tuples(st.integers(1, 4_000), st.sampled_from(["zeros", "ones", "noise"]), st.booleans()), max_size=7
    ),
    seed=st.integers(0, 1 << 30),
)
def test_whichever_leaves_are_cold(
    hosts: tuple[LocalHost, LocalHost], drawn: list[tuple[int, str, bool]], seed: int
) -> None:
    for local in hosts:
        local.engine = local.host.engines["toy"] = DrawnEngine(drawn)
        prove(local.host)
    here, there = hosts
    session = here.create(f"s-{uuid.uuid4().hex}", seed=seed)
    here.play(session, 1)
    made = told(session)
    declared = {f"n{n}" for n, (_, content, cold) in enumerate(drawn) if cold and content != "noise"}
    assert sum(item.size_bytes for item in made) >= sum(
        place(session, path).size_bytes for path in declared if place(session, path).size_bytes >= MIN_MADE_BYTES
    )
    before = bytes(session.require_copy().slot.arena.map)
    move = ByHand(here, there, session, replace(PLAN, made=made))
    receipt = move.receipts()
    assert bytes(move.there.require_copy().slot.arena.map) == before
    landed = move.take(receipt)
    assert told(landed) == made
    there.play(landed, 1)
    landed.let_go()


def test_a_destination_without_the_setting_makes_what_the_plan_says(tmp_path: Path) -> None:
    here, there = host(tmp_path, "host-a"), host(tmp_path, "host-b", motion_set="")
    prove(here.host)
    session = here.create()
    here.play(session, 1)
    move = ByHand(here, there, session, replace(PLAN, made=told(session)))
    landed = move.take(move.receipts())
    assert told(landed) == (), "it has proven nothing: its own moves send everything"
    there.play(landed, 1)
    for local in (here, there):
        local.close()


@pytest.mark.parametrize("path", ["ones", "spare"])
def test_a_cold_leaf_that_is_written_after_all(hosts: tuple[LocalHost, LocalHost], path: str) -> None:
    here, there = hosts
    prove(here.host)
    session = here.create()
    blocks = here.play(session, 1)
    write(session, path, at=5_000)
    move = ByHand(here, there, session, replace(PLAN, made=told(session)))
    with pytest.raises(Mismatch) as caught:
        move.receipts()
    assert caught.value.reason == "COLD_LEAF_WRITTEN"
    assert path in caught.value.violations
    assert path in caught.value.message
    move.give_up()
    assert here.play(session, 1)[0].block_index == blocks[0].block_index + 1, "the source plays on"
    assert told(session) == (), "from now on all of it is sent"
    again = ByHand(here, there, session, replace(PLAN, made=told(session)))
    landed = again.take(again.receipts())
    assert there.play(landed, 1)[0].state_crc


def test_a_plan_that_makes_what_was_not_proven(hosts: tuple[LocalHost, LocalHost]) -> None:
    here, there = hosts
    prove(here.host)
    session = here.create()
    a = place(session, "a")
    known = told(session)
    move = ByHand(here, there, session, replace(PLAN, made=(Made(a.offset, 64),)))
    with pytest.raises(Mismatch) as caught:
        move.receipts()
    assert caught.value.reason == "MOTION_SET"
    move.give_up()
    assert told(session) == known


def test_a_flip_in_the_made_part_of_the_slot(hosts: tuple[LocalHost, LocalHost]) -> None:
    """Before its receipt it is in the checksums; after, the commit reads every byte once more."""
    here, there = hosts
    prove(here.host)
    session = here.create()
    move = ByHand(here, there, session, replace(PLAN, made=told(session)))
    receipt = move.receipts()
    write(move.there, "spare", at=39_999)
    grant = here.source.release(move.fence)
    assert grant is not None
    with pytest.raises(DataLoss) as caught:
        there.destination.commit(move.fence, grant, receipt, 10.0)
    assert caught.value.reason == "CHUNK_MISMATCH"
    assert here.source.resume(move.fence, reinstate=True) is State.LIVE
    here.play(session, 1)


def test_what_is_made_is_not_pulled_unless_it_is_asked_for(hosts: tuple[LocalHost, LocalHost]) -> None:
    here, there = hosts
    prove(here.host)
    session = here.create()
    plan = replace(PULLED, made=told(session))
    write(session, "spare")
    move = ByHand(here, there, session, plan)
    move.stage(pull=True)
    manifest = move.freeze()

    def pull(indexes: Sequence[int]) -> list[int]:
        return there.destination.pull(move.fence, plan, indexes, flip=(), wanted=lambda: True, timeout_s=10.0).crcs

    source = crcs_of(session, plan)
    pulled = pull(())
    (wrong,) = [index for index, crc in enumerate(source) if pulled[index] != crc]
    assert plan.chunks(session.require_copy().slot.layout.region_bytes)[wrong].fill
    assert pull([wrong]) == [source[wrong]]
    with pytest.raises(Mismatch, match="writes what it declares cold"):
        here.source.attest(move.fence, manifest, plan, source)


def test_a_staged_move_makes_it_in_the_buffer_and_in_the_slot(hosts: tuple[LocalHost, LocalHost]) -> None:
    """The mover checks made chunks in the buffer, whatever an earlier move has left there."""
    here, there = hosts
    prove(here.host)
    session = here.create()
    plan = replace(PLAN, placement=Placement.DEVICE, staged=True, made=told(session))
    region_bytes = session.require_copy().slot.layout.region_bytes
    buffer = there.host.staging.lend(region_bytes, "an earlier move")
    with buffer.using() as address:
        ctypes.memset(address, 0x5A, region_bytes)
    buffer.give_back(unmapped=True)
    fence = here.fence("s")
    known = here.source.register("s", fence, plan)
    there.destination.stage(fence, known.layout, known.descriptor, known.fingerprint, 10.0, PullFrom(None, plan), plan)
    manifest = here.source.freeze(fence, 10.0, 10.0).manifest
    source = here.source.checksum(fence, plan, 10.0).chunk_crcs
    staged = there.host.sessions.get("s")
    filled, buffer = session.staged_through(fence.move_id), staged.staged_through(fence.move_id)
    with filled.using() as sent, buffer.using() as landed:
        for chunk in plan.chunks(region_bytes):
            if not chunk.fill:
                ctypes.memmove(landed + chunk.offset, sent + chunk.offset, chunk.size_bytes)
            held = ctypes.string_at(landed + chunk.offset, chunk.size_bytes)
            assert crc32(held) == source[chunk.index]
    pulled = there.destination.pull(fence, plan, (), flip=(), wanted=lambda: True, timeout_s=10.0)
    assert tuple(pulled.crcs) == tuple(source)
    there.destination.attest(fence, manifest, plan, source, 10.0)
    receipt = here.source.attest(fence, manifest, plan, source)
    grant = here.source.release(fence)
    assert grant is not None
    there.destination.commit(fence, grant, receipt, 10.0)
    there.play(there.destination.activate(fence), 1)


# --- what does not start


def test_an_engine_that_lies_is_refused_at_the_start(hosts: tuple[LocalHost, LocalHost]) -> None:
    here, _ = hosts

    def lie(session: ToySession) -> None:
        session.tree["spare"][int(session.tree["block"])] = 1.0

    here.engine.misbehave = lie
    with pytest.raises(Mismatch, match="block 0 has written it") as caught:
        prove(here.host)
    assert caught.value.reason == "COLD_NOT_PROVEN"
    here.engine.misbehave = lambda session: None
    assert told(here.create()) == ()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"motion_set": "toy"}, BadRequest),
        ({"motion_set": "toy/two"}, NotFound),
        ({"motion_set": "none/one"}, NotFound),
        ({"budget_bytes": 100}, Exhausted),
    ],
)
def test_what_cannot_be_proven_is_told(tmp_path: Path, values: dict[str, object], kind: type[Exception]) -> None:
    local = host(tmp_path, "host-a", **{"motion_set": "toy/one", **values})
    with pytest.raises(kind):
        prove(local.host)
    local.close()


@pytest.mark.slow
def test_a_process_without_its_proof_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "enginehost", "--motion-set", "transformers/tiny-qwen2"]
    directories = ["--state-dir", str(tmp_path), "--regions-dir", str(tmp_path)]
    ended = subprocess.run([*command, *directories], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, b"declares no cold leaves" in ended.stderr) == (2, True), ended.stderr


# --- which stretches


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, dict[str, bytes]]:
    """Leaves of some thousand bytes, some sharing memory, and the constants that some are said to hold."""
    leaves, constants, at = [], {}, 0
    for number in range(draw(st.integers(1, 14))):
        path, size_bytes = f"leaf/{number:03}", draw(st.integers(0, 3_000)) * 2
        leaves.append(Leaf(path, LeafKind.TENSOR, "bfloat16", (size_bytes // 2,), (), at, size_bytes, number))
        if size_bytes and draw(st.booleans()):
            leaves.append(Leaf(f"{path}/x", LeafKind.TENSOR, "bfloat16", (1,), (), at, 2, number))
        if draw(st.booleans()):
            constants[path] = draw(st.sampled_from([b"\0", b"\0", b"\x80\x3f"]))
        at = aligned(at + size_bytes)
    return Layout(tuple(leaves), max(64, at)), constants


@given(layouts())
def test_only_cold_leaves_are_made(drawn: tuple[Layout, dict[str, bytes]]) -> None:
    layout, constants = drawn
    shared = {leaf.group for leaf in layout.leaves if leaf.path.endswith("/x")}
    padding, zeros, ones, other = range(4)
    holds = bytearray(layout.region_bytes)
    for leaf in layout.leaves:
        fill = b"" if leaf.group in shared else constants.get(leaf.path, b"")
        kind = other if not fill else zeros if fill == b"\0" else ones
        holds[leaf.offset : leaf.offset + leaf.size_bytes] = bytes([kind]) * leaf.size_bytes
    made = made_of(layout, constants)
    for item in made:
        assert item.size_bytes >= MIN_MADE_BYTES
        # Padding is zeros, and goes with zeros only.
        assert {*holds[item.offset : item.end]} <= ({zeros, padding} if item.fill == b"\0" else {ones})
    replace(PLAN, made=made).chunks(layout.region_bytes)
    for leaf in layout.leaves:
        if leaf.path in constants and leaf.group not in shared and leaf.size_bytes >= MIN_MADE_BYTES:
            assert any(item.offset <= leaf.offset and leaf.offset + leaf.size_bytes <= item.end for item in made)


def test_the_largest_stretches_are_told() -> None:
    leaves, at = [], 0
    for number in range(MOST_TOLD + 50):
        size_bytes = MIN_MADE_BYTES + 64 * number
        for path, size in ((f"{number:04}/cold", size_bytes), (f"{number:04}/warm", 64)):
            leaves.append(Leaf(path, LeafKind.TENSOR, "uint8", (size,), (), at, size, len(leaves)))
            at += size
    layout = Layout(tuple(leaves), at)
    made = made_of(layout, {leaf.path: b"\0" for leaf in leaves if leaf.path.endswith("cold")})
    assert len(made) == MOST_TOLD
    assert min(item.size_bytes for item in made) == MIN_MADE_BYTES + 64 * 50
    assert list(made) == sorted(made, key=lambda item: item.offset)

"""Staged moves between two real movers: what is filled is carried and told of while the rest is not there yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from mover_fakes import FakeHost, Pair, moved, plan, request, until

from worldline import wire
from worldline.codec.parts import Part
from worldline.crc import crc32
from worldline.errors import BadRequest, DataLoss, Exhausted, TimedOut, Unavailable, WorldlineError
from worldline.plan import Placement, Plan
from worldline.receipt import require_match
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.v1 import mover_service_pb2 as mover_pb

pytestmark = pytest.mark.usefixtures("no_leaks")

RAW = plan(placement=Placement.DEVICE, staged=True)
CODED = plan(placement=Placement.DEVICE, staged=True, codec="ans")
SIZE = 1 << 20
HALF = SIZE // 2
# What a device could leave of the two planes of such a state.
PARTS = (Part(300_000, 1), Part(200_001, 2))
CARRIED = 500_001


class Device(FakeHost):
    """A host whose sessions lie on a device: `said` is what its buffer's filling says, `marks` what it hears landing.

    Its mover may not be asked twice for the same: a call that is not expected fails.
    """

    said: Callable[[], Iterator[pb.FillResponse]]
    landing_fails: WorldlineError | None = None

    def __init__(self, host_id: str, regions_dir: Path) -> None:
        super().__init__(host_id, regions_dir, SIZE)
        self.landed = threading.Condition()
        self.marks: list[int] = []
        self.parts: list[Part] = []

    def crcs(self, chosen: Plan) -> list[int]:
        """Of the state, as the device takes them."""
        chunks = chosen.chunks(self.layout.region_bytes)
        return [crc32(self.content[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks]

    def until_landed(self, landed_bytes: int) -> None:
        """Wait for a mark."""
        with self.landed:
            assert self.landed.wait_for(lambda: bool(self.marks) and self.marks[-1] >= landed_bytes, 20)

    def Fill(self, request: pb.FillRequest, context: grpc.ServicerContext) -> Iterator[pb.FillResponse]:
        self._asked("Fill")
        yield from self.said()

    def PullLanding(
        self, request_iterator: Iterator[pb.PullLandingRequest], context: grpc.ServicerContext
    ) -> pb.PullLandingResponse:
        self._asked("PullLanding")
        first = next(request_iterator)
        if self.landing_fails is not None:
            raise self.landing_fails
        for message in request_iterator:
            with self.landed:
                self.marks.append(message.landed_bytes)
                self.parts += wire.parts_from(message.parts)
                self.landed.notify_all()
        crcs = self.crcs(wire.plan_from(first.pull.plan))
        return pb.PullLandingResponse(pulled=pb.PullResponse(chunk_crcs=crcs, copy_s=0.1, verify_s=0.001))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    running = Pair(tmp_path_factory.mktemp("staged"))
    yield running
    assert running.close() == [0, 0]


@pytest.fixture
def hosts(pair: Pair) -> Iterator[tuple[Device, Device]]:
    with _devices(pair) as both:
        yield both
        until("both movers are idle", lambda: pair.a.idle() and pair.b.idle())


@contextmanager
def _devices(pair: Pair) -> Iterator[tuple[Device, Device]]:
    source, destination = (
        Device(name, directory) for name, directory in zip(("host-a", "host-b"), pair.directories, strict=True)
    )
    destination.content = source.content
    try:
        yield source, destination
    finally:
        source.close()
        destination.close()


def staged(pair: Pair, hosts: tuple[Device, Device], chosen: Plan) -> mover_pb.MoveResponse:
    return moved(pair.a, request(*hosts, pair.b.address, chosen))[-1]


def last(source: Device, chosen: Plan, filled_bytes: int, parts: tuple[Part, ...] = ()) -> pb.FillResponse:
    return pb.FillResponse(
        filled_bytes=filled_bytes, parts=wire.parts_to(parts), chunk_crcs=source.crcs(chosen), last=True
    )


def test_the_first_half_has_landed_before_the_second_is_there(pair: Pair, hosts: tuple[Device, Device]) -> None:
    source, destination = hosts
    whole = source.content
    source.fill(whole[:HALF] + bytes(HALF))

    def said() -> Iterator[pb.FillResponse]:
        yield pb.FillResponse(filled_bytes=HALF)
        # LANDED_BYTES is more than this state: only its end is told. So the mover's own word says that half is there.
        until("half has landed", lambda: destination.slot_bytes()[:HALF] == whole[:HALF])
        assert destination.slot_bytes()[HALF:] == bytes(HALF)
        source.fill(whole)
        yield last(source, RAW, SIZE)

    source.said = said
    done = staged(pair, hosts, RAW)
    assert destination.slot_bytes() == whole
    assert destination.marks == sorted(destination.marks)
    assert destination.marks[-1] == SIZE
    assert destination.parts == []
    receipts = (wire.receipt_from(done.source_receipt), wire.receipt_from(done.destination_receipt))
    require_match(*receipts, RAW.chunks(SIZE))
    assert list(receipts[0].chunk_crcs) == source.crcs(RAW)
    assert source.calls == ["RegisterState", "Freeze", "Fill", "Attest.SOURCE"]
    assert destination.calls == ["Stage", "PullLanding", "Attest.DESTINATION"]


def test_a_coded_state_is_carried_as_far_as_it_goes(pair: Pair, hosts: tuple[Device, Device]) -> None:
    source, destination = hosts

    def said() -> Iterator[pb.FillResponse]:
        yield pb.FillResponse(filled_bytes=PARTS[0].size_bytes, parts=wire.parts_to(PARTS[:1]))
        yield last(source, CODED, CARRIED, PARTS[1:])

    source.said = said
    done = staged(pair, hosts, CODED)
    assert destination.parts == list(PARTS)
    assert destination.slot_bytes()[:CARRIED] == source.content[:CARRIED]
    end = -(-CARRIED // CODED.chunk_bytes) * CODED.chunk_bytes
    assert destination.slot_bytes()[end:] == bytes(SIZE - end), "what is not carried is not sent"
    assert done.wire_bytes == CARRIED
    assert list(done.source_receipt.chunk_crcs) == source.crcs(CODED)


def test_a_state_of_zeros_carries_nothing(pair: Pair, hosts: tuple[Device, Device]) -> None:
    source, destination = hosts
    nothing = (Part(0, 0), Part(0, 0))
    source.said = lambda: iter([last(source, CODED, 0, nothing)])
    assert staged(pair, hosts, CODED).wire_bytes == 0
    assert destination.slot_bytes() == bytes(SIZE)


@pytest.mark.parametrize("chosen", [RAW, CODED], ids=lambda chosen: chosen.codec)
def test_a_host_that_hangs_while_it_fills(pair: Pair, hosts: tuple[Device, Device], chosen: Plan) -> None:
    """The wire notices: no byte moves."""
    source, _ = hosts
    over = threading.Event()

    def said() -> Iterator[pb.FillResponse]:
        yield pb.FillResponse(filled_bytes=1000, parts=())
        over.wait(30)

    source.said = said
    quick = plan(placement=Placement.DEVICE, staged=True, codec=chosen.codec, no_progress_s=0.5)
    started_s = time.monotonic()
    with pytest.raises((TimedOut, Unavailable)) as caught:
        staged(pair, hosts, quick)
    assert caught.value.reason in ("NO_PROGRESS", "PEER_SILENT")
    assert time.monotonic() - started_s < 20, "long before the deadline"
    over.set()


def test_a_fill_that_fails_is_the_moves_error(pair: Pair, hosts: tuple[Device, Device]) -> None:
    source, _ = hosts

    def said() -> Iterator[pb.FillResponse]:
        yield pb.FillResponse(filled_bytes=1000)
        raise Exhausted("the device is out of memory", reason="DEVICE_MEMORY")

    source.said = said
    with pytest.raises(Exhausted) as caught:
        staged(pair, hosts, RAW)
    assert caught.value.reason == "DEVICE_MEMORY"


def test_a_fill_that_ends_early(pair: Pair, hosts: tuple[Device, Device]) -> None:
    hosts[0].said = lambda: iter([pb.FillResponse(filled_bytes=1000)])
    with pytest.raises(DataLoss) as caught:
        staged(pair, hosts, RAW)
    assert caught.value.reason == "BUFFER_NOT_FILLED"


@pytest.mark.parametrize(
    "lie",
    [
        [pb.FillResponse(filled_bytes=SIZE + 1)],
        [pb.FillResponse(filled_bytes=1000), pb.FillResponse(filled_bytes=999)],
        [pb.FillResponse(filled_bytes=1 << 63)],
    ],
    ids=["beyond", "falls", "huge"],
)
def test_a_mark_that_cannot_be(pair: Pair, hosts: tuple[Device, Device], lie: list[pb.FillResponse]) -> None:
    hosts[0].said = lambda: iter([*lie, last(hosts[0], RAW, SIZE)])
    with pytest.raises(BadRequest) as caught:
        staged(pair, hosts, RAW)
    assert caught.value.reason == "BAD_MARK"


@pytest.mark.parametrize(
    "parts", [(), PARTS[:1], (*PARTS, Part(1, 1)), (Part(SIZE, 1), Part(1, 1))], ids=["none", "few", "many", "long"]
)
def test_parts_that_cannot_be(pair: Pair, hosts: tuple[Device, Device], parts: tuple[Part, ...]) -> None:
    hosts[0].said = lambda: iter([last(hosts[0], CODED, CARRIED, parts)])
    with pytest.raises(BadRequest) as caught:
        staged(pair, hosts, CODED)
    assert caught.value.reason == "BAD_PARTS"


def test_a_destination_that_fails_while_bytes_land(pair: Pair, hosts: tuple[Device, Device]) -> None:
    """It ends the move at once, not when the last byte is there."""
    source, destination = hosts
    over = threading.Event()

    def said() -> Iterator[pb.FillResponse]:
        yield pb.FillResponse(filled_bytes=1000)
        over.wait(30)

    source.said = said
    destination.landing_fails = DataLoss("a part's bytes are not the source's", reason="PART_MISMATCH")
    with pytest.raises(DataLoss) as caught:
        staged(pair, hosts, RAW)
    assert caught.value.reason == "PART_MISMATCH"
    over.set()

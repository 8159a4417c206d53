"""The pipeline: whatever the plan, the bytes are those of the source or the move fails and says where."""

from __future__ import annotations

import mmap
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mover_moves import memory, move, plan, result

from mover.job import Job
from mover.memory import Region, address_of
from mover.messages import Outcome, WireFault
from mover.verification import PLACEMENTS, Checks, lane_for
from worldline.crc import crc32
from worldline.errors import BadRequest, Cancelled, DataLoss, Internal, Unsupported, WorldlineError
from worldline.move import new_token
from worldline.plan import Placement
from worldline.receipt import whole_crc
from worldline.transport import Landed, Terms, Transport

pytestmark = pytest.mark.usefixtures("no_leaks")

TRANSPORTS = ("tcp", "local")


@settings(max_examples=25, deadline=None)
@given(
    transport=st.sampled_from(TRANSPORTS),
    size_bytes=st.integers(1, 40_000),
    pages=st.integers(1, 4),
    streams=st.integers(1, 4),
    placement=st.sampled_from(PLACEMENTS),
    tail_bytes=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
    flips=st.sets(st.integers(0, 12), max_size=4),
    drops=st.sets(st.integers(0, 12), max_size=3),
)
def test_any_plan_carries_any_region_exactly(
    transports: dict[str, Transport],
    transport: str,
    size_bytes: int,
    pages: int,
    streams: int,
    placement: Placement,
    tail_bytes: tuple[int, ...],
    flips: set[int],
    drops: set[int],
) -> None:
    chosen = plan(transport, pages * 4096, streams, placement=placement, tail_bytes=tail_bytes)
    chunks = chosen.chunks(size_bytes)
    faults = [WireFault("FLIP", chunk, 1, 0.0) for chunk in flips] + [
        WireFault("DROP", chunk, 1, 0.0) for chunk in drops
    ]
    done = move(transports, chosen, size_bytes, faults)
    assert isinstance(done.sent, Outcome), done
    assert isinstance(done.received, Outcome), done
    assert done.slot == done.source
    assert done.sent.crcs == done.received.crcs
    assert whole_crc(chunks, done.received.crcs) == crc32(done.source)
    hit = {chunk for chunk in flips | drops if chunk < len(chunks)}
    assert done.sent.retried_chunks == done.received.retried_chunks == len(hit)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_second_mismatch_names_the_chunk(
    transports: dict[str, Transport], transport: str, placement: Placement
) -> None:
    faults = [WireFault("FLIP", 3, 0, 0.0)]
    done = move(transports, plan(transport, placement=placement), 40_000, faults)
    error = done.failure
    assert isinstance(error, DataLoss)
    assert error.reason == "CHUNK_MISMATCH"
    assert (error.numbers["chunk"], error.numbers["offset"]) == (3, 3 * 4096)
    source = f"{crc32(done.source[3 * 4096 : 4 * 4096]):08x}"
    slot = f"{crc32(done.slot[3 * 4096 : 4 * 4096]):08x}"
    assert (error.numbers["source_crc"], error.numbers["destination_crc"]) == (source, slot)
    assert "on the way or in the landing memory" in str(error)
    assert isinstance(done.sent, WorldlineError)


def test_without_time_nothing_is_sent_again(transports: dict[str, Transport]) -> None:
    faults = [WireFault("FLIP", 3, 1, 0.0)]
    done = move(transports, plan("tcp"), 40_000, faults, remaining_s=1e-6)
    assert isinstance(done.failure, DataLoss)
    assert "no time" in str(done.failure)


def test_a_source_that_changes_between_two_reads_is_found(transports: dict[str, Transport]) -> None:
    """A chunk is sent twice; what was flipped on its way makes the second read, before which the source has changed."""
    size_bytes = 8192
    terms = Terms(str(uuid.uuid4()), new_token(), 1, 5.0)
    chosen = plan("tcp", streams=1)
    with memory(os.urandom(size_bytes)) as source, memory(bytes(size_bytes)) as slot, ThreadPoolExecutor(2) as pool:
        sender, receiver = Job(transports, 1), Job(transports, 1)
        try:
            sender.map(os.dup(source), size_bytes, writable=False)
            receiver.map(os.dup(slot), size_bytes, writable=True)

            def scribble(kind: str, chunk: int) -> None:
                if kind == "DELAY":
                    os.pwrite(source, b"changed!", 0)

            # DELAY on the last chunk happens after the first was read and before it is read again.
            faults = [WireFault("FLIP", 0, 1, 0.0), WireFault("DELAY", 1, 1, 0.0)]
            sender.connect(chosen, terms, receiver.listen(chosen, terms), faults, scribble)
            receiving = pool.submit(receiver.run, 20.0, lambda progress: None)
            sending = pool.submit(sender.run, 20.0, lambda progress: None)
            with pytest.raises(DataLoss) as error:
                sending.result(20)
            sender.cancel()
            result(receiving, receiver)
        finally:
            sender.close()
            receiver.close()
    assert error.value.reason == "SOURCE_CHANGED"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cancel_wakes_both_ends(transports: dict[str, Transport], transport: str) -> None:
    terms = Terms(str(uuid.uuid4()), new_token(), 2, 20.0)
    size_bytes = 1 << 20
    with memory(bytes(size_bytes)) as source, memory(bytes(size_bytes)) as slot, ThreadPoolExecutor(2) as pool:
        sender, receiver = Job(transports, 1), Job(transports, 1)
        sender.map(os.dup(source), size_bytes, writable=False)
        receiver.map(os.dup(slot), size_bytes, writable=True)
        stalled = threading.Event()
        faults = [WireFault("DELAY", 5, 1, 60.0)]
        chosen = plan(transport)
        sender.connect(chosen, terms, receiver.listen(chosen, terms), faults, lambda kind, chunk: stalled.set())
        receiving = pool.submit(receiver.run, 20.0, lambda progress: None)
        sending = pool.submit(sender.run, 20.0, lambda progress: None)
        assert stalled.wait(20)
        receiver.cancel()
        with pytest.raises(Cancelled):
            receiving.result(20)
        sender.cancel()
        with pytest.raises(WorldlineError):
            sending.result(20)
        sender.close()
        receiver.close()


# --- lanes


def test_a_placement_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="DEVICE"):
        lane_for(Placement.DEVICE, Checks(memoryview(b""), ()), 1)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_lane_checks_what_lies_in_the_slot(placement: Placement) -> None:
    """Also when the slot changes after the chunk landed and before it is checked, as SEQUENTIAL allows."""
    slot = bytearray(os.urandom(16_384))
    chunks = plan("tcp").chunks(len(slot))
    with memoryview(slot) as view:
        checks = Checks(view, chunks)
        lane = lane_for(placement, checks, 2)
        for chunk in chunks[:-1]:
            lane.landed(Landed(chunk, crc32(slot[chunk.offset : chunk.offset + chunk.size_bytes])))
        if placement is Placement.SEQUENTIAL:
            slot[5_000] ^= 1
        lane.drain()
        lane.close()
        assert checks.missing() == [len(chunks) - 1]
        assert checks.differing() == ([1] if placement is Placement.SEQUENTIAL else [])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_closed_lane_says_so(placement: Placement) -> None:
    lane = lane_for(placement, Checks(memoryview(b""), ()), 1)
    lane.close()
    lane.close()
    with pytest.raises(Cancelled):
        lane.drain()


# --- memory


def test_a_region_is_read_only_at_the_source() -> None:
    with memory(bytes(8192)) as descriptor:
        region = Region(descriptor, 8192, writable=False)
        region.populate()
        with pytest.raises(TypeError):
            region.view[0] = 1
        region.close()


def test_a_region_that_lies_about_its_size_is_refused() -> None:
    with memory(bytes(4096)) as descriptor:
        for size_bytes in (4097, 1 << 63, 0, -1):
            with pytest.raises(BadRequest):
                Region(descriptor, size_bytes, writable=False)


def test_a_read_only_descriptor_is_no_destination() -> None:
    with memory(bytes(4096)) as descriptor:
        read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            with pytest.raises(BadRequest):
                Region(read_only, 4096, writable=True)
        finally:
            os.close(read_only)


def test_a_region_in_use_is_not_called_unmapped() -> None:
    with memory(bytes(8192)) as descriptor:
        region = Region(descriptor, 8192, writable=True)
        piece = region.view[:10]
        with pytest.raises(Internal):
            region.close()
        piece.release()


def test_the_address_of_a_view() -> None:
    data = mmap.mmap(-1, 8192)
    with memoryview(data) as view, view[100:] as part:
        assert address_of(part) - address_of(view) == 100
    data.close()


def test_a_cancelled_region_is_not_faulted_in_to_the_end() -> None:
    """Gigabytes take seconds: a move that is cancelled meanwhile must be unmapped before its data plane is given up."""
    size_bytes = 256 << 20
    descriptor = os.memfd_create("worldline-test")
    os.ftruncate(descriptor, size_bytes)
    region = Region(descriptor, size_bytes, writable=True)
    try:
        asked = 0

        def unwanted() -> bool:
            nonlocal asked
            asked += 1
            return asked > 1

        region.populate(unwanted)
        assert os.fstat(descriptor).st_blocks * 512 <= size_bytes // 2
    finally:
        region.close()
        os.close(descriptor)

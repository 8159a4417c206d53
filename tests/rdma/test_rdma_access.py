"""Who can write a slot: the stream of its own move while the move lasts, and nobody else ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from rdma_tools import PATIENT_S, Homes, Stream, chunks_of, new_stream, open_rdma, send, send_all, terms_of, two_hosts

from worldline.errors import BadRequest, Unavailable

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]

SIZE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 14


def attack(stream: Stream, address: int, key: int, size_bytes: int = 4096) -> Unavailable:
    """Write with somebody's key by this stream's own queue pair; what the device says."""
    link, source = stream.sender._link, stream.sender._source
    segment = source.region.segments[0]
    link.pair.post_write(1 << 20, segment.address, size_bytes, segment.local_key, address, key, signaled=True)
    with pytest.raises(Unavailable) as refused:
        link.wait(lambda: link.completed > 1 << 30, lambda completion: None, "attacking")
    return refused.value


@pytest.fixture(params=["window", "registration"])
def homes(request: pytest.FixtureRequest, devices: tuple[str, str]) -> Iterator[Homes]:
    with two_hosts(devices, access=request.param) as pair:
        yield pair


def test_a_stale_key_opens_nothing(homes: Homes) -> None:
    """The key of a move that was given up, used by a peer that is connected for another move."""
    sender_home, receiver_home = homes
    given_up = new_stream(SIZE_BYTES).open(sender_home, receiver_home)
    offer = given_up.sender._offer
    given_up.close()
    # The memory now belongs to another session, which is being moved in.
    successor = new_stream(SIZE_BYTES, slot=given_up.slot).open(sender_home, receiver_home)
    error = attack(successor, offer.address, offer.keys[0])
    assert error.reason in ("RDMA_REMOTE_ACCESS", "PEER_GONE"), error
    assert bytes(given_up.slot) == bytes(SIZE_BYTES)
    successor.close()


@pytest.mark.parametrize("what", ["slot", "records"])
def test_a_foreign_key_opens_nothing(homes: Homes, what: str) -> None:
    """The keys of a move that lasts, used by a stream of another move.

    A window is good for one queue pair, a registration that lets a peer in for its move's protection domain.
    """
    owner, stranger = (new_stream(SIZE_BYTES).open(*homes) for _ in range(2))
    offer = owner.sender._offer
    address, key = (offer.address, offer.keys[0]) if what == "slot" else (offer.records_address, offer.records_key)
    assert attack(stranger, address, key, 16).reason == "RDMA_REMOTE_ACCESS"
    assert bytes(owner.slot) == bytes(SIZE_BYTES)
    assert bytes(owner.receiver._landing.records.view[:16]) == bytes(16)
    # The owner goes on.
    send(owner, owner.chunks[0])
    landed = owner.receiver.next()
    assert landed is not None
    assert owner.slot[:CHUNK_BYTES] == owner.source[:CHUNK_BYTES]
    owner.close()
    stranger.close()


def test_outside_of_the_slot_nothing_is_written(homes: Homes) -> None:
    """A write past the end of the region, with the right key on the right queue pair."""
    stream = new_stream(SIZE_BYTES).open(*homes)
    offer = stream.sender._offer
    error = attack(stream, offer.address + SIZE_BYTES - 1024, offer.keys[0])
    assert error.reason == "RDMA_REMOTE_ACCESS"
    assert bytes(stream.slot[-1024:]) == bytes(1024)
    stream.close()


def test_a_write_after_an_abort_does_not_land(homes: Homes) -> None:
    """The receiver gives up between two chunks; the sender, which has not heard of it, goes on."""
    stream = new_stream(SIZE_BYTES).open(*homes)
    send(stream, stream.chunks[0])
    assert stream.receiver.next() is not None
    stream.give_up()
    stream.slot[:] = bytes(SIZE_BYTES)  # another session's memory from here on
    with pytest.raises(Unavailable) as error:
        send_all(stream, 1)
    assert error.value.reason == "PEER_GONE"
    assert bytes(stream.slot) == bytes(SIZE_BYTES)
    stream.sender.close()


def test_writes_in_flight_stop_with_the_abort(homes: Homes, wire: Callable[[str], None]) -> None:
    """Slow wire, a full window in flight: once `close` has returned, the slot changes no more."""
    wire("delay 20ms")
    stream = new_stream(SIZE_BYTES).open(*homes)
    for chunk in stream.chunks:
        send(stream, chunk)
    stream.give_up()
    stream.slot[:] = bytes(SIZE_BYTES)
    with pytest.raises(Unavailable):
        stream.sender.finish()
    assert bytes(stream.slot) == bytes(SIZE_BYTES)
    stream.sender.close()


def test_what_is_kept_lets_nobody_in(devices: tuple[str, str]) -> None:
    """A region that stays registered between moves is closed to peers, also by its own registration's key."""
    from mover.memory import Region

    descriptor = os.memfd_create("worldline-test")
    os.ftruncate(descriptor, SIZE_BYTES)
    region = Region(descriptor, SIZE_BYTES, writable=True)
    region.populate()
    with two_hosts(devices) as (sender_home, receiver_home):
        first = new_stream(SIZE_BYTES, slot=region.view).open(sender_home, receiver_home)
        registered = first.receiver._landing.region.segments[0]
        address, key = registered.address, registered.remote_key
        first.close()
        assert receiver_home.regions.kept_bytes == SIZE_BYTES
        assert receiver_home.regions.in_use == 0
        other = new_stream(SIZE_BYTES).open(sender_home, receiver_home)
        assert attack(other, address, key).reason == "RDMA_REMOTE_ACCESS"
        other.close()
        assert bytes(region.view) == bytes(SIZE_BYTES)
        del first, other
        region.close()
    os.close(descriptor)


def test_a_sender_without_the_right_plan_is_refused(devices: tuple[str, str]) -> None:
    """Another region's size."""
    home = open_rdma(devices[0])
    slot = memoryview(bytearray(SIZE_BYTES))
    terms = terms_of(no_progress_s=PATIENT_S)
    listener = home.listen(slot, chunks_of(SIZE_BYTES, CHUNK_BYTES), terms)
    short = memoryview(bytes(SIZE_BYTES // 2))
    with pytest.raises(BadRequest, match="the receiver offers"):
        home.connect(short, chunks_of(SIZE_BYTES // 2, CHUNK_BYTES), terms, listener.endpoint, 0)
    listener.close()
    home.close()

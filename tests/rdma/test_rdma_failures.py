"""Every way in which a stream over verbs ends badly has its own name, and none of them leaves anything behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from rdma_tools import PATIENT_S, channels, held_bytes, new_stream, resources, send, send_all, two_hosts

from worldline.errors import BadRequest, Internal, TimedOut, Unavailable

if TYPE_CHECKING:  # collected also where pyverbs is not installed
    from mover.transports.rdma import verbs

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]

SIZE_BYTES = 1 << 18
ABORTS = int(os.environ.get("RDMA_ABORTS", "100"))
# 67 ms a try, four tries: rxe, unlike a NIC, would try for ever with 7.
QUICK = {"timeout_exponent": 14, "retry_count": 3}


def test_a_dead_path(devices: tuple[str, str], wire: Callable[[str], None]) -> None:
    """Nothing is acknowledged any more: the device gives up before our own bound."""
    with two_hosts(devices, **QUICK) as homes:
        stream = new_stream(SIZE_BYTES).open(*homes)
        wire("loss 100%")
        with pytest.raises(Unavailable) as error:
            send_all(stream)
        assert error.value.reason == "RDMA_RETRY_EXCEEDED"
        assert error.value.numbers["retry_count"] == 3
        stream.close()


def test_a_dead_path_and_a_device_that_never_gives_up(devices: tuple[str, str], wire: Callable[[str], None]) -> None:
    """Our own bound ends it."""
    with two_hosts(devices) as homes:
        stream = new_stream(SIZE_BYTES, no_progress_s=2.0).open(*homes)
        wire("loss 100%")
        with pytest.raises(TimedOut) as error:
            stream.sender.finish()
        assert error.value.reason == "NO_PROGRESS"
        stream.close()


def test_a_port_that_goes_down(devices: tuple[str, str], wire: Callable[[str], None]) -> None:
    """The link of the sender's port."""
    wire("delay 1ms")
    with two_hosts(devices, **QUICK) as homes:
        stream = new_stream(SIZE_BYTES, no_progress_s=5.0).open(*homes)
        subprocess.run(["ip", "link", "set", "va", "down"], check=True)
        with pytest.raises(Unavailable) as error:
            stream.sender.finish()
        assert error.value.reason == "RDMA_PORT_DOWN"
        stream.close()


def test_memory_that_is_not_ours(devices: tuple[str, str]) -> None:
    """A wrong local key is a bug of ours, and said to be one."""
    with two_hosts(devices) as homes:
        stream = new_stream(SIZE_BYTES).open(*homes)
        link, source, offer = stream.sender._link, stream.sender._source, stream.sender._offer
        segment = source.region.segments[0]
        link.pair.post_write(
            1 << 20, segment.address, 64, segment.local_key ^ 0x33, offer.address, offer.keys[0], signaled=True
        )
        with pytest.raises(Internal) as error:
            link.wait(lambda: link.completed > 1 << 30, lambda completion: None, "sending")
        assert error.value.reason == "RDMA_LOCAL_PROTECTION"
        stream.close()


def test_a_receiver_that_stops_taking(devices: tuple[str, str]) -> None:
    """More chunks than receives are posted: the device waits for the receiver, our bound ends it."""
    with two_hosts(devices) as homes:
        stream = new_stream(4096 * 600, 4096, no_progress_s=2.0).open(*homes)
        with pytest.raises((TimedOut, Unavailable)) as error:
            send_all(stream)
        assert error.value.reason in ("NO_PROGRESS", "RDMA_RECEIVER_NOT_READY", "RDMA_RETRY_EXCEEDED")
        stream.close()


def test_an_answer_too_many(devices: tuple[str, str]) -> None:
    """Each round has one answer: a receiver cannot fill the sender's memory with more, nor answer the next round."""
    with two_hosts(devices) as homes:
        stream = new_stream(SIZE_BYTES).open(*homes)
        stream.receiver.answer([1])
        stream.receiver.answer(())
        with pytest.raises(BadRequest) as error:
            stream.sender.finish()
        assert error.value.reason == "BAD_ANSWER"
        stream.close()


def test_a_wait_does_not_look_again_and_again(devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep until the device tells of a completion: a few looks at the queue in all."""
    with two_hosts(devices) as homes:
        stream = new_stream(SIZE_BYTES, no_progress_s=1.0).open(*homes)
        pair, looks = stream.receiver._link.pair, 0
        poll = pair.poll

        def counted(most: int = 32) -> list[verbs.Completion]:
            nonlocal looks
            looks += 1
            return poll(most)

        monkeypatch.setattr(pair, "poll", counted)
        with pytest.raises(TimedOut):
            stream.receiver.next()
        assert looks < 10
        stream.close()


def test_a_window_that_cannot_be_closed(devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Said, the memory stays held, and not one more write lands: a mover ends such a data plane."""
    with two_hosts(devices) as homes:
        stream = new_stream(SIZE_BYTES).open(*homes)
        queue_pair = stream.receiver._link._queue_pair
        window = queue_pair._windows[0]

        def refuse() -> None:
            raise Unavailable("the device does not answer", reason="RDMA_CALL_FAILED")

        with monkeypatch.context() as patch:
            patch.setattr(window, "close", refuse)
            with pytest.raises(Unavailable, match="does not answer"):
                stream.receiver.close()
        stream.listener.close()
        assert homes[1].regions.in_use == 2
        with pytest.raises(Unavailable):
            send_all(stream)
        assert bytes(stream.slot) == bytes(SIZE_BYTES)
        queue_pair.close()
        stream.sender.close()


@pytest.mark.parametrize("how", ["delay 5ms", "loss 1%", "delay 2ms loss 1% reorder 10%"])
def test_a_bad_wire_changes_no_byte(devices: tuple[str, str], wire: Callable[[str], None], how: str) -> None:
    """Packets are late, lost and out of order; the slot has every byte."""
    with two_hosts(devices) as homes, ThreadPoolExecutor(1) as pool:
        stream = new_stream(4 << 20, 1 << 18).open(*homes)
        wire(how)

        def receive() -> int:
            count = 0
            while stream.receiver.next() is not None:
                count += 1
            stream.receiver.answer(())
            return count

        receiving = pool.submit(receive)
        send_all(stream)
        assert receiving.result(PATIENT_S) == len(stream.chunks)
        assert stream.slot == stream.source
        stream.close()


def test_a_short_blackout_is_survived(devices: tuple[str, str], wire: Callable[[str], None]) -> None:
    """The device sends again when the wire is whole again."""
    with two_hosts(devices) as homes, ThreadPoolExecutor(1) as pool:
        stream = new_stream(SIZE_BYTES).open(*homes)
        wire("loss 100%")
        for chunk in stream.chunks:
            send(stream, chunk)
        wire("delay 1ms")
        finishing = pool.submit(stream.sender.finish)
        landed = 0
        while stream.receiver.next() is not None:
            landed += 1
        stream.receiver.answer(())
        assert list(finishing.result(PATIENT_S)) == []
        assert landed == len(stream.chunks)
        assert stream.slot == stream.source
        stream.close()


def test_aborted_moves_leave_nothing(devices: tuple[str, str]) -> None:
    """Memory and the kernel's counts are flat over moves that were given up at every stage."""
    with two_hosts(devices) as homes:
        for number in range(ABORTS):
            stream = new_stream(SIZE_BYTES).open(*homes)
            for chunk in stream.chunks[: number % (len(stream.chunks) + 1)]:
                send(stream, chunk)
            if number % 2:
                stream.give_up()
            stream.close()
            if number == ABORTS // 5:
                counted, held, opened = resources(), held_bytes(), channels()
        assert resources() == counted
        assert channels() == opened
        assert homes[0].census.queue_pairs == homes[1].census.queue_pairs == 0
        assert homes[0].census.windows == homes[1].census.windows == 0
        grown = held_bytes() - held
        print(f"{grown / (ABORTS - ABORTS // 5):.0f} bytes more with each aborted move")
        assert grown < 4 << 20, f"{grown} bytes more after {ABORTS} aborted moves"

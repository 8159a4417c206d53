"""The conformance suite, run on a verbs device, in each way of letting a peer in and of waiting for completions."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest
from rdma_tools import chunks_of, new_stream, open_rdma, send, terms_of, two_hosts

from mover.transports import retransmit_floor_s as shared_floor
from mover.transports.rdma.config import retransmit_floor_s
from worldline.testing.coded import CodedConformance
from worldline.transport import Transport

pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("no_leaks")]


class Conformance(CodedConformance):
    """Patient: the machine may be emulated."""

    no_progress_s = 3.0
    settings: ClassVar[dict[str, object]]

    @pytest.fixture(autouse=True)
    def _device(self, devices: tuple[str, str]) -> None:
        self.device = devices[0]

    def open_transport(self) -> Transport:
        return open_rdma(self.device, **self.settings)


class TestWindows(Conformance):
    settings: ClassVar[dict[str, object]] = {}


class TestRegistrations(Conformance):
    settings: ClassVar[dict[str, object]] = {"access": "registration", "completions": "poll"}


class TestSmallSegments(Conformance):
    """Regions larger than one registration may be, and a send queue that is always full."""

    settings: ClassVar[dict[str, object]] = {"segment_bytes": 8192, "depth": 8}


def test_the_retransmit_floor_is_the_live_queue_pairs(devices: tuple[str, str]) -> None:
    rdma = open_rdma(devices[0], timeout_exponent=12)
    assert rdma.retransmit_floor_s == retransmit_floor_s(12)
    assert shared_floor([rdma]) == rdma.retransmit_floor_s
    rdma.close()


def test_streams_share_records(devices: tuple[str, str]) -> None:
    """A piece from elsewhere makes its stream wait for all it wrote; the chunks of other streams are as they were."""
    with two_hosts(devices) as (sender_home, receiver_home):
        source, slot = memoryview(os.urandom(1 << 16)), memoryview(bytearray(1 << 16))
        chunks, terms = chunks_of(1 << 16, 1 << 14), terms_of(streams=2)
        listener = receiver_home.listen(slot, chunks, terms)
        senders, receivers = [], []
        for stream in range(2):
            senders.append(sender_home.connect(source, chunks, terms, listener.endpoint, stream))
            receivers.append(listener.accept())
        for at, sender in enumerate(senders):
            chunk, half = chunks[at], chunks[at].size_bytes // 2
            sender.begin(chunk)
            sender.write(source[chunk.offset : chunk.offset + half], chunk.offset)
            sender.write(memoryview(bytes(source[chunk.offset + half : chunk.offset + 2 * half])), chunk.offset + half)
            sender.end(at + 7)
        landed = [receiver.next() for receiver in receivers]
        assert [(item.chunk, item.source_crc) for item in landed if item] == [(chunks[0], 7), (chunks[1], 8)]
        assert slot[: 1 << 15] == source[: 1 << 15]
        for link in (*senders, *receivers):
            link.close()
        listener.close()


def test_what_waits_holds_the_sender_back(devices: tuple[str, str]) -> None:
    """A receiver takes no more completions in while some of them wait to be asked for."""
    with two_hosts(devices) as homes:
        stream = new_stream(64 * 4096, 4096).open(*homes)
        for chunk in stream.chunks:
            send(stream, chunk)
        for count in range(len(stream.chunks)):
            landed = stream.receiver.next()
            assert landed is not None
            assert landed.chunk.index == count
            assert len(stream.receiver._came) < 32
        stream.close()

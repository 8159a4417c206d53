"""A region that is filled while it is sent: what is there is sent, what has landed is told, lies end the run."""

from __future__ import annotations

import os
import queue
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from mover_moves import memory

from mover import verification
from mover.job import Job
from mover.messages import Outcome, WireFault
from mover.transports import TransportConfig, open_transports
from worldline.errors import BadRequest, Cancelled, WorldlineError
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.transport import Terms

CHUNK = 64 << 10
SIZE = 10 * CHUNK + 100


@dataclass
class Flow:
    """Both ends at work."""

    source: int
    slot: int
    sender: Job
    receiver: Job
    sent: Future[Outcome]
    received: Future[Outcome]
    landed: queue.SimpleQueue[int]

    def fill(self, content: bytes, offset: int, *, last: bool = False) -> None:
        """Write what is next into the source's region, and say so."""
        os.pwrite(self.source, content, offset)
        self.sender.filled(offset + len(content), last=last)

    def until_landed(self, landed_bytes: int) -> list[int]:
        """All marks up to this one."""
        marks = [0]
        while marks[-1] < landed_bytes:
            marks.append(self.landed.get(timeout=20))
        return marks[1:]

    def slot_bytes(self) -> bytes:
        return os.pread(self.slot, SIZE, 0)


@contextmanager
def flowing(
    monkeypatch: pytest.MonkeyPatch, transport: str, codec: str, faults: list[WireFault] | None = None
) -> Iterator[Flow]:
    """A run of both ends; nothing of the region is there yet."""
    monkeypatch.setattr(verification, "LANDED_BYTES", 1)
    plan = Plan(transport, CHUNK, 2, Placement.PIPELINED, 20.0, 20.0, 5.0, codec=codec)
    transports = open_transports((transport,), TransportConfig())
    terms = Terms(str(uuid.uuid4()), new_token(), plan.streams, plan.no_progress_s)
    with memory(bytes(SIZE)) as source, memory(b"\x5a" * SIZE) as slot, ThreadPoolExecutor(2) as pool:
        sender, receiver = Job(transports, 1, 2), Job(transports, 2, 2)
        landed: queue.SimpleQueue[int] = queue.SimpleQueue()
        try:
            sender.map(os.dup(source), SIZE, writable=False)
            receiver.map(os.dup(slot), SIZE, writable=True)
            sender.connect(plan, terms, receiver.listen(plan, terms), faults or [], lambda kind, chunk: None)
            received = pool.submit(receiver.run, 20.0, lambda progress: None, flowing=True, landed=landed.put)
            sent = pool.submit(sender.run, 20.0, lambda progress: None, flowing=True)
            yield Flow(source, slot, sender, receiver, sent, received, landed)
        finally:
            sender.close()
            receiver.close()
            for opened in transports.values():
                opened.close()


WAYS = [("tcp", "raw"), ("local", "raw"), ("tcp", "zstd")]


@pytest.mark.parametrize(("transport", "codec"), WAYS)
def test_each_part_lands_before_the_next_is_there(monkeypatch: pytest.MonkeyPatch, transport: str, codec: str) -> None:
    content = os.urandom(SIZE)
    with flowing(monkeypatch, transport, codec) as flow:
        flow.receiver.expect(SIZE)
        for at in range(0, SIZE, 2 * CHUNK):
            part = content[at : at + 2 * CHUNK]
            flow.fill(part, at, last=at + len(part) == SIZE)
            marks = flow.until_landed(at + len(part))
            assert marks == sorted(set(marks))
            assert flow.slot_bytes()[: at + len(part)] == content[: at + len(part)]
        assert flow.sent.result(20).crcs == flow.received.result(20).crcs
    assert flow.landed.empty()


@pytest.mark.parametrize(("transport", "codec"), WAYS)
def test_what_will_not_be_there_is_not_sent(monkeypatch: pytest.MonkeyPatch, transport: str, codec: str) -> None:
    """A coded state takes less than the region: how much, both ends learn at the end."""
    content = os.urandom(3 * CHUNK + 50)
    with flowing(monkeypatch, transport, codec) as flow:
        flow.fill(content, 0, last=True)
        flow.until_landed(4 * CHUNK)
        assert not flow.received.done(), "it does not know yet that this is all"
        flow.receiver.expect(len(content))
        crcs = flow.received.result(20).crcs
        assert flow.sent.result(20).crcs == crcs
        assert len(crcs) == 4, "up to the end of the chunk that the last byte is in"
        assert flow.slot_bytes()[: len(content)] == content
        assert flow.slot_bytes()[4 * CHUNK :] == b"\x5a" * (SIZE - 4 * CHUNK)


def test_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with flowing(monkeypatch, "tcp", "raw") as flow:
        flow.receiver.expect(0)
        flow.sender.filled(0, last=True)
        assert flow.sent.result(20).crcs == flow.received.result(20).crcs == ()
        assert flow.slot_bytes() == b"\x5a" * SIZE


def test_a_mark_never_covers_what_was_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(SIZE)
    with flowing(monkeypatch, "tcp", "raw", [WireFault("FLIP", 2, 1, 0.0)]) as flow:
        flow.receiver.expect(SIZE)
        flow.fill(content, 0, last=True)
        marks = flow.until_landed(SIZE)
        assert flow.received.result(20).retried_chunks == 1
        assert flow.sent.result(20).crcs == flow.received.result(20).crcs
        before = [mark for mark in marks if mark <= 2 * CHUNK]
        assert marks[: len(before)] == before
        assert marks[len(before)] > 2 * CHUNK
        assert flow.slot_bytes() == content


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_cancel_wakes_who_waits(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    with flowing(monkeypatch, "tcp", "raw") as flow:
        flow.fill(os.urandom(CHUNK), 0)
        flow.until_landed(CHUNK)
        getattr(flow, end).cancel()
        with pytest.raises(Cancelled):
            (flow.sent if end == "sender" else flow.received).result(20)
        # A source that waits for its host learns of it from its mover.
        flow.sender.cancel()
        for half in (flow.sent, flow.received):
            with pytest.raises(WorldlineError):
                half.result(20)


@pytest.mark.parametrize(("end", "lie"), [("sender", SIZE + 1), ("sender", CHUNK - 1), ("receiver", SIZE + 1)])
def test_a_lie_ends_the_run(monkeypatch: pytest.MonkeyPatch, end: str, lie: int) -> None:
    with flowing(monkeypatch, "tcp", "raw") as flow:
        flow.fill(os.urandom(CHUNK), 0)
        flow.until_landed(CHUNK)
        if end == "sender":
            flow.sender.filled(lie, last=False)
            with pytest.raises(BadRequest):
                flow.sent.result(20)
        else:
            flow.receiver.expect(lie)
            flow.fill(os.urandom(CHUNK), CHUNK, last=True)
            with pytest.raises(BadRequest):
                flow.received.result(20)
            flow.sender.cancel()

"""Moves between two jobs of this process: both halves of the pipeline over real memory and real streams."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mover.job import Job
from mover.messages import Outcome, WireFault
from worldline.codec.runs import Run
from worldline.errors import WorldlineError
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.transport import Terms, Transport


@dataclass
class Moved:
    """Both ends' outcome, and the bytes."""

    sent: Outcome | Exception
    received: Outcome | Exception
    source: bytes
    slot: bytes

    @property
    def failure(self) -> Exception:
        """What the destination raised."""
        assert isinstance(self.received, Exception)
        return self.received


@contextmanager
def memory(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("worldline-test")
    try:
        os.pwrite(descriptor, content, 0)
        yield descriptor
    finally:
        os.close(descriptor)


def result(future: Future[Outcome], job: Job) -> Outcome | Exception:
    try:
        return future.result(20)
    except WorldlineError as error:
        job.cancel()
        return error


def move(
    transports: Mapping[str, Transport],
    plan: Plan,
    content: bytes | int,
    faults: Sequence[WireFault] = (),
    remaining_s: float = 20.0,
    runs: Sequence[Run] = (),
    landing: bytes = b"",
) -> Moved:
    """One move of `content`, or of so many random bytes, between two memfds; `landing` is in the slot before."""
    content = os.urandom(content) if isinstance(content, int) else content
    size_bytes = len(content)
    terms = Terms(str(uuid.uuid4()), new_token(), plan.streams, plan.no_progress_s)
    with memory(content) as source, memory(landing or b"\x5a" * size_bytes) as slot, ThreadPoolExecutor(2) as pool:
        sender, receiver = Job(transports, 1, 2), Job(transports, 2, 2)
        try:
            sender.map(os.dup(source), size_bytes, writable=False)
            receiver.map(os.dup(slot), size_bytes, writable=True)
            sender.connect(plan, terms, receiver.listen(plan, terms), faults, lambda kind, chunk: None, runs)
            receiving = pool.submit(receiver.run, remaining_s, lambda progress: None)
            sending = pool.submit(sender.run, remaining_s, lambda progress: None)
            received = result(receiving, receiver)
            sent = result(sending, sender)
        finally:
            sender.close()
            receiver.close()
        assert not sender.mapped
        assert not receiver.mapped
        return Moved(sent, received, content, os.pread(slot, size_bytes, 0))


def plan(transport: str, chunk_bytes: int = 4096, streams: int = 2, **changes: object) -> Plan:
    values: dict[str, object] = {"placement": Placement.PIPELINED, "no_progress_s": 5, **changes}
    return Plan(transport, chunk_bytes, streams, deadline_s=20, max_freeze_s=20, **values)  # type: ignore[arg-type]

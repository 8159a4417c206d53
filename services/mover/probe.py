"""The probe of the data path: a small region through the own data plane to itself, compared byte by byte."""

from __future__ import annotations

import os
import threading
import uuid

from mover.messages import Outcome
from mover.plane import DataPlane, PlaneJob
from mover.stop import Stop
from worldline.errors import DataLoss, TimedOut
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.transport import Terms

PROBE_BYTES = 1 << 20
PROBE_S = 5.0


def probe(plane: DataPlane, transport: str) -> None:
    """Move a region from this data plane to itself.

    Raises:
        DataLoss: what came is not what was sent.
        WorldlineError: the data path is not there.
    """
    plan = Plan(transport, 64 << 10, 2, Placement.PIPELINED, PROBE_S, PROBE_S, PROBE_S)
    terms = Terms(str(uuid.uuid4()), new_token(), plan.streams, plan.no_progress_s)
    content = os.urandom(PROBE_BYTES)
    stop = Stop()
    timer = threading.Timer(
        PROBE_S, lambda: stop.tell(TimedOut(f"the probe took over {PROBE_S} s", reason="NO_PROGRESS"))
    )
    timer.start()
    source, destination = os.memfd_create("worldline-probe"), os.memfd_create("worldline-probe")
    try:
        os.pwrite(source, content, 0)
        os.ftruncate(destination, PROBE_BYTES)
        sender, receiver = plane.open(), plane.open()
        try:
            sender.map(stop, source, PROBE_BYTES, writable=False)
            receiver.map(stop, destination, PROBE_BYTES, writable=True)
            sender.connect(stop, plan, terms, receiver.listen(stop, plan, terms))
            _carry(stop, sender, receiver)
        finally:
            sender.close()
            receiver.close()
        if os.pread(destination, PROBE_BYTES, 0) != content:
            raise DataLoss("the probe's bytes changed on their way through the data plane", reason="PROBE_DIFFERS")
    finally:
        timer.cancel()
        timer.join()
        os.close(source)
        os.close(destination)


def _carry(stop: Stop, sender: PlaneJob, receiver: PlaneJob) -> None:
    """Both halves at once; raises the first failure."""
    failures: list[Exception] = []

    def run(job: PlaneJob) -> Outcome | None:
        try:
            return job.run(stop, PROBE_S, lambda progress: None)
        except Exception as error:
            failures.append(error)
            return None

    other = threading.Thread(target=run, args=(receiver,), name="probe", daemon=True)
    other.start()
    run(sender)
    other.join()
    if failures:
        raise failures[0]

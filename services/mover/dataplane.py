"""The data plane: the child process that touches bytes. `python -m mover.dataplane <descriptor of its socket pair>`.

A process of its own, so that no copy and no binding that holds the GIL can stall control; started afresh rather than
forked, so that no other thread's locks and no region come along. It ends when its mover ends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping

from mover.capacity import measured_verify_Bps
from mover.job import Job
from mover.messages import (
    Fields,
    Message,
    Outcome,
    Pipe,
    PlaneConfig,
    Progress,
    WireFault,
    error_to,
    plan_from,
    rdma_from,
    terms_from,
)
from mover.transports import TransportConfig, open_transports, retransmit_floor_s
from worldline.codec.runs import Run
from worldline.errors import Internal
from worldline.transport import Transport

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class _Runner:
    """One job and the thread that runs its verbs in order."""

    def __init__(self, number: int, job: Job, pipe: Pipe, over: Callable[[int], None]) -> None:
        self._number = number
        self._pipe = pipe
        self._over = over
        self.job = job
        self._verbs: queue.SimpleQueue[tuple[Message, int | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"job-{number}", daemon=True).start()

    def put(self, message: Message, descriptor: int | None) -> None:
        """Queue a verb; `close` is also acted on at once, and words on a run in progress are only that."""
        fields = Fields(message)
        if message["verb"] == "filled":
            self.job.filled(fields.whole("filled_bytes"), last=bool(fields.whole("last")))
            return
        if message["verb"] == "expect":
            self.job.expect(fields.whole("total_bytes"))
            return
        if message["verb"] == "close":
            self.job.cancel()
        self._verbs.put((message, descriptor))

    def _run(self) -> None:
        last = False
        while not last:
            message, descriptor = self._verbs.get()
            last = message["verb"] == "close"
            reply: Message = {"job": self._number, "reply": message["verb"]}
            try:
                reply.update(self._do(Fields(message), descriptor))
            except Exception as error:
                reply["failed"] = error_to(error)
            if last:
                self._over(self._number)
            self._pipe.send(reply)

    def _do(self, fields: Fields, descriptor: int | None) -> Message:
        verb = fields.text("verb")
        if verb == "map":
            if descriptor is None:
                raise Internal("a region came without its descriptor")
            self.job.map(descriptor, fields.whole("size_bytes"), writable=bool(fields.whole("writable")))
        elif verb == "listen":
            endpoint = self.job.listen(plan_from(fields.inner("plan")), terms_from(fields.inner("terms")))
            return {"endpoint": endpoint}
        elif verb == "connect":
            faults = [
                WireFault(item.text("kind"), item.whole("chunk"), item.whole("times"), item.real("seconds"))
                for item in (Fields(fault) for fault in fields.items("faults") if isinstance(fault, dict))
            ]
            self.job.connect(
                plan_from(fields.inner("plan")),
                terms_from(fields.inner("terms")),
                fields.text("endpoint"),
                faults,
                self._fired,
                [Run(end, width) for end, width in zip(fields.wholes("ends"), fields.wholes("widths"), strict=True)],
            )
        elif verb == "run":
            flowing, landing = bool(fields.whole("flowing")), bool(fields.whole("landing"))
            landed = self._landed if landing else None
            return _outcome(self.job.run(fields.real("remaining_s"), self._tick, flowing=flowing, landed=landed))
        elif verb == "close":
            self.job.close()
        else:
            raise Internal(f"a data plane does not know {verb!r}")
        return {}

    def _tick(self, progress: Progress) -> None:
        self._pipe.send(
            {
                "job": self._number,
                "event": "progress",
                "moved_bytes": progress.moved_bytes,
                "retried_chunks": progress.retried_chunks,
                "faults": progress.faults,
            }
        )

    def _landed(self, landed_bytes: int) -> None:
        self._pipe.send({"job": self._number, "event": "landed", "landed_bytes": landed_bytes})

    def _fired(self, kind: str, chunk: int) -> None:
        self._pipe.send({"job": self._number, "event": "fault", "kind": kind, "chunk": chunk})


def _outcome(outcome: Outcome) -> Message:
    return {
        "crcs": list(outcome.crcs),
        "retried_chunks": outcome.retried_chunks,
        "wire_s": outcome.wire_s,
        "verify_s": outcome.verify_s,
        "traceparents": list(outcome.traceparents),
        "checked_bytes": outcome.checked_bytes,
        "checking_s": outcome.checking_s,
        "coding": dataclasses.asdict(outcome.coding) if outcome.coding is not None else None,
    }


class _Plane:
    """All jobs of this process."""

    def __init__(self, pipe: Pipe, config: PlaneConfig) -> None:
        self._pipe = pipe
        self._config = config
        self._transports: Mapping[str, Transport] = open_transports(
            config.transports,
            TransportConfig(config.data_listen, config.data_host, config.congestion, config.pace_Bps, config.rdma),
        )
        self.retransmit_floor_s = retransmit_floor_s(self._transports.values())
        self.verify_Bps = measured_verify_Bps()
        self._jobs: dict[int, _Runner] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until the mover is gone."""
        while True:
            try:
                message, descriptor = self._pipe.receive()
            except (EOFError, OSError):
                return
            number = Fields(message).whole("job")
            with self._lock:
                runner = self._jobs.get(number)
                if runner is None:
                    job = Job(self._transports, self._config.lane_threads, self._config.codec_threads)
                    runner = self._jobs[number] = _Runner(number, job, self._pipe, self._forget)
            runner.put(message, descriptor)

    def _forget(self, number: int) -> None:
        with self._lock:
            del self._jobs[number]


def _follow_parent(name: bytes) -> None:
    """Die when the thread that started us ends, and be named so in process lists."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(_PR_SET_NAME, name, 0, 0, 0)


def main() -> None:
    """Serve one mover over the socket pair whose descriptor is the only argument."""
    _follow_parent(b"wl-dataplane")
    # The codec's arrays use no linear algebra: its threads would only stand around.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The mover ends us; a signal to the whole group must not cut a move's clean-up short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    try:
        message, _ = pipe.receive()
    except EOFError:
        return
    fields = Fields(message)
    try:
        plane = _Plane(
            pipe,
            PlaneConfig(
                tuple(str(name) for name in fields.items("transports")),
                fields.text("data_listen"),
                fields.text("data_host"),
                fields.text("congestion"),
                fields.whole("pace_Bps"),
                fields.whole("lane_threads"),
                fields.whole("codec_threads"),
                rdma_from(fields.inner("rdma")),
            ),
        )
    except Exception as error:
        pipe.send({"failed": error_to(error)})
        return
    pipe.send({"ready": os.getpid(), "retransmit_floor_s": plane.retransmit_floor_s, "verify_Bps": plane.verify_Bps})
    plane.serve()
    # Threads may be deep in a copy; the regions' owners live on, and nothing here needs saving.
    os._exit(0)


if __name__ == "__main__":
    main()

"""The mover's side of its data plane: keeps one child warm, starts a new one when it dies, and asks it for jobs."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from mover.capacity import smoothed_Bps
from mover.messages import (
    Fields,
    Message,
    Outcome,
    Pipe,
    PlaneConfig,
    Progress,
    WireFault,
    coding_from,
    error_from,
    plan_to,
    terms_to,
)
from mover.stop import Stop
from worldline import telemetry
from worldline.codec.runs import Run
from worldline.errors import TimedOut, Unavailable, WorldlineError
from worldline.plan import Plan
from worldline.transport import Terms

# glibc's copies of 256 KiB and more go past the caches, as its copies of tens of megabytes do by themselves: what is
# copied into a slot is larger than any cache, and copies of 1 MiB are 2.5 times as fast. Other C libraries ignore it.
COPIES = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x40000"}
START_S = 30.0
CLOSE_S = 2.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)


class DataPlane:
    """One child process. `changed(up)` is told, on a thread that must not be blocked, when one is ready or has died."""

    def __init__(self, config: PlaneConfig, changed: Callable[[bool], None] = lambda up: None) -> None:
        self.starts = 0
        self.moved_bytes = 0
        self.retransmit_floor_s = 0.0
        self.verify_Bps = 0.0
        self._config = config
        self._changed = changed
        self._lock = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._jobs: dict[int, PlaneJob] = {}
        self._next_job = 0
        self._closed = False
        self._refused: WorldlineError | None = None
        # The child dies with the thread that started it, so one thread starts all of them and lives as long as we do.
        self._thread = threading.Thread(target=self._supervise, name="data-plane", daemon=True)

    def start(self) -> None:
        """Start the child and wait until it is ready. Raises what it refuses, or Unavailable after `START_S`."""
        self._thread.start()
        with self._lock:
            self._lock.wait_for(lambda: self._pipe is not None or self._refused is not None, START_S)
            if self._refused is not None:
                raise self._refused
            if self._pipe is None:
                raise Unavailable(f"the data plane did not start within {START_S} s", reason="DATA_PLANE_DIED")

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while there is none."""
        process = self._process
        return process.pid if process is not None and self._pipe is not None else 0

    @property
    def mapped_regions(self) -> int:
        """Regions that are mapped in the child now."""
        with self._lock:
            return sum(job.mapped for job in self._jobs.values())

    def open(self) -> PlaneJob:
        """A new job. Raises Unavailable while there is no child."""
        with self._lock:
            if self._pipe is None:
                raise died("starts again", retry_after_s=0.5)
            self._next_job += 1
            job = PlaneJob(self, self._pipe, self._next_job)
            self._jobs[self._next_job] = job
            return job

    def forget(self, number: int) -> None:
        """Called by a job that is closed."""
        with self._lock:
            self._jobs.pop(number, None)

    def count(self, moved_bytes: int, outcome: Outcome) -> None:
        """Called by a job that has moved its region."""
        with self._lock:
            self.moved_bytes += moved_bytes
            self.verify_Bps = smoothed_Bps(self.verify_Bps, outcome.checked_bytes, outcome.checking_s)

    def kill(self, why: str) -> None:
        """End the child for certain: nothing it had mapped is written any more. A new one is started."""
        telemetry.log("mover").error("data_plane_killed", why=why, pid=self.pid)
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the child and start no more."""
        with self._lock:
            self._closed = True
            process = self._process
            self._lock.notify_all()
        if process is not None:
            process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _supervise(self) -> None:
        failures = 0
        while not self._ended():
            ours, theirs = socket.socketpair()
            pipe = Pipe(ours)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "mover.dataplane", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **COPIES},
                )
            with self._lock:
                self._process = process
            if self._ended():
                process.kill()
            ready = self._greeted(pipe)
            if ready:
                failures = 0
                self._serve(pipe)
            pipe.close()
            process.kill()
            process.wait()
            self._lost(process.returncode)
            failures += not ready
            with self._lock:
                self._lock.wait_for(lambda: self._closed, _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    def _ended(self) -> bool:
        return self._closed

    def _greeted(self, pipe: Pipe) -> bool:
        config = dataclasses.asdict(self._config)
        config["transports"] = list(self._config.transports)
        try:
            pipe.send(config)
            message, _ = pipe.receive()
        except (EOFError, OSError):
            return False
        if "failed" in message:
            error = error_from(Fields(message).inner("failed"))
            telemetry.log("mover").error("data_plane_refused", reason=error.reason, message=error.message)
            with self._lock:
                self._refused = error
                self._lock.notify_all()
            return False
        with self._lock:
            self.starts += 1
            self.retransmit_floor_s = Fields(message).real("retransmit_floor_s")
            self.verify_Bps = Fields(message).real("verify_Bps")
            self._pipe = pipe
            self._lock.notify_all()
        telemetry.log("mover").info("data_plane_ready", pid=message["ready"], starts=self.starts)
        self._changed(True)
        return True

    def _serve(self, pipe: Pipe) -> None:
        while True:
            try:
                message, _ = pipe.receive()
                with self._lock:
                    job = self._jobs.get(Fields(message).whole("job"))
                if job is not None:
                    job.hear(message)
            except (EOFError, OSError):
                return
            except Exception:
                # A child that cannot be understood is not trusted with memory: it is replaced.
                telemetry.log("mover").error("data_plane_not_understood", exc_info=True)
                return

    def _lost(self, status: int) -> None:
        with self._lock:
            self._pipe = None
            jobs = list(self._jobs.values())
            self._jobs.clear()
        if not self._closed:
            telemetry.log("mover").error("data_plane_died", status=status, jobs=len(jobs))
            self._changed(False)
        for job in jobs:
            job.lose(died(f"ended with status {status}"))


class PlaneJob:
    """One region in the data plane; the verbs of `mover.job.Job`, asked from here. One thread asks at a time."""

    def __init__(self, plane: DataPlane, pipe: Pipe, number: int) -> None:
        self.mapped = False
        self._asked = False  # as long as it is not, the data plane knows nothing of this job
        self._plane = plane
        self._pipe = pipe
        self._number = number
        self._changed = threading.Condition()
        self._reply: Message | None = None
        self._lost: WorldlineError | None = None
        self._closed = False
        self._size_bytes = 0
        self._progress: Callable[[Progress], None] = lambda progress: None
        self._landed: Callable[[int], None] = lambda landed_bytes: None
        self._fault: Callable[[str, int], None] = lambda kind, chunk: None

    def map(self, stop: Stop, descriptor: int, size_bytes: int, *, writable: bool) -> None:
        """Map and fault in a region. The descriptor stays the caller's."""
        self._size_bytes = size_bytes
        self.mapped = True  # from now on it may be
        self._ask(stop, {"verb": "map", "size_bytes": size_bytes, "writable": int(writable)}, descriptor)

    def listen(self, stop: Stop, plan: Plan, terms: Terms) -> str:
        """Be ready for the streams of a move. Returns the endpoint."""
        return Fields(self._ask(stop, {"verb": "listen", "plan": plan_to(plan), "terms": terms_to(terms)})).text(
            "endpoint"
        )

    def connect(
        self,
        stop: Stop,
        plan: Plan,
        terms: Terms,
        endpoint: str,
        faults: Sequence[WireFault] = (),
        fired: Callable[[str, int], None] = lambda kind, chunk: None,
        runs: Sequence[Run] = (),
    ) -> None:
        """Open the streams of a move. `fired(kind, chunk)` is told of each injected fault; `runs` are for a codec."""
        self._fault = fired
        wire_faults = [dataclasses.asdict(fault) for fault in faults]
        self._ask(
            stop,
            {
                "verb": "connect",
                "plan": plan_to(plan),
                "terms": terms_to(terms),
                "endpoint": endpoint,
                "faults": list(wire_faults),
                "ends": [run.end for run in runs],
                "widths": [run.width for run in runs],
            },
        )

    def run(
        self,
        stop: Stop,
        remaining_s: float,
        progress: Callable[[Progress], None],
        *,
        flowing: bool = False,
        landed: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Move every byte. `progress` is told about ten times a second, as long as the data plane is alive.

        `flowing`: as `filled` and `expect` say; `landed` is told how far the region is landed and checked.
        """
        self._progress, self._landed = progress, landed or self._landed
        request: Message = {
            "verb": "run",
            "remaining_s": remaining_s,
            "flowing": int(flowing),
            "landing": int(landed is not None),
        }
        fields = Fields(self._ask(stop, request))
        outcome = Outcome(
            fields.wholes("crcs"),
            fields.whole("retried_chunks"),
            fields.real("wire_s"),
            fields.real("verify_s"),
            tuple(str(item) for item in fields.items("traceparents")),
            fields.whole("checked_bytes"),
            fields.real("checking_s"),
            coding_from(fields.inner("coding")) if fields.has("coding") else None,
        )
        self._plane.count(self._size_bytes, outcome)
        return outcome

    def filled(self, filled_bytes: int, *, last: bool) -> None:
        """So much of the source's region is there, while `run` sends it. Any thread."""
        self._say({"verb": "filled", "filled_bytes": filled_bytes, "last": int(last)})

    def expect(self, total_bytes: int) -> None:
        """So much will land in all, while `run` receives it. Any thread."""
        self._say({"verb": "expect", "total_bytes": total_bytes})

    def _say(self, message: Message) -> None:
        with suppress(OSError):  # a data plane that is gone says so to whoever waits for `run`
            self._pipe.send({"job": self._number, **message})

    def close(self) -> None:
        """Return when the region is unmapped: by its own word, or because the data plane is dead.

        Raises:
            Unavailable: it did not unmap and was killed.
        """
        if self._closed:
            return
        self._closed = True
        self._progress = lambda progress: None
        if not self._asked:
            self._plane.forget(self._number)
            return
        try:
            self._put({"verb": "close"}, None)
            with self._changed:
                told = self._changed.wait_for(lambda: self._closed_reply() or self._lost is not None, CLOSE_S)
                failed = self._reply.get("failed") if self._reply is not None else None
                lost = self._lost is not None
        except OSError:
            told, failed, lost = True, None, True
        self._plane.forget(self._number)
        self.mapped = False
        if lost:
            return
        if not told or failed:
            why = f"a region was not unmapped within {CLOSE_S} s" if not told else f"a region stays mapped: {failed}"
            self._plane.kill(why)
            raise died(f"was killed: {why}")

    def hear(self, message: Message) -> None:
        """Called with everything that the data plane says of this job."""
        fields = Fields(message)
        if message.get("event") == "progress":
            self._progress(
                Progress(fields.whole("moved_bytes"), fields.whole("retried_chunks"), fields.whole("faults"))
            )
        elif message.get("event") == "landed":
            self._landed(fields.whole("landed_bytes"))
        elif message.get("event") == "fault":
            self._fault(fields.text("kind"), fields.whole("chunk"))
        else:
            with self._changed:
                self._reply = message
                self._changed.notify_all()

    def lose(self, error: WorldlineError) -> None:
        """Called when the data plane has died."""
        with self._changed:
            self._lost = error
            self.mapped = False
            self._changed.notify_all()

    def require_plane(self, seconds: float) -> None:
        """Raise why the data plane has died, if it is known within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, seconds)
            if self._lost is not None:
                raise self._lost

    def _closed_reply(self) -> bool:
        return self._reply is not None and self._reply.get("reply") == "close"

    def _put(self, message: Message, descriptor: int | None) -> None:
        with self._changed:
            self._reply = None
        self._asked = True
        self._pipe.send({"job": self._number, **message}, descriptor)

    def _ask(self, stop: Stop, message: Message, descriptor: int | None = None) -> Message:
        with stop.waking(self._wake):
            try:
                self._put(message, descriptor)
            except OSError:
                raise died("is gone") from None
            with self._changed:
                self._changed.wait_for(lambda: self._reply is not None or self._lost is not None or stop.told)
                stop.check()
                if self._lost is not None:
                    raise self._lost
                if self._reply is None:
                    raise TimedOut("the data plane did not answer")
                reply = self._reply
        if "failed" in reply:
            raise error_from(Fields(reply).inner("failed"))
        return reply

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def died(how: str, retry_after_s: float = 1.0) -> Unavailable:
    """The error for a data plane that is not there."""
    return Unavailable(
        f"the mover's data plane {how}; its moves were given up and a new one is started",
        reason="DATA_PLANE_DIED",
        retry_after_s=retry_after_s,
    )

"""What both ends of a stream share: waiting for completions, and telling why none comes."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mover.transports.rdma import verbs
from mover.transports.rdma.control import Control
from mover.transports.rdma.device import Device
from mover.transports.rdma.queue_pair import QueuePair
from worldline.errors import Cancelled, Internal, TimedOut, Unavailable, WorldlineError

# In the mode that polls, this many polls of the queue go by for one look at the connection beside it.
_POLLS = 64
# A broken queue pair and a closed connection arrive by different ways; the one that says more may be the later one.
_GRACE_MS = 250

_REASONS = {
    "RETRY_EXC_ERR": ("RDMA_RETRY_EXCEEDED", "the peer acknowledged none of our tries: it is gone or the path is dead"),
    "RNR_RETRY_EXC_ERR": ("RDMA_RECEIVER_NOT_READY", "the peer took in no more: it is stopped or far behind"),
    "REM_ACCESS_ERR": ("RDMA_REMOTE_ACCESS", "the peer's memory is closed to us: the move was given up there"),
    "REM_INV_REQ_ERR": ("RDMA_REMOTE_REFUSED", "the peer's device refused the write"),
    "REM_OP_ERR": ("RDMA_REMOTE_FAILED", "the peer's device could not write"),
    "WR_FLUSH_ERR": ("RDMA_FLUSHED", "the queue pair was stopped: the peer wrote where it may not, or gave up"),
}


class Link:
    """One end of a stream. One thread works on it at a time; `close` may come from any."""

    def __init__(self, device: Device, queue_pair: QueuePair, control: Control, no_progress_s: float) -> None:
        self.completed = 0
        self.control = control
        self.pair = queue_pair.pair
        self._device = device
        self._queue_pair = queue_pair
        self._no_progress_s = no_progress_s
        # None: polled. Else what wakes a wait: the peer's words and completions; `armed` when the next one will.
        self._poller: select.poll | None = None
        self._armed = False
        self._descriptor = self.pair.descriptor
        if self._descriptor is not None:
            self._poller = select.poll()
            self._poller.register(self._descriptor, select.POLLIN)
            self._poller.register(control.descriptor, select.POLLIN)
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    @contextmanager
    def use(self, doing: str) -> Iterator[None]:
        """Around every call: the queue pair is not destroyed under it."""
        with self._lock:
            self._check(doing)
            self._users += 1
        try:
            yield
        except (Unavailable, TimedOut):
            self._check(doing)
            raise
        finally:
            with self._lock:
                self._users -= 1
                self._destroy_if_over()

    def wait(
        self,
        met: Callable[[], bool],
        take: Callable[[verbs.Completion], None],
        doing: str,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Until `met()`. `take` is given each good completion; `moved` is called when something has moved.

        Raises:
            Cancelled, TimedOut (NO_PROGRESS), Unavailable (PEER_GONE or a reason of the device's).
        """
        seen, since, turns = (-1, -1), 0.0, 0
        while True:
            self.reap(take, doing)
            if met():
                return
            self._check(doing)
            if self.control.over:
                raise Unavailable(f"the peer closed the stream while {doing}", reason="PEER_GONE")
            now = time.monotonic()
            if seen != (self.completed, self.control.heard):
                seen, since = (self.completed, self.control.heard), now
                moved()
            elif now - since >= self._no_progress_s:
                raise self._stalled(doing)
            turns += 1
            if self._poller is not None:
                self._sleep(self._poller, since + self._no_progress_s - now)
            elif turns % _POLLS == 0:
                self.control.hear(0)
                time.sleep(0)  # whoever else waits for this processor, or for the interpreter, comes first

    def reap(self, take: Callable[[verbs.Completion], None], doing: str) -> None:
        """Take what is completed now."""
        for completion in self.pair.poll():
            if completion.status != verbs.SUCCESS:
                raise self._failed(completion, doing)
            self.completed += 1
            take(completion)

    def close(self) -> None:
        """Stop all traffic at once, wake whoever waits; the last one out destroys."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # The connection first, so that the peer learns of our end before its writes are refused.
            self.control.shut()
            self._queue_pair.fail()
            self._destroy_if_over()

    def _destroy_if_over(self) -> None:
        if self._closed and not self._users:
            self.control.close()
            self._queue_pair.close()

    def _check(self, doing: str) -> None:
        if self._closed:
            raise Cancelled(f"the stream was closed while {doing}", reason="LINK_CLOSED")

    def _sleep(self, poller: select.poll, longest_s: float) -> None:
        """Until something completes, or the peer says something or is gone, or `close`."""
        if not self._armed:
            # What has completed before wakes nobody: the caller looks once more before it sleeps.
            self._armed = True
            self.pair.arm()
            return
        for descriptor, _ in poller.poll(longest_s * 1e3):
            if descriptor == self._descriptor:
                self.pair.disarm()
                self._armed = False
            else:
                self.control.hear(0)

    def _stalled(self, doing: str) -> WorldlineError:
        self._queue_pair.fail()
        if not self._device.port_is_up:
            return self._port_down(doing)
        return TimedOut(
            f"nothing moved for {self._no_progress_s} s while {doing}: the peer is stopped or the path is dead",
            reason="NO_PROGRESS",
            numbers={"no_progress_s": self._no_progress_s, "where": doing},
        )

    def _failed(self, completion: verbs.Completion, doing: str) -> WorldlineError:
        self._check(doing)
        name = verbs.STATUS_NAMES.get(completion.status, f"status {completion.status}")
        for _ in range(_GRACE_MS):
            if self.control.over or self._closed:
                break
            self.control.hear(1)
        if self.control.over:
            return Unavailable(f"the peer closed the stream while {doing} ({name})", reason="PEER_GONE")
        if not self._device.port_is_up:
            return self._port_down(doing)
        if name not in _REASONS:
            return Internal(f"the device refused our own work while {doing}: {name}", reason="RDMA_LOCAL_PROTECTION")
        reason, what = _REASONS[name]
        config = self._device.config
        return Unavailable(
            f"{what} ({name} while {doing}; {config.retry_count + 1} tries of {config.ack_timeout_s:.3g} s)",
            reason=reason,
            numbers={"retry_count": config.retry_count, "ack_timeout_s": config.ack_timeout_s, "where": doing},
        )

    def _port_down(self, doing: str) -> Unavailable:
        return Unavailable(
            f"port {self._device.port} of {self._device.verbs.device} went down while {doing}: bring its link up",
            reason="RDMA_PORT_DOWN",
        )

"""A queue pair with all that goes with it: windows that let its peer in, memory that it reaches, and their end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mover.transports.rdma import verbs
from mover.transports.rdma.device import Device
from mover.transports.rdma.exchange import End
from mover.transports.rdma.regions import Registered
from worldline.errors import Unavailable, WorldlineError

_BIND_S = 1.0
_BIND_PAUSE_S = 50e-6


class Census:
    """What is open on the device now; a mover that does nothing shows zeros."""

    def __init__(self) -> None:
        self.queue_pairs = 0
        self.windows = 0
        self._lock = threading.Lock()

    def count(self, queue_pairs: int = 0, windows: int = 0) -> None:
        """Add to what is open."""
        with self._lock:
            self.queue_pairs += queue_pairs
            self.windows += windows


class QueuePair:
    """Not connected yet. `release` is called once, when nothing can reach the memory any more."""

    def __init__(
        self,
        device: Device,
        census: Census,
        receives: int,
        release: Callable[[], None],
        domain: verbs.Domain | None = None,
    ) -> None:
        self.psn = secrets.randbits(24)
        self.pair = device.pair(receives, domain)
        self._device = device
        self._census = census
        self._release = release
        self._windows: list[verbs.Window] = []
        census.count(queue_pairs=1)

    @property
    def end(self) -> End:
        """What the peer is told."""
        return End(self._device.route.mtu, self.pair.number, self.psn, self._device.gid)

    def connect(self, peer: End) -> None:
        """Bring it to its working state with this peer."""
        route = self._device.route
        if peer.mtu < route.mtu:
            route = verbs.Route(
                route.port,
                route.gid_index,
                route.traffic_class,
                route.service_level,
                peer.mtu,
                route.timeout_exponent,
                route.retry_count,
                route.rnr_retry_count,
            )
        self.pair.connect(route, peer.gid, peer.pair, self.psn, peer.psn)

    def let_in(self, registered: Registered) -> tuple[int, ...]:
        """Keys by which the peer may write the memory: each a window for this pair alone, or the registration's own,
        which is good in its move's protection domain alone.

        Raises:
            Unavailable: the device did not bind.
        """
        if self._device.config.access == "registration":
            return tuple(segment.remote_key for segment in registered.segments)
        return tuple(self._bind(segment) for segment in registered.segments)

    def _bind(self, segment: verbs.Segment) -> int:
        window = self._device.verbs.window()
        self._windows.append(window)
        self._census.count(windows=1)
        key = self.pair.post_bind(0, window, segment)
        deadline = time.monotonic() + _BIND_S
        while not (done := self.pair.poll()):
            if time.monotonic() > deadline:
                raise Unavailable(f"a memory window was not bound within {_BIND_S} s", reason="RDMA_BIND_FAILED")
            time.sleep(_BIND_PAUSE_S)
        if done[0].status != verbs.SUCCESS:
            status = verbs.STATUS_NAMES.get(done[0].status, str(done[0].status))
            raise Unavailable(f"a memory window was not bound: {status}", reason="RDMA_BIND_FAILED")
        return key

    def fail(self) -> None:
        """Stop all traffic at once."""
        with suppress(WorldlineError):  # the device itself is gone
            self.pair.fail()

    def close(self) -> None:
        """Shut the peer out, destroy the pair, release the memory: in this order, and no further if one fails.

        What raises leaves the memory held and ends this process: its mover kills a data plane that does not let go.
        """
        self.fail()
        for window in self._windows:
            window.close()
        self.pair.close()
        self._census.count(queue_pairs=-1, windows=-len(self._windows))
        self._release()

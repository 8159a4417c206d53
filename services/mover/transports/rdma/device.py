"""The one device and port that this mover uses: picked or as told, opened, tried out."""

from __future__ import annotations

import mmap

from mover.transports.rdma import verbs
from mover.transports.rdma.choice import pick_gid, pick_port
from mover.transports.rdma.config import RdmaConfig, retransmit_floor_s
from worldline.buffers import address_of
from worldline.errors import Unsupported


class Device:
    """An open device: `route` for its queue pairs, `gid` that peers reach it by.

    Raises:
        Unavailable: there is no such device, port or GID, or the port is down.
        Unsupported: the device lacks what the settings ask for.
        Exhausted: not even a page may be registered.
    """

    def __init__(self, config: RdmaConfig) -> None:
        port = pick_port(config)
        gid_index = pick_gid(config, port)
        self.config = config
        self.port = port.number
        self.verbs = verbs.Verbs(port.device)
        try:
            self._try_out()
            self.gid = self.verbs.gid(port.number, gid_index)
            _, active_mtu, self.max_message_bytes = self.verbs.port(port.number)
            mtu = min(active_mtu, verbs.mtu_number(config.mtu)) if config.mtu else active_mtu
        except BaseException:
            self.verbs.close()
            raise
        self.segment_bytes = min(config.segment_bytes, self.verbs.max_segment_bytes)
        self.route = verbs.Route(
            port.number,
            gid_index,
            config.traffic_class,
            config.service_level,
            mtu,
            config.timeout_exponent,
            config.retry_count,
            config.rnr_retry_count,
        )
        try:
            self.retransmit_floor_s = retransmit_floor_s(self._live_timeout_exponent())
        except BaseException:
            self.verbs.close()
            raise

    @property
    def port_is_up(self) -> bool:
        """Whether the port carries traffic now."""
        return self.verbs.port(self.port)[0] == verbs.PORT_ACTIVE

    def pair(self, receives: int, domain: verbs.Domain | None = None) -> verbs.Pair:
        """A queue pair as the settings want it, not connected yet."""
        events = self.config.completions == "event"
        return self.verbs.pair(self.config.depth, receives, events=events, domain=domain)

    def _try_out(self) -> None:
        if self.config.access == "window" and not self.verbs.has_windows:
            raise Unsupported(
                f"{self.verbs.device} has no memory windows of type 2: set rdma_access to registration",
                reason="RDMA_NO_WINDOWS",
            )
        page = mmap.mmap(-1, verbs.PAGE_BYTES)
        with memoryview(page) as view:
            self.verbs.register(address_of(view), verbs.PAGE_BYTES, verbs.REMOTE_WRITE).close()
        page.close()

    def _live_timeout_exponent(self) -> int:
        """Of a queue pair that is connected to itself, which shows too that one can be connected."""
        pair = self.pair(1)
        try:
            pair.connect(self.route, self.gid, pair.number, 0, 0)
            return pair.timeout_exponent()
        finally:
            pair.close()

    def close(self) -> None:
        """Close it; nothing may be left open on it."""
        self.verbs.close()

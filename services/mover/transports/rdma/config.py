"""What the transport is told; `mover.settings` has a setting for each field, named `rdma_<field>`."""

from __future__ import annotations

from dataclasses import dataclass

# 4.096 us * 2**exponent: how long a queue pair waits for an acknowledgement before it sends again.
ACK_UNIT_S = 4.096e-6
DETECT = -1


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """Empty, 0 (`mtu`) or `DETECT` (`gid_index`) mean: as detected on the device."""

    device: str = ""
    port: int = 1
    gid_index: int = DETECT
    mtu: int = 0
    traffic_class: int = 0
    service_level: int = 0
    timeout_exponent: int = 14
    retry_count: int = 7
    rnr_retry_count: int = 7
    depth: int = 64
    completions: str = "event"
    access: str = "window"
    cache_bytes: int = 16 << 30
    segment_bytes: int = 256 << 20
    listen: str = ""
    host: str = ""

    @property
    def ack_timeout_s(self) -> float:
        """Seconds before an unacknowledged packet is sent again."""
        return ACK_UNIT_S * float(1 << self.timeout_exponent)


def retransmit_floor_s(timeout_exponent: int) -> float:
    """Seconds that a lost packet costs at worst: a device may take twice the timeout it was told."""
    return 2 * ACK_UNIT_S * float(1 << timeout_exponent)

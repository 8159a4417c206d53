"""The transports this mover has: one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mover.transports.local import Local
from mover.transports.rdma.choice import pick_port
from mover.transports.rdma.config import RdmaConfig
from mover.transports.tcp import Tcp
from worldline.errors import BadRequest, Unsupported, WorldlineError
from worldline.transport import Transport


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """What transports are told: where "tcp" listens (host:port), whom it advertises, congestion control and pace."""

    data_listen: str = "127.0.0.1:0"
    data_host: str = ""
    congestion: str = ""
    pace_Bps: int = 0
    rdma: RdmaConfig = field(default_factory=RdmaConfig)


def _rdma(config: TransportConfig) -> Transport:
    # A missing device is the better news than a missing binding, which only rdma needs and nothing else imports.
    pick_port(config.rdma)
    try:
        from mover.transports.rdma.transport import Rdma
    except ImportError as error:
        raise Unsupported(
            f"rdma needs pyverbs, which cannot be imported here ({error}): install your distribution's "
            "python3-pyverbs for this Python",
            reason="RDMA_NO_BINDING",
        ) from None
    return Rdma(config.rdma, config.data_listen, config.data_host)


_ROWS: Mapping[str, Callable[[TransportConfig], Transport]] = {
    "tcp": lambda config: Tcp(config.data_listen, config.data_host, config.congestion, config.pace_Bps),
    "local": lambda config: Local(),
    "rdma": _rdma,
}
NAMES = tuple(_ROWS)
# Work on every machine.
ALWAYS = ("tcp", "local")


def lack_of(name: str, config: TransportConfig) -> WorldlineError | None:
    """Why this machine does not have a transport; None if it does, which is tried out."""
    try:
        _ROWS[name](config).close()
    except WorldlineError as error:
        return error
    return None


def open_transports(names: Iterable[str], config: TransportConfig) -> dict[str, Transport]:
    """The transports of these names, ready for moves.

    Raises:
        BadRequest: a name that no transport has.
    """
    opened: dict[str, Transport] = {}
    for name in names:
        if name not in _ROWS:
            raise BadRequest(
                f"there is no transport {name[:32]!r}; there are {', '.join(NAMES)}",
                reason="UNKNOWN_TRANSPORT",
                violations={"transports": f"some of {', '.join(NAMES)}"},
            )
        opened[name] = _ROWS[name](config)
    return opened


@runtime_checkable
class _WaitsForLosses(Protocol):
    """A transport whose device sends a lost packet again only after a timeout."""

    retransmit_floor_s: float


def retransmit_floor_s(opened: Iterable[Transport]) -> float:
    """Seconds that a lost packet costs at worst on the transport that waits longest for it; 0 if none tells."""
    return max((item.retransmit_floor_s for item in opened if isinstance(item, _WaitsForLosses)), default=0.0)

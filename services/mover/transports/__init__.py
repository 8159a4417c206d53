"""The transports this mover has: one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mover.transports.local import Local
from mover.transports.tcp import Tcp
from worldline.errors import BadRequest
from worldline.transport import Transport


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """What transports are told: where "tcp" listens (host:port), the host it advertises, its congestion control."""

    data_listen: str = "127.0.0.1:0"
    data_host: str = ""
    congestion: str = ""


_ROWS: Mapping[str, Callable[[TransportConfig], Transport]] = {
    "tcp": lambda config: Tcp(config.data_listen, config.data_host, config.congestion),
    "local": lambda config: Local(),
}
NAMES = tuple(_ROWS)


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

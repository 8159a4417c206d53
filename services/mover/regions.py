"""Regions come from an engine host on the same node: a one-time ticket over its Unix socket, a descriptor back."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mover.descriptors import receive_with_descriptor
from mover.stop import Stop
from worldline.errors import NotAllowed, Unavailable

_GRANTED = b"\x01"


@contextmanager
def fetched(regions_dir: Path, host_id: str, ticket: bytes, stop: Stop, timeout_s: float) -> Iterator[int]:
    """The descriptor of the region that `ticket` stands for, open inside the block.

    Raises:
        NotAllowed: the host does not know the ticket (any more).
        Unavailable: the host's socket is not there or does not answer within `timeout_s`.
    """
    path = regions_dir / f"{host_id}.sock"
    descriptor: int | None = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.settimeout(timeout_s)

            def wake() -> None:
                with suppress(OSError):  # not connected yet: then its time-out ends it
                    connected.shutdown(socket.SHUT_RDWR)

            with stop.waking(wake):
                connected.connect(str(path))
                connected.sendall(ticket)
                answer, descriptor = receive_with_descriptor(connected, 1)
    except OSError as error:
        raise Unavailable(
            f"engine host {host_id} does not hand over its region at {path}: {error}",
            reason="REGION_UNREACHABLE",
            retry_after_s=1.0,
        ) from None
    try:
        stop.check()  # a socket that was shut down to wake us reads like one that was closed
        if answer != _GRANTED or descriptor is None:
            raise NotAllowed(f"engine host {host_id} refused the region's ticket", reason="TICKET_REFUSED")
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)

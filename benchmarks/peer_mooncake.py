"""Mooncake's transfer engine over TCP, without a metadata server."""

from __future__ import annotations

import json
import os

# Before the library is loaded: it tells every step otherwise.
os.environ.setdefault("GLOG_minloglevel", "2")

from mooncake.engine import TransferEngine

from benchmarks.suite import CHUNK_BYTES
from worldline.errors import Unavailable


class End:
    """See `benchmarks.peer_end.Peer`."""

    def __init__(self, host: str, address: int, size_bytes: int) -> None:
        self._host, self._address, self._size_bytes = host, address, size_bytes
        self._engine = TransferEngine()
        for what, status in (
            ("start", self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "")),
            ("register memory", self._engine.register_memory(address, size_bytes)),
        ):
            if status:
                raise Unavailable(f"Mooncake could not {what}: status {status}")
        self._other, self._other_address = "", 0

    def describe(self) -> str:
        """Its name and where its memory is."""
        return json.dumps({"name": f"{self._host}:{self._engine.get_rpc_port()}", "address": self._address})

    def connect(self, other: str) -> None:
        """Know the other end."""
        told = json.loads(other)
        self._other, self._other_address = told["name"], told["address"]

    def write(self) -> None:
        """One batch of all chunks."""
        offsets = range(0, self._size_bytes, CHUNK_BYTES)
        status = self._engine.batch_transfer_sync_write(
            self._other,
            [self._address + at for at in offsets],
            [self._other_address + at for at in offsets],
            [min(CHUNK_BYTES, self._size_bytes - at) for at in offsets],
        )
        if status:
            raise Unavailable(f"Mooncake ended a transfer of {self._size_bytes} bytes with status {status}")

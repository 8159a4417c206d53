"""NIXL over TCP: its UCX backend, kept to UCX's tcp transport."""

from __future__ import annotations

import base64
import json
import os
import time

# Before the library is loaded: on one machine UCX would share memory instead.
os.environ["UCX_TLS"] = "tcp"
os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")

from nixl._api import nixl_agent, nixl_agent_config

from benchmarks.suite import CHUNK_BYTES
from worldline.errors import Unavailable


class End:
    """See `benchmarks.peer_end.Peer`."""

    def __init__(self, host: str, address: int, size_bytes: int) -> None:
        self._address, self._size_bytes = address, size_bytes
        self._agent = nixl_agent(f"end-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        self._registered = self._agent.register_memory([(address, size_bytes, 0, "")], "DRAM")
        self._other, self._other_address = "", 0

    def describe(self) -> str:
        """Its metadata and where its memory is."""
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return json.dumps({"metadata": metadata, "address": self._address})

    def connect(self, other: str) -> None:
        """Load the other end's metadata."""
        told = json.loads(other)
        name = self._agent.add_remote_agent(base64.b64decode(told["metadata"]))
        self._other = name.decode() if isinstance(name, bytes) else name
        self._other_address = told["address"]

    def write(self) -> None:
        """One WRITE of all chunks."""
        here, there = (
            self._agent.get_xfer_descs(
                [
                    (base + at, min(CHUNK_BYTES, self._size_bytes - at), 0)
                    for at in range(0, self._size_bytes, CHUNK_BYTES)
                ],
                "DRAM",
            )
            for base in (self._address, self._other_address)
        )
        handle = self._agent.initialize_xfer("WRITE", here, there, self._other)
        state = self._agent.transfer(handle)
        while state == "PROC":
            time.sleep(1e-4)
            state = self._agent.check_xfer_state(handle)
        self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise Unavailable(f"NIXL ended a transfer of {self._size_bytes} bytes as {state}")

"""What the tests of rdma use beside fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from mover.transports import TransportConfig, open_transports
from mover.transports.rdma.config import RdmaConfig
from worldline.crc import crc32
from worldline.move import new_token
from worldline.plan import Chunk, Placement, Plan
from worldline.transport import Terms

if TYPE_CHECKING:  # collected also where pyverbs is not installed
    from mover.transports.rdma.transport import Rdma

Resources: TypeAlias = "dict[str, int]"
Homes: TypeAlias = "tuple[Rdma, Rdma]"
PATIENT_S = 30.0


def resources() -> Resources:
    """What the kernel counts on all verbs devices, of all processes."""
    shown = subprocess.run(["rdma", "-j", "resource", "show"], check=True, capture_output=True, text=True).stdout
    total: Resources = {}
    for device in json.loads(shown):
        for name, count in device.items():
            if name in ("pd", "cq", "qp", "mr", "ctx"):
                total[name] = total.get(name, 0) + int(count)
    return total


def channels() -> int:
    """Completion channels that this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link) == "anon_inode:[infinibandevent]" for link in links)


def open_rdma(device: str, **settings: object) -> Rdma:
    """The transport on a device."""
    config = RdmaConfig(device=device, **settings)  # type: ignore[arg-type]
    return cast("Rdma", open_transports(["rdma"], TransportConfig(rdma=config))["rdma"])


@contextmanager
def two_hosts(devices: Sequence[str], **settings: object) -> Iterator[Homes]:
    """A transport for each of two hosts."""
    one, other = open_rdma(devices[0], **settings), open_rdma(devices[1], **settings)
    yield one, other
    one.close()
    other.close()


def terms_of(streams: int = 1, no_progress_s: float = PATIENT_S) -> Terms:
    """Terms of a new move."""
    return Terms(str(uuid.uuid4()), new_token(), streams, no_progress_s)


def chunks_of(size_bytes: int, chunk_bytes: int) -> tuple[Chunk, ...]:
    """The chunks of a region."""
    return Plan("rdma", chunk_bytes, 1, Placement.PIPELINED, 60, 60, PATIENT_S).chunks(size_bytes)


@dataclass
class Stream:
    """One move of one stream between two transports."""

    source: memoryview
    slot: memoryview
    chunks: tuple[Chunk, ...]
    terms: Terms

    def open(self, sender_home: Rdma, receiver_home: Rdma) -> Stream:
        """Listen, connect, accept."""
        self.listener = receiver_home.listen(self.slot, self.chunks, self.terms)
        self.sender = sender_home.connect(self.source, self.chunks, self.terms, self.listener.endpoint, 0)
        self.receiver = self.listener.accept()
        return self

    def give_up(self) -> None:
        """As the receiver's data plane does when its move is aborted."""
        self.receiver.close()
        self.listener.close()

    def close(self) -> None:
        """Everything."""
        self.sender.close()
        self.give_up()


def new_stream(
    size_bytes: int, chunk_bytes: int = 1 << 14, *, slot: memoryview | None = None, no_progress_s: float = PATIENT_S
) -> Stream:
    """A move of random bytes into a slot, of zeros if none is given."""
    return Stream(
        memoryview(os.urandom(size_bytes)),
        memoryview(bytearray(size_bytes)) if slot is None else slot,
        chunks_of(size_bytes, chunk_bytes),
        terms_of(no_progress_s=no_progress_s),
    )


def send(stream: Stream, chunk: Chunk) -> None:
    """One chunk as the pipeline sends it."""
    stream.sender.begin(chunk)
    with stream.source[chunk.offset : chunk.offset + chunk.size_bytes] as piece:
        stream.sender.write(piece, chunk.offset)
        stream.sender.end(crc32(piece))


def send_all(stream: Stream, first: int = 0) -> None:
    """The chunks from `first` on, and the end of the round."""
    for chunk in stream.chunks[first:]:
        send(stream, chunk)
    assert list(stream.sender.finish()) == []


def held_bytes() -> int:
    """Memory of this process that is its own."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

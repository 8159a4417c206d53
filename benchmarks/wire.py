"""One end of a transfer in a process of its own: a bare socket loop (the ceiling) or the mover's own data-plane job.

`python -m benchmarks.wire SIZE HOST` receives: it reads one JSON command a line from standard input and answers one a
line. The sending end runs in the caller. Both keep one warm region for all runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self, TypeVar

from benchmarks.child import Child, say
from mover.job import Job
from mover.memory import Region
from mover.messages import Outcome
from mover.settings import default_codec_threads, default_congestion, default_lane_threads
from mover.transports import TransportConfig, open_transports
from worldline.codec.runs import Run
from worldline.crc import PIECE_BYTES, combine_all, crc32
from worldline.errors import DataLoss
from worldline.plan import Chunk, Plan
from worldline.transport import Terms, Transport
from worldline.v1 import state_pb2
from worldline.wire import plan_from, plan_to


def memory(size_bytes: int) -> int:
    """A descriptor of new memory."""
    descriptor = os.memfd_create("worldline-bench")
    os.ftruncate(descriptor, size_bytes)
    return descriptor


Result = TypeVar("Result")
MOVE_ID = str(uuid.UUID(int=0))
CONGESTION = default_congestion()
CORES = os.cpu_count() or 1
# A stream names itself by this many bytes: fewer, and the kernel's copies of all that follows are unaligned.
PREFIX_BYTES = 64
# What one thread checks at a time where memory is only checked.
_CHECKED_BYTES = 16 << 20


class Bare:
    """Chunks over plain sockets, one thread a stream; no framing, no checks: what the link can do."""

    def __init__(self, region: memoryview, chunks: Sequence[Chunk], streams: int) -> None:
        self._region = region
        self._shares = [chunks[stream::streams] for stream in range(streams)]

    @staticmethod
    def tune(link: socket.socket) -> None:
        """The mover's socket options, before the handshake as there, so that the link is the same."""
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if CONGESTION:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())

    def send(self, host: str, port: int) -> None:
        """Send all; returns when the receiver has said that all is there."""

        def stream(number: int, share: Sequence[Chunk]) -> None:
            with socket.socket() as link:
                self.tune(link)
                link.connect((host, port))
                link.sendall(bytes([number]) * PREFIX_BYTES)
                for chunk in share:
                    link.sendall(self._region[chunk.offset : chunk.offset + chunk.size_bytes])
                link.recv(1)

        together([partial(stream, number, share) for number, share in enumerate(self._shares)])

    def receive(self, listener: socket.socket, landed: Callable[[int], None] = lambda stream: None) -> None:
        """Receive all; `landed` is told of each chunk of a stream."""

        def stream(number: int, link: socket.socket) -> None:
            with link:
                for chunk in self._shares[link.recv(PREFIX_BYTES, socket.MSG_WAITALL)[0]]:
                    link.recv_into(
                        self._region[chunk.offset : chunk.offset + chunk.size_bytes],
                        chunk.size_bytes,
                        socket.MSG_WAITALL,
                    )
                    landed(number)
                link.sendall(b"\x01")

        links = [listener.accept()[0] for _ in self._shares]
        together([partial(stream, number, link) for number, link in enumerate(links)])


def _checksum(view: memoryview) -> None:
    crc = 0
    for at in range(0, len(view), PIECE_BYTES):
        crc = crc32(view[at : at + PIECE_BYTES], crc)


def checksum_together(memories: Sequence[Sequence[memoryview]]) -> list[int]:
    """The CRC-32 of each memory, all at once on all cores."""
    pieces = [
        (number, view[at : at + _CHECKED_BYTES])
        for number, views in enumerate(memories)
        for view in views
        for at in range(0, len(view), _CHECKED_BYTES)
    ]
    with ThreadPoolExecutor(CORES) as pool:
        crcs = list(pool.map(lambda piece: crc32(piece[1]), pieces))
    return [
        combine_all((crc, len(view)) for (of, view), crc in zip(pieces, crcs, strict=True) if of == number)
        for number in range(len(memories))
    ]


def in_short(crcs: Sequence[int]) -> str:
    """What two ends compare instead of every checksum."""
    return f"{crc32(repr(tuple(crcs)).encode()):08x}"


def together(work: Sequence[Callable[[], Result]]) -> list[Result]:
    """All at once, each on its own thread, and what each returned; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(item) for item in work]]


def noise(view: memoryview) -> Sequence[Run]:
    """Random bytes, which are no runs of elements."""
    random = os.urandom(1 << 20)
    for at in range(0, len(view), 1 << 20):
        with view[at : at + (1 << 20)] as piece:
            piece[:] = random[: len(piece)]
    return ()


class Arms:
    """The sending process: times each arm over one warm region of random bytes, or of those that `fill` puts there.

    The receiver listens on `host`, and is run by the command `within`, if one is given.
    """

    def __init__(
        self,
        size_bytes: int,
        plan: Plan,
        *,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
        fill: Callable[[memoryview], Sequence[Run]] = noise,
    ) -> None:
        self._size_bytes, self._plan, self._host = size_bytes, plan, host
        self._descriptor = memory(size_bytes)
        self._region = Region(self._descriptor, size_bytes, writable=True)
        self._region.populate()
        self._runs = fill(self._region.view)
        self._receiver = Child("benchmarks.wire", size_bytes, host, within=within)
        self._transports = _transports("127.0.0.1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def view(self) -> memoryview:
        """The sending region."""
        return self._region.view

    def checksums(self, target: Region) -> float:
        """Seconds of the checksums of both ends and nothing else, with all cores."""
        share = -(-self._size_bytes // CORES)
        views = [
            view[at : at + share]
            for at in range(0, self._size_bytes, share)
            for view in (self._region.view, target.view)
        ]
        start = time.perf_counter()
        for pair in range(2):
            together([partial(_checksum, view) for view in views[pair::2]])
        return time.perf_counter() - start

    def bare(self) -> float:
        """Seconds of one transfer over plain sockets."""
        self._receiver.ask({"arm": "bare", "plan": _encoded(self._plan)})
        port = int(self._receiver.told("endpoint"))
        start = time.perf_counter()
        Bare(self._region.view, self._plan.chunks(self._size_bytes), self._plan.streams).send(self._host, port)
        return time.perf_counter() - start

    def job(self, *, verified: bool, plan: Plan | None = None) -> float:
        """Seconds of one transfer by the mover's pipeline, until both ends have all checksums."""
        return self.outcome(verified=verified, plan=plan)[0]

    def outcome(self, *, verified: bool, plan: Plan | None = None) -> tuple[float, Outcome]:
        """The same, and how it ended."""
        plan = plan or self._plan
        terms = Terms(MOVE_ID, os.urandom(32), plan.streams, 30.0)
        self._receiver.ask({"arm": "job", "verified": verified, "plan": _encoded(plan), "token": terms.token.hex()})
        job = Job(self._transports, default_lane_threads(), default_codec_threads(), verified=verified)
        job.map(os.dup(self._descriptor), self._size_bytes, writable=False)
        endpoint = self._receiver.told("endpoint")
        start = time.perf_counter()
        job.connect(plan, terms, endpoint, (), lambda kind, chunk: None, self._runs)
        outcome = job.run(60.0, lambda progress: None)
        told = self._receiver.told("checksums")
        taken = time.perf_counter() - start
        if verified and told != in_short(outcome.crcs):
            raise DataLoss("the two ends of a verified arm have different checksums")
        job.close()
        return taken, outcome

    def close(self) -> None:
        """Free everything."""
        self._receiver.close()
        self._region.close()
        os.close(self._descriptor)


def _transports(host: str) -> Mapping[str, Transport]:
    return open_transports(("tcp", "local"), TransportConfig(data_listen=f"{host}:0", congestion=CONGESTION))


def _encoded(plan: Plan) -> str:
    return plan_to(plan).SerializeToString().hex()


def main(size_bytes: int, host: str) -> None:
    """The receiving process."""
    descriptor = memory(size_bytes)
    region = Region(descriptor, size_bytes, writable=True)
    region.populate()
    transports = _transports(host)
    say({"ready": "yes"})
    for line in sys.stdin:
        command = json.loads(line)
        plan = plan_from(state_pb2.Plan.FromString(bytes.fromhex(command["plan"])))
        if command["arm"] == "bare":
            with socket.create_server((host, 0)) as listener:
                Bare.tune(listener)
                say({"endpoint": str(listener.getsockname()[1])})
                Bare(region.view, plan.chunks(size_bytes), plan.streams).receive(listener)
            continue
        terms = Terms(MOVE_ID, bytes.fromhex(command["token"]), plan.streams, 30.0)
        job = Job(transports, default_lane_threads(), default_codec_threads(), verified=command["verified"])
        job.map(os.dup(descriptor), size_bytes, writable=True)
        say({"endpoint": job.listen(plan, terms)})
        outcome = job.run(60.0, lambda progress: None)
        say({"checksums": in_short(outcome.crcs)})
        job.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

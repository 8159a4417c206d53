"""Every placement over every transport with every codec: exact in whatever order chunks come, never wrong unnoticed."""

from __future__ import annotations

import itertools
import mmap
import os
import random
from collections import deque
from typing import ClassVar

import numpy as np
import pytest
from mover_moves import Moved, move, plan

from mover import job as mover_job
from mover.messages import Outcome, WireFault
from mover.sending import Sending
from mover.verification import PLACEMENTS, Checks
from worldline.codec.runs import Run
from worldline.crc import crc32
from worldline.errors import DataLoss
from worldline.plan import CODECS, RAW, Chunk, Placement, Plan
from worldline.receipt import whole_crc
from worldline.transport import Transport

pytestmark = pytest.mark.usefixtures("no_leaks")

TRANSPORTS = ("tcp", "local")
MATRIX = [
    pytest.param(placement, transport, codec, id=f"{placement.name.lower()}-{transport}-{codec}")
    for placement, transport, codec in itertools.product(PLACEMENTS, TRANSPORTS, CODECS)
]
SIZE_BYTES = 300_001


def content_of(size_bytes: int) -> bytes:
    """Numbers, zeros and noise in turns of 40,000 bytes."""
    rng = np.random.default_rng(size_bytes)
    numbers = (rng.standard_normal(20_000, dtype=np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    parts = itertools.cycle((numbers, bytes(40_000), rng.bytes(40_000)))
    return b"".join(itertools.islice(parts, size_bytes // 40_000 + 1))[:size_bytes]


def run(
    transports: dict[str, Transport], chosen: Plan, size_bytes: int = SIZE_BYTES, faults: list[WireFault] | None = None
) -> Moved:
    return move(transports, chosen, content_of(size_bytes), faults or [], runs=[Run(size_bytes, 2)])


def require_exact(done: Moved, chosen: Plan) -> tuple[Outcome, Outcome]:
    assert isinstance(done.sent, Outcome), done.sent
    assert isinstance(done.received, Outcome), done.received
    assert done.slot == done.source
    assert done.sent.crcs == done.received.crcs
    assert whole_crc(chosen.chunks(len(done.source)), done.received.crcs) == crc32(done.source)
    return done.sent, done.received


class Shuffled(Sending):
    """Sends its chunks in an order of its own."""

    def __init__(self, region: memoryview, chunks: tuple[Chunk, ...], *args: object, **kwargs: object) -> None:
        super().__init__(region, chunks, *args, **kwargs)  # type: ignore[arg-type]
        self._left = deque(random.Random(len(chunks)).sample(chunks, len(chunks)))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("placement", "transport", "codec"), MATRIX)
class TestMatrix:
    """One case for each placement, transport and codec."""

    sizes: ClassVar[tuple[tuple[int, int, tuple[int, ...]], ...]] = (
        (1, 1, ()),
        (4097, 1, ()),
        (SIZE_BYTES, 3, (333, 7, 1)),
        (65_536, 16, (1,)),
    )

    def plan(self, placement: Placement, transport: str, codec: str, **changes: object) -> Plan:
        return plan(transport, 16 << 10, 3, placement=placement, codec=codec, **changes)

    def test_chunks_out_of_order_of_odd_sizes_and_of_one_byte(
        self,
        transports: dict[str, Transport],
        monkeypatch: pytest.MonkeyPatch,
        placement: Placement,
        transport: str,
        codec: str,
    ) -> None:
        monkeypatch.setattr(mover_job, "Sending", Shuffled)
        for size_bytes, pages, tail_bytes in self.sizes:
            chosen = plan(transport, pages * 4096, 3, placement=placement, codec=codec, tail_bytes=tail_bytes)
            require_exact(run(transports, chosen, size_bytes), chosen)

    def test_a_flip_on_the_wire_is_repaired_once(
        self, transports: dict[str, Transport], placement: Placement, transport: str, codec: str
    ) -> None:
        """Of the encoded bytes, where there are some: numbers, zeros and noise."""
        chosen = self.plan(placement, transport, codec)
        faults = [WireFault("FLIP", chunk, 1, 0.0) for chunk in (0, 3, 6)]
        sent, received = require_exact(run(transports, chosen, faults=faults), chosen)
        assert sent.retried_chunks == received.retried_chunks == 3
        counts = sent.coding
        kinds = (counts.coded_pieces, counts.zero_pieces, counts.raw_pieces, counts.late_pieces) if counts else ()
        assert kinds == (() if codec == RAW else (12, 5, 3, 0))

    def test_a_flip_that_comes_back_is_named(
        self, transports: dict[str, Transport], placement: Placement, transport: str, codec: str
    ) -> None:
        done = run(transports, self.plan(placement, transport, codec), faults=[WireFault("FLIP", 6, 0, 0.0)])
        assert isinstance(done.failure, DataLoss)
        assert (done.failure.reason, done.failure.numbers["chunk"]) == ("CHUNK_MISMATCH", 6)

    @pytest.mark.parametrize("times", [1, 2])
    def test_a_flip_in_the_landing(
        self,
        transports: dict[str, Transport],
        monkeypatch: pytest.MonkeyPatch,
        placement: Placement,
        transport: str,
        codec: str,
        times: int,
    ) -> None:
        """The chunk lies in the slot, decoded; its memory changes before it is checked."""
        left, check = [times], Checks.check

        def spoil(self: Checks, chunk: Chunk) -> None:
            if chunk.index == 4 and left[0]:
                left[0] -= 1
                self._region[chunk.offset + 5] ^= 1
            check(self, chunk)

        monkeypatch.setattr(Checks, "check", spoil)
        chosen = self.plan(placement, transport, codec)
        done = run(transports, chosen)
        if times == 1:
            assert require_exact(done, chosen)[1].retried_chunks == 1
        else:
            assert isinstance(done.failure, DataLoss)
            assert (done.failure.reason, done.failure.numbers["chunk"]) == ("CHUNK_MISMATCH", 4)

    def test_a_flip_in_the_slot_after_its_check(
        self,
        transports: dict[str, Transport],
        monkeypatch: pytest.MonkeyPatch,
        placement: Placement,
        transport: str,
        codec: str,
    ) -> None:
        """The mover has checked it: what its host finds in the slot is not what the checksums say."""
        check = Checks.check

        def spoil(self: Checks, chunk: Chunk) -> None:
            check(self, chunk)
            if chunk.index == 4:
                self._region[chunk.offset + 5] ^= 1

        monkeypatch.setattr(Checks, "check", spoil)
        chosen = self.plan(placement, transport, codec)
        done = run(transports, chosen)
        assert isinstance(done.received, Outcome)
        chunks = chosen.chunks(SIZE_BYTES)
        found = [crc32(done.slot[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks]
        assert [at for at, pair in enumerate(zip(found, done.received.crcs, strict=True)) if len({*pair}) > 1] == [4]

    def test_a_flip_in_the_source_after_its_checksum(
        self,
        transports: dict[str, Transport],
        monkeypatch: pytest.MonkeyPatch,
        placement: Placement,
        transport: str,
        codec: str,
    ) -> None:
        """The source's memory changes between two looks at it: no copy of it is right, and the sender says so."""
        keep = Sending._keep

        def spoil(self: Sending, chunk: Chunk, crc: int) -> None:
            keep(self, chunk, crc)
            if chunk.index == 3:
                descriptor = self._region.obj.descriptor  # type: ignore[union-attr]
                writable = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
                with mmap.mmap(writable, SIZE_BYTES) as memory:
                    memory[chunk.offset] ^= 1
                os.close(writable)

        monkeypatch.setattr(Sending, "_keep", spoil)
        done = run(transports, self.plan(placement, transport, codec), faults=[WireFault("FLIP", 3, 1, 0.0)])
        assert isinstance(done.sent, DataLoss)
        assert (done.sent.reason, done.sent.numbers["chunk"]) == ("SOURCE_CHANGED", 3)
        assert isinstance(done.received, Exception)

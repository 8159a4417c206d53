"""Coded moves: whatever is coded, lost or flipped, the slot holds the source's bytes or the move fails by name."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from mover_moves import Moved, move, plan

from mover.codec.ahead import Ahead
from mover.codec.behind import BUFFERS, Behind
from mover.codec.counts import Coding
from mover.messages import Outcome, WireFault, coding_from
from mover.verification import PLACEMENTS, Checks, lane_for
from worldline.codec.planes import is_zero, join, split
from worldline.codec.runs import Cutter, Run, runs_of
from worldline.codec.zstd import Coder
from worldline.crc import crc32
from worldline.errors import BadRequest, Cancelled, DataLoss
from worldline.layout import DTYPE_BYTES, Layout, Leaf, LeafKind, aligned
from worldline.plan import Chunk, Placement
from worldline.receipt import whole_crc
from worldline.transport import MAX_PIECE_BYTES, Landed, Piece, Transport

pytestmark = pytest.mark.usefixtures("no_leaks")

TRANSPORTS = ("tcp", "local")
KINDS = ("noise", "zeros", "bf16", "fp32", "mixed")


def content_of(kind: str, size_bytes: int, seed: int = 1) -> bytes:
    """Bytes as caches hold them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size_bytes // 2 + 4, dtype=np.float32)
    if kind == "noise":
        return rng.bytes(size_bytes)
    if kind == "zeros":
        return bytes(size_bytes)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()[:size_bytes]
    if kind == "fp32":
        return values.tobytes()[:size_bytes]
    third = size_bytes // 3
    parts = [content_of(name, third, seed + at) for at, name in enumerate(("zeros", "bf16", "noise"))]
    return b"".join(parts).ljust(size_bytes, b"\x07")


def moved(done: Moved) -> tuple[Outcome, Outcome]:
    assert isinstance(done.sent, Outcome), done.sent
    assert isinstance(done.received, Outcome), done.received
    assert done.slot == done.source
    assert done.sent.crcs == done.received.crcs
    return done.sent, done.received


# --- whole moves


@settings(max_examples=25, deadline=None)
@given(
    transport=st.sampled_from(TRANSPORTS),
    kind=st.sampled_from(KINDS),
    size_bytes=st.integers(1, 60_000),
    pages=st.integers(1, 6),
    streams=st.integers(1, 4),
    placement=st.sampled_from(PLACEMENTS),
    tail_bytes=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
    runs=st.lists(st.tuples(st.integers(1, 20_000), st.sampled_from((1, 2, 4))), max_size=4),
    flips=st.sets(st.integers(0, 12), max_size=4),
    drops=st.sets(st.integers(0, 12), max_size=3),
)
@pytest.mark.usefixtures("patient")
def test_any_coded_plan_carries_any_region_exactly(
    transports: dict[str, Transport],
    transport: str,
    kind: str,
    size_bytes: int,
    pages: int,
    streams: int,
    placement: Placement,
    tail_bytes: tuple[int, ...],
    runs: list[tuple[int, int]],
    flips: set[int],
    drops: set[int],
) -> None:
    chosen = plan(transport, pages * 4096, streams, placement=placement, tail_bytes=tail_bytes, codec="zstd")
    ends = np.cumsum([length for length, _ in runs]).tolist()
    cut = [Run(end, width) for end, (_, width) in zip(ends, runs, strict=True)]
    faults = [WireFault("FLIP", chunk, 1, 0.0) for chunk in flips]
    faults += [WireFault("DROP", chunk, 1, 0.0) for chunk in drops]
    done = move(transports, chosen, content_of(kind, size_bytes), faults, runs=cut)
    sent, received = moved(done)
    chunks = chosen.chunks(size_bytes)
    assert whole_crc(chunks, received.crcs) == crc32(done.source)
    assert sent.retried_chunks == received.retried_chunks == sum(chunk < len(chunks) for chunk in flips | drops)


@pytest.mark.usefixtures("patient")
def test_what_codes_is_coded_and_counted(transports: dict[str, Transport]) -> None:
    size_bytes = 6 << 20
    chosen = plan("tcp", 1 << 20, codec="zstd")
    done = move(transports, chosen, content_of("mixed", size_bytes), runs=[Run(size_bytes, 2)])
    sent, received = moved(done)
    assert sent.coding is not None
    assert received.coding is not None
    assert (sent.coding.zero_pieces, sent.coding.coded_pieces, sent.coding.raw_pieces) == (2, 2, 2)
    assert sent.coding.late_pieces == 0
    # Zeros cost nothing, bf16 noise at most 0.75, the rest what it is.
    assert 0.5 * size_bytes < sent.coding.wire_bytes < 0.6 * size_bytes
    assert (received.coding.zero_pieces, received.coding.coded_pieces) == (2, 2)
    assert sent.coding.rate_Bps > 0 < received.coding.rate_Bps


def test_without_a_codec_in_time_all_goes_raw_and_is_counted(
    transports: dict[str, Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codec's threads never begin: the wire does not wait for them."""
    monkeypatch.setattr(Ahead, "_next", lambda self: None)
    size_bytes = 1 << 20
    done = move(transports, plan("tcp", 64 << 10, codec="zstd"), content_of("bf16", size_bytes))
    sent, _ = moved(done)
    assert sent.coding is not None
    assert (sent.coding.late_pieces, sent.coding.late_bytes, sent.coding.coded_pieces) == (16, size_bytes, 0)
    assert sent.coding.wire_bytes == size_bytes


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", ["bf16", "zeros", "noise"])
def test_a_second_flip_in_the_coded_stream_names_the_chunk(
    transports: dict[str, Transport], placement: Placement, kind: str
) -> None:
    chosen = plan("tcp", 64 << 10, placement=placement, codec="zstd")
    done = move(transports, chosen, content_of(kind, 1 << 20), [WireFault("FLIP", 3, 0, 0.0)], runs=[Run(1 << 20, 2)])
    assert isinstance(done.failure, DataLoss)
    assert (done.failure.reason, done.failure.numbers["chunk"]) == ("CHUNK_MISMATCH", 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["TRUNCATE", "STALL"])
def test_a_coded_move_that_breaks_ends_both_ends(transports: dict[str, Transport], kind: str, transport: str) -> None:
    chosen = plan(transport, 64 << 10, codec="zstd", no_progress_s=0.5)
    done = move(transports, chosen, content_of("bf16", 1 << 20), [WireFault(kind, 3, 1, 5.0)])
    assert isinstance(done.failure, Exception)
    assert isinstance(done.sent, Exception)


# --- cutting


@given(
    runs=st.lists(st.tuples(st.integers(1, 3 << 20), st.sampled_from((1, 2, 4))), max_size=5),
    offset=st.integers(0, 4 << 20),
    size_bytes=st.integers(1, 5 << 20),
)
def test_pieces_make_up_their_chunk(runs: list[tuple[int, int]], offset: int, size_bytes: int) -> None:
    ends = np.cumsum([length for length, _ in runs]).tolist()
    cut = Cutter([Run(end, width) for end, (_, width) in zip(ends, runs, strict=True)])
    at = offset
    for start, size, width in cut.pieces(Chunk(0, offset, size_bytes)):
        assert start == at
        assert 0 < size <= MAX_PIECE_BYTES
        assert size % width == 0
        at += size
    assert at == offset + size_bytes


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.integers(1, 40_000)), min_size=1, max_size=8))
def test_runs_cover_a_layout(shapes: list[tuple[str, int]]) -> None:
    leaves, at = [], 0
    for number, (dtype, count) in enumerate(shapes):
        size_bytes = count * DTYPE_BYTES[dtype]
        leaves.append(Leaf(f"leaf-{number:02}", LeafKind.TENSOR, dtype, (count,), (), at, size_bytes, number))
        at = aligned(at + size_bytes)
    layout = Layout(tuple(leaves), max(at, 64))
    runs = runs_of(layout)
    assert [run.end for run in runs] == sorted({run.end for run in runs})
    assert runs[-1].end == layout.region_bytes
    for leaf in leaves:
        if leaf.dtype == "bfloat16" and leaf.size_bytes >= 16 << 10:
            assert next(run.width for run in runs if run.end > leaf.offset) == 2


# --- coding


@given(data=st.binary(min_size=1, max_size=400), width=st.sampled_from((1, 2, 4)))
def test_planes_join_to_what_was_split(data: bytes, width: int) -> None:
    data = data * width
    into = bytearray(os.urandom(len(data)))
    with memoryview(data) as view, memoryview(into) as target:
        planes = split(view, width)
        assert [plane.tobytes() for plane in planes] == [data[number::width] for number in range(width)]
        join(target, [plane if plane.any() else None for plane in planes])
        assert is_zero(view) == (not any(data))
        del planes
    assert bytes(into) == data


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 30_000),
    width=st.sampled_from((1, 2, 4)),
    flip=st.none() | st.integers(0, 1 << 30),
)
def test_a_payload_decodes_to_its_piece_or_is_caught(kind: str, size: int, width: int, flip: int | None) -> None:
    """Also at an offset that no element is aligned to."""
    data = content_of(kind, size * width)
    coder = Coder()
    slot = bytearray(os.urandom(len(data) + 1))
    with memoryview(data) as view, memoryview(slot)[1:] as into:
        piece, parts = coder.encode(view, 64, width)
        assert piece.wire_bytes <= len(data)
        if not piece.planes:
            assert not parts
            return
        payload = bytearray(b"".join(parts))
        assert len(payload) == piece.wire_bytes
        if flip is not None and payload:
            payload[flip % len(payload)] ^= 1 << flip % 7
        with memoryview(payload) as view_of_payload:
            good = coder.decode(into, piece, view_of_payload)
        if flip is None or not payload:
            assert good
            assert into == data
        else:
            assert not good or crc32(into) != crc32(data)


def frame(content: bytes, **changes: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **changes).compress(content)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("more than its plane", frame(bytes(9000))),
        ("less than its plane", frame(bytes(7000))),
        ("a bomb", frame(bytes(64 << 20))),
        ("an unknown size", frame(bytes(8192), write_content_size=False)),
        ("garbage", b"\x28\xb5\x2f\xfd" + bytes(random.Random(1).randbytes(50))),
        ("no frame", b"hello"),
        ("two frames", frame(bytes(8192)) + frame(bytes(8192))),
        ("trailing bytes", frame(bytes(8192)) + b"\x00"),
        ("a truncated frame", frame(random.Random(1).randbytes(100) * 82)[:-3]),
        ("a skippable frame", b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"),
        # Declares 2**40 bytes in one segment.
        ("a declared bomb", b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"),
        # Declares 8192 bytes, yields 4.
        ("a liar", b"\x28\xb5\x2f\xfd\x60" + (8192 - 256).to_bytes(2, "little") + b"\x21\x00\x00abcd"),
    ],
)
def test_a_frame_that_is_not_of_its_plane_is_refused(name: str, payload: bytes) -> None:
    slot = bytearray(8192)
    with memoryview(slot) as into, memoryview(payload) as view:
        assert not Coder().decode(into, Piece(0, 8192, (len(payload),)), view), name
    assert slot == bytes(8192)


@pytest.mark.parametrize(
    ("size_bytes", "planes"),
    [(0, ()), (MAX_PIECE_BYTES + 1, ()), (9, (1, 1)), (9, (1, 1, 1)), (8, (9,)), (8, (4, 5)), (8, (1,) * 8)],
)
def test_a_piece_that_cannot_be_is_refused(size_bytes: int, planes: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest) as error:
        Piece(0, size_bytes, planes)
    assert error.value.reason == "BAD_PIECE"


# --- threads


Carried = tuple[Behind, Checks, bytearray]


@pytest.fixture
def behind() -> Iterator[Callable[[bytes, int], Carried]]:
    """Makes a decoder of chunks of 4096 bytes before a pipelined lane."""
    made: list[Behind] = []

    def make(content: bytes, threads: int) -> Carried:
        slot = bytearray(os.urandom(len(content)))
        view = memoryview(slot)
        checks = Checks(view, plan("tcp").chunks(len(content)))
        made.append(Behind(view, checks, lane_for(Placement.PIPELINED, checks, 1), threads))
        return made[-1], checks, slot

    yield make
    for each in made:
        each.close()


def put(behind: Behind, chunk: Chunk, data: bytes, *, spoil: bool = False) -> None:
    """One chunk as one coded piece, as a link does."""
    piece, parts = Coder().encode(memoryview(data), chunk.offset, 2)
    payload = behind.buffer(piece.wire_bytes)
    payload[:] = b"".join(parts)
    if spoil:
        payload[len(payload) // 2] ^= 0x40
    behind.decode(chunk, piece, payload)
    behind.landed(Landed(chunk, crc32(data)))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_chunks_are_decoded_and_then_checked(behind: Callable[[bytes, int], Carried], threads: int) -> None:
    content = content_of("bf16", 400 * 4096)
    decoding, checks, slot = behind(content, threads)
    chunks = list(checks.chunks)
    random.Random(2).shuffle(chunks)
    for chunk in chunks:
        put(decoding, chunk, content[chunk.offset : chunk.offset + 4096], spoil=chunk.index in (7, 300))
    decoding.drain()
    assert checks.differing() == [7, 300]
    assert checks.missing() == []
    for chunk in (checks.chunks[7], checks.chunks[300]):  # sent again, as it is
        slot[chunk.offset : chunk.offset + 4096] = content[chunk.offset : chunk.offset + 4096]
        decoding.landed(Landed(chunk, crc32(content[chunk.offset : chunk.offset + 4096])))
    decoding.drain()
    assert checks.differing() == []
    assert bytes(slot) == content


def test_payloads_that_wait_are_bounded_and_close_wakes(behind: Callable[[bytes, int], Carried]) -> None:
    decoding, _, _ = behind(bytes(4096), 1)
    held = [decoding.buffer(MAX_PIECE_BYTES) for _ in range(BUFFERS)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(decoding.buffer, 1)
        assert not waiting.done()
        decoding.close()
        with pytest.raises(Cancelled):
            waiting.result(20)
    del held
    with pytest.raises(Cancelled):
        decoding.drain()


def test_what_is_coded_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the chunks' size: a stream that does not take its pieces is not coded for any further."""
    monkeypatch.setattr("mover.codec.ahead.AHEAD_BYTES", 1 << 20)
    size_bytes = 8 << 20
    region = memoryview(content_of("bf16", size_bytes))
    ahead = Ahead(region, Cutter([Run(size_bytes, 2)]), 2, 1)
    try:
        ahead.reserve(0, Chunk(0, 0, size_bytes))
        feed = ahead._feeds[0]
        taken = 0
        for _ in range(8):
            assert feed.ahead_bytes <= (1 << 20) + MAX_PIECE_BYTES
            piece, _ = ahead.take(0)
            taken += piece.size_bytes
        assert taken == size_bytes
        assert not ahead.counts().worked_bytes > size_bytes
    finally:
        ahead.close()
    region.release()


def test_a_codec_that_fails_fails_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Coder, data: memoryview, offset: int, width: int) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(Coder, "encode", broken)
    ahead = Ahead(memoryview(os.urandom(1 << 20)), Cutter(()), 1, 1)
    try:
        ahead.reserve(0, Chunk(0, 0, 1 << 20))
        with ahead._changed:
            ahead._changed.wait_for(lambda: ahead._failed is not None, 20)
        with pytest.raises(MemoryError):
            ahead.take(0)
    finally:
        ahead.close()


def test_counts_survive_the_pipe() -> None:
    counts = Coding(1, 2, 3, 4, 5, 6, 7, 8.5, 9, 10)
    assert coding_from(json.loads(json.dumps(dataclasses.asdict(counts)))) == counts

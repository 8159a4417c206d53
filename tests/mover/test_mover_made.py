"""Moves that make part of the region at the destination: not a byte of it is sent, every byte of it is verified."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mover_moves import Moved, move, plan

from mover.messages import Outcome, WireFault, plan_from, plan_to
from mover.verification import PLACEMENTS
from worldline.crc import crc32
from worldline.errors import DataLoss
from worldline.made import Made
from worldline.plan import Placement, Plan
from worldline.receipt import whole_crc
from worldline.transport import Transport

pytestmark = pytest.mark.usefixtures("no_leaks")

TRANSPORTS = ("tcp", "local")
SIZE_BYTES = 40_000
MADE = (Made(8192, 8192), Made(20_480, 6_000, b"\x80\x3f"))


def written(content: bytes, made: tuple[Made, ...]) -> bytes:
    """The region with what the plan makes in its place."""
    region = bytearray(content)
    for item in made:
        region[item.offset : item.end] = item.fill * (item.size_bytes // len(item.fill))
    return bytes(region)


def shadow(size_bytes: int, made: tuple[Made, ...]) -> bytes:
    """A slot as an engine host stages it: what is sent is not there yet."""
    return written(b"\x5a" * size_bytes, made)


def outcomes(done: Moved) -> tuple[Outcome, Outcome]:
    assert isinstance(done.sent, Outcome), done
    assert isinstance(done.received, Outcome), done
    return done.sent, done.received


@settings(max_examples=25, deadline=None)
@given(
    transport=st.sampled_from(TRANSPORTS),
    codec=st.sampled_from(["raw", "zstd"]),
    placement=st.sampled_from(PLACEMENTS),
    pages=st.integers(1, 3),
    streams=st.integers(1, 4),
    tail_bytes=st.lists(st.integers(1, 4096), max_size=4).map(tuple),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    fills=st.lists(st.sampled_from([b"\0", b"\xff", b"\x80\x3f", bytes(range(8))]), min_size=4, max_size=4),
    flips=st.sets(st.integers(0, 12), max_size=3),
)
def test_whatever_is_made_the_bytes_are_the_sources(
    transports: dict[str, Transport],
    transport: str,
    codec: str,
    placement: Placement,
    pages: int,
    streams: int,
    tail_bytes: tuple[int, ...],
    cuts: list[int],
    fills: list[bytes],
    flips: set[int],
) -> None:
    edges = sorted({2 * cut & ~15 for cut in cuts})
    pairs = zip(edges[::2], edges[1::2], fills, strict=False)
    made = tuple(Made(start, end - start, fill) for start, end, fill in pairs)
    chosen = plan(transport, pages * 4096, streams, placement=placement, tail_bytes=tail_bytes, codec=codec, made=made)
    chunks = chosen.chunks(SIZE_BYTES)
    faults = [WireFault("FLIP", chunk, 1, 0.0) for chunk in flips]
    content = written(os.urandom(SIZE_BYTES), made)
    sent, received = outcomes(move(transports, chosen, content, faults, landing=shadow(SIZE_BYTES, made)))
    assert sent.crcs == received.crcs
    assert whole_crc(chunks, received.crcs) == crc32(content)
    hit = {index for index in flips if index < len(chunks) and not chunks[index].fill}
    if codec == "raw":
        assert sent.retried_chunks == received.retried_chunks == len(hit)
    assert received.checked_bytes >= SIZE_BYTES, "every byte of the slot was read, made or not"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_what_was_not_made_right_is_sent(
    transports: dict[str, Transport], transport: str, placement: Placement, codec: str
) -> None:
    """A flip in the made part of the slot: it is found, and that chunk alone comes from the source."""
    chosen = plan(transport, placement=placement, codec=codec, made=MADE)
    content = written(os.urandom(SIZE_BYTES), MADE)
    slot = bytearray(shadow(SIZE_BYTES, MADE))
    slot[9_000] ^= 4
    slot[25_000] ^= 1
    done = move(transports, chosen, content, landing=bytes(slot))
    sent, received = outcomes(done)
    assert done.slot == content
    assert sent.crcs == received.crcs
    assert sent.retried_chunks == received.retried_chunks == 2


def test_a_made_chunk_that_stays_wrong_is_never_good(transports: dict[str, Transport]) -> None:
    chosen = plan("tcp", made=MADE)
    bad = next(chunk for chunk in chosen.chunks(SIZE_BYTES) if chunk.fill)
    slot = bytearray(shadow(SIZE_BYTES, MADE))
    slot[bad.offset] ^= 1
    done = move(
        transports,
        chosen,
        written(os.urandom(SIZE_BYTES), MADE),
        [WireFault("FLIP", bad.index, 0, 0.0)],
        landing=bytes(slot),
    )
    assert isinstance(done.failure, DataLoss)
    assert done.failure.numbers["chunk"] == bad.index


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_cold_leaf_that_was_written_shows_in_the_sources_checksums(
    transports: dict[str, Transport], codec: str
) -> None:
    """The source's are of what lies there: they differ from the slot's in that chunk, and no receipts match."""
    chosen = plan("tcp", codec=codec, made=MADE)
    content = bytearray(written(os.urandom(SIZE_BYTES), MADE))
    content[21_000] ^= 16
    sent, received = outcomes(move(transports, chosen, bytes(content), landing=shadow(SIZE_BYTES, MADE)))
    chunks = chosen.chunks(SIZE_BYTES)
    (differs,) = [index for index, pair in enumerate(zip(sent.crcs, received.crcs, strict=True)) if len({*pair}) > 1]
    assert chunks[differs].offset <= 21_000 < chunks[differs].offset + chunks[differs].size_bytes
    assert sent.crcs[differs] == crc32(content[chunks[differs].offset :][: chunks[differs].size_bytes])


def test_everything_may_be_made(transports: dict[str, Transport]) -> None:
    made = (Made(0, SIZE_BYTES),)
    done = move(transports, plan("tcp", streams=2, made=made), bytes(SIZE_BYTES), landing=bytes(SIZE_BYTES))
    sent, received = outcomes(done)
    assert sent.crcs == received.crcs


def test_a_data_plane_is_told_of_it() -> None:
    told: Plan = replace(plan("tcp"), made=MADE)
    assert plan_from(plan_to(told)) == told

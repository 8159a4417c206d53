"""The pure half of `worldline inspect`: pieces, what was written, the coupon law, samples, messages."""

from __future__ import annotations

import json
import math
import random
from array import array
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.cli.main import main
from worldline.codec.planes import split
from worldline.crc import crc32
from worldline.errors import BadRequest, Mismatch
from worldline.instruments import compress, coupon, dirty, inspection
from worldline.instruments.leaf_class import class_name
from worldline.instruments.pieces import MAX_PIECES, Pieces, cut, default_piece_bytes
from worldline.instruments.snapshot import Boundary, Coded, Subject
from worldline.instruments.wire import found_from, found_to
from worldline.layout import Layout, Leaf, LeafKind, aligned
from worldline.v1 import engine_host_service_pb2 as pb


def layout_of(*sizes: int, dtype: str = "uint8") -> Layout:
    """One leaf for each size."""
    leaves, end = [], 0
    for number, size in enumerate(sizes):
        count = size // (2 if dtype == "bfloat16" else 1)
        leaves.append(Leaf(f"{number:03}", LeafKind.TENSOR, dtype, (count,), (), aligned(end), size, number))
        end = aligned(end) + size
    return Layout(tuple(leaves), max(64, aligned(end)))


def boundary(pieces: Pieces, region: bytes, block: int) -> Boundary:
    crcs = [crc32(region[c.offset : c.offset + c.size_bytes]) for c in pieces.chunks]
    return Boundary(block, array("I", crcs), 0.001)


# --- pieces


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    piece_bytes=st.integers(64, 1024),
    one_in=st.integers(1, 4),
)
def test_pieces_stand_for_every_byte_of_every_leaf_once(sizes: list[int], piece_bytes: int, one_in: int) -> None:
    layout = layout_of(*sizes)
    pieces = cut(layout, piece_bytes, one_in)
    assert sum(pieces.stands_for) == sum(sizes)
    for leaf, own in zip(layout.leaves, pieces.of_leaf, strict=True):
        chunks = [pieces.chunks[index] for index in own]
        assert sum(pieces.stands_for[index] for index in own) == leaf.size_bytes
        assert all(leaf.offset <= c.offset and c.offset + c.size_bytes <= leaf.offset + leaf.size_bytes for c in chunks)
        assert all(0 < chunk.size_bytes <= piece_bytes for chunk in chunks)
        assert bool(chunks) == bool(leaf.size_bytes)
        if chunks:
            assert chunks[0].offset == leaf.offset
    if one_in == 1:
        assert [chunk.size_bytes for chunk in pieces.chunks] == list(pieces.stands_for)
    offsets = [chunk.offset for chunk in pieces.chunks]
    assert offsets == sorted(set(offsets))


def test_leaves_that_share_memory_share_pieces() -> None:
    whole = Leaf("a", LeafKind.TENSOR, "uint8", (300,), (1,), 0, 300, 0)
    part = Leaf("b", LeafKind.TENSOR, "uint8", (100,), (1,), 50, 100, 0)
    pieces = cut(Layout((whole, part), 320), 64)
    assert sum(pieces.stands_for) == 300
    sizes = [(chunk.offset, chunk.size_bytes) for chunk in pieces.chunks]
    assert sizes == [(0, 50), (50, 64), (114, 36), (150, 64), (214, 64), (278, 22)]
    assert pieces.of_leaf == (range(6), range(1, 3))


def test_pieces_are_bounded() -> None:
    layout = layout_of(MAX_PIECES * 64 + 64)
    with pytest.raises(BadRequest, match=str(MAX_PIECES + 1)):
        cut(layout, 64)
    assert len(cut(layout, 64, one_in=1024).chunks) == MAX_PIECES // 1024 + 1
    for bad in (0, 63, 1 << 31):
        with pytest.raises(BadRequest, match="piece_bytes"):
            cut(layout, bad)
    with pytest.raises(BadRequest, match="one_in"):
        cut(layout, 64, one_in=0)
    assert default_piece_bytes(1_670_124_960) == 524_288
    assert default_piece_bytes(64) == 4096


# --- what was written


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=5),
    writes=st.lists(st.lists(st.integers(0, 9_999), max_size=5), min_size=1, max_size=5),
    piece_bytes=st.integers(64, 512),
)
def test_dirty_pieces_are_exactly_those_that_hold_a_changed_byte(
    sizes: list[int], writes: list[list[int]], piece_bytes: int
) -> None:
    layout = layout_of(*sizes)
    pieces = cut(layout, piece_bytes)
    region = bytearray(layout.region_bytes)
    boundaries, expected = [boundary(pieces, region, 0)], []
    for block, places in enumerate(writes, start=1):
        for place in {place % len(region) for place in places}:
            region[place] ^= 0xFF
        touched = {
            chunk.index
            for chunk in pieces.chunks
            for place in places
            if chunk.offset <= place % len(region) < chunk.offset + chunk.size_bytes
        }
        expected.append(touched)
        boundaries.append(boundary(pieces, region, block))
    found = dirty.compare(pieces, boundaries)
    assert [{*map(int, row.nonzero()[0])} for row in found.changed] == expected
    assert [step.dirty_bytes for step in found.steps] == [
        sum(pieces.stands_for[index] for index in touched) for touched in expected
    ]
    for index in range(len(layout.leaves)):
        own = {*pieces.of_leaf[index]}
        assert found.of_leaf(index) == [sum(pieces.stands_for[i] for i in own & touched) for touched in expected]
    windows = dict(found.windows())
    assert windows[len(writes)] == sum(pieces.stands_for[index] for index in set[int]().union(*expected))


def test_boundaries_that_do_not_fit_are_refused() -> None:
    pieces = cut(layout_of(100), 64)
    good = Boundary(1, array("I", [0] * len(pieces.chunks)), 0.0)
    with pytest.raises(Mismatch, match="3 checksums"):
        dirty.compare(pieces, [good, Boundary(2, array("I", [0] * 3), 0.0)])
    with pytest.raises(Mismatch, match="out of order"):
        dirty.compare(pieces, [good, Boundary(1, good.crcs, 0.0)])


# --- the law


@given(hot=st.floats(1e4, 1e9), share=st.floats(0.05, 1.5), blocks=st.integers(3, 12))
@settings(deadline=None, max_examples=30)
def test_the_law_is_found_again(hot: float, share: float, blocks: int) -> None:
    written = share * hot
    windows = [(count, coupon.law(hot, count * written)) for count in range(1, blocks + 1)]
    fit = coupon.fit(windows, round(1.2 * hot))
    assert fit.worst_error < 0.04  # the paper's own distance
    assert not fit.saturated or windows[0][1] >= 0.99 * windows[-1][1]


def test_random_writes_follow_the_law_within_four_per_cent() -> None:
    """Blocks that write pieces at random, as the law supposes."""
    dice = random.Random(1)
    pieces = cut(layout_of(64 * 2000), 64)
    crcs = array("I", [0] * 2000)
    boundaries = [Boundary(0, array("I", crcs), 0.0)]
    for block in range(1, 13):
        for _ in range(400):
            crcs[dice.randrange(1500)] += 1  # a quarter of the state is cold
        boundaries.append(Boundary(block, array("I", crcs), 0.0))
    fit = coupon.fit(dirty.compare(pieces, boundaries).windows(), 64 * 2000)
    assert fit.worst_error < 0.04
    assert fit.hot_bytes == pytest.approx(64 * 1500, rel=0.05)
    assert fit.written_bytes == pytest.approx(64 * 400, rel=0.05)


def test_a_window_rewrite_is_saturated_and_idleness_is_nothing() -> None:
    fit = coupon.fit([(1, 777.0), (2, 777.0), (3, 777.0)], 1000)
    assert fit.saturated
    assert fit.hot_bytes == pytest.approx(777, rel=1e-3)
    assert coupon.fit([(1, 0.0), (2, 0.0)], 1000) == coupon.Fit(0.0, 0.0, ((1, 0.0, 0.0), (2, 0.0, 0.0)), 0.0, False)


# --- what compresses


@given(sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=12), budget=st.integers(1 << 10, 1 << 17))
@settings(deadline=None)
def test_samples_are_bounded_and_within_their_leaf(sizes: list[int], budget: int) -> None:
    layout = layout_of(*sizes)
    places = compress.places(layout, budget)
    assert {place.leaf for place in places} == {index for index, size in enumerate(sizes) if size}
    for place in places:
        leaf = layout.leaves[place.leaf]
        assert leaf.offset <= place.offset
        assert place.offset + place.size_bytes <= leaf.offset + leaf.size_bytes
    assert sum(place.size_bytes for place in places) <= budget + 16 * len(sizes)


def test_planes_are_those_of_the_codec() -> None:
    dice = random.Random(2)
    noise = dice.randbytes(1 << 15)
    # The upper byte of each bf16 is one of two, the lower one is noise.
    data = bytes(noise[at] if at % 2 == 0 else 0x3F + (noise[at] & 1) for at in range(1 << 15))
    layout = layout_of(1 << 15, 1 << 15, dtype="bfloat16")
    samples = {
        place: (data if place.leaf == 0 else bytes(1 << 15))[place.offset - layout.leaves[place.leaf].offset :][
            : place.size_bytes
        ]
        for place in compress.places(layout)
    }
    noisy, zero = compress.code(layout, samples)
    low, high = split(memoryview(data), 2)
    coder = zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)
    assert noisy.planes == (low.nbytes, len(coder.compress(high.tobytes())))
    assert noisy.wire_bytes == sum(noisy.planes)
    assert zero.wire_bytes == 0
    assert zero.planes == (0, 0)


# --- the report and its messages


def test_numbers_in_paths_are_stars() -> None:
    assert class_name("layers/03/self/k") == "layers/*/self/k"
    assert class_name("layers/[3]/k2") == "layers/*/k2"
    assert class_name("12/v") == "*/v"
    assert class_name("l12/(0)") == "l12/*"


def report_of(writes: list[int], cold: frozenset[str] = frozenset({"002"})) -> inspection.Report:
    layout = layout_of(1000, 500, 300)
    pieces = cut(layout, 100)
    region = bytearray(layout.region_bytes)
    boundaries = [boundary(pieces, region, 4)]
    for block, place in enumerate(writes, start=5):
        region[place] ^= 1
        boundaries.append(boundary(pieces, region, block))
    subject = Subject("s", "e", "p", layout, 100, cold, 100, 0.5)
    return inspection.report(subject, pieces, boundaries, [Coded("000", 1000, 500, (500,))])


def test_a_report_says_what_was_written_and_what_is_cold() -> None:
    found = report_of([0, 0, 150])
    assert found.state_bytes == 1800
    assert found.dirty_bytes_per_block == 100
    assert found.leaves[0].dirty_share == pytest.approx(0.1)
    assert [leaf.written for leaf in found.leaves] == [True, False, False]
    assert found.written_cold == ()
    as_dict = json.loads(json.dumps(inspection.as_dict(found)))
    assert as_dict["cold"] == {"declared_bytes": 300, "written": [], "unwritten_undeclared": ["001"]}
    assert [step["first_block"] for step in as_dict["blocks"]] == [4, 5, 6]
    assert as_dict["wire_share"] is None  # not every leaf was sampled
    assert report_of([aligned(1000) + aligned(500)]).written_cold == ("002",)


@given(
    crcs=st.lists(st.integers(0, 2**32 - 1), max_size=20),
    still_s=st.floats(0, 10),
    planes=st.lists(st.integers(0, 2**40), max_size=4),
)
def test_messages_carry_everything(crcs: list[int], still_s: float, planes: list[int]) -> None:
    subject = Subject("s", "e", "p", layout_of(10, 20), 4096, frozenset({"a", "b"}), 7, 0.25)
    at = Boundary(9, array("I", crcs), still_s)
    coded = (Coded("000", 10, 5, tuple(planes)), Coded("001", 20, 0, ()))
    for found, wanted in ((subject, [subject]), (at, [at]), (coded, [*coded])):
        message = pb.InspectSessionResponse.FromString(found_to(found).SerializeToString())
        assert [*found_from(message)] == wanted
    with pytest.raises(BadRequest, match="without content"):
        list(found_from(pb.InspectSessionResponse()))


# --- the command, on a session of its own


def test_the_command_finds_the_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "i.svg"
    common = ["inspect", "--engine", "window-rewrite", "--blocks", "2"]
    assert main([*common, "--json", "--picture", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.7 < found["dirty_share"] < 0.79
    assert found["dirty_bytes_per_block"] <= found["declared_dirty_bytes_per_block"]
    assert found["coupon"]["saturated"]
    assert found["cold"]["declared_bytes"] > 200_000
    assert found["cold"]["written"] == []
    assert {leaf["wire_share"] for leaf in found["leaves"] if leaf["cold_bytes"]} == {0.0}
    assert math.isfinite(found["block_s"])
    assert b"dirty map" in picture.read_bytes() or b"<svg" in picture.read_bytes()
    assert main([*common, "--one-in", "3", "--piece-bytes", "512"]) == 0
    text = capsys.readouterr().out
    assert "layers/*/self/k" in text
    assert "one in 3" in text


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["inspect"],
        ["inspect", "s-1", "--engine", "window-rewrite"],
        ["inspect", "--engine", "no-such"],
        ["inspect", "--engine", "window-rewrite", "--preset", "no-such"],
        ["inspect", "--engine", "window-rewrite", "--picture", str(tmp_path / "no" / "x.png")],
    ):
        assert main(words) == 3
        assert "worldline: " in capsys.readouterr().err

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import wire
from worldline.errors import BadRequest
from worldline.layout import DTYPE_BYTES, MAX_LEAVES, Layout, Leaf, LeafKind, aligned, span_bytes
from worldline.v1 import state_pb2


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    leaves, at = [], 0
    for number in range(draw(st.integers(1, 12))):
        dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
        size = span_bytes(dtype, shape, ())
        leaves.append(Leaf(f"leaf/{number:03}", LeafKind.TENSOR, dtype, shape, (), at, size, number))
        at = aligned(at + size)
    return Layout(tuple(leaves), max(64, at))


@given(layouts())
def test_round_trip_over_the_wire(layout: Layout) -> None:
    back = wire.layout_from(state_pb2.Layout.FromString(wire.layout_to(layout).SerializeToString()))
    assert back.leaves == layout.leaves
    assert back.digest == layout.digest
    assert back.topology_hash == layout.topology_hash


@given(layouts(), st.data())
def test_a_layout_that_lies_is_refused_or_has_another_digest(layout: Layout, data: st.DataObject) -> None:
    """Whatever one field is changed to, the message is refused: by its digest if by nothing else."""
    message = wire.layout_to(layout)
    leaf = message.leaves[data.draw(st.integers(0, len(message.leaves) - 1))]
    field = data.draw(st.sampled_from(["path", "dtype", "offset", "size_bytes", "group", "kind"]))
    new = data.draw(st.text(max_size=8) if field in ("path", "dtype") else st.integers(0, 2**31 - 1))
    if getattr(leaf, field) == new:
        return
    setattr(leaf, field, new)
    with pytest.raises(BadRequest):
        wire.layout_from(message)


def leaf(path: str = "a", **values: object) -> Leaf:
    base = Leaf(path, LeafKind.TENSOR, "uint8", (64,), (), 0, 64, 0)
    return replace(base, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("leaves", "region", "names"),
    [
        ([], 64, "layout.leaves"),
        ([leaf(), leaf("b", group=1, offset=32)], 128, "layout.leaves"),  # overlap
        ([leaf(), leaf("b", group=1, offset=256)], 320, "layout.leaves"),  # gap
        ([leaf(), leaf(offset=64, group=1)], 128, "layout.leaves[1].path"),  # same path
        ([leaf("b"), leaf("a", offset=64, group=1)], 128, "layout.leaves[1].path"),  # order
        ([leaf(size_bytes=63)], 64, "layout.leaves[0].size_bytes"),
        ([leaf(offset=64)], 64, "layout.leaves[0].size_bytes"),
        ([leaf(size_bytes=2**63)], 64, "layout.leaves[0].size_bytes"),
        ([leaf(shape=(2**63,))], 64, "layout.leaves[0].shape"),
        ([leaf(shape=(2**40, 2**40))], 64, "layout.leaves[0].size_bytes"),
        ([leaf(dtype="quint8")], 64, "layout.leaves[0].dtype"),
        ([leaf(path="x/" * 40 + "y")], 64, "layout.leaves[0].path"),
        ([leaf(path="x" * 600)], 64, "layout.leaves[0].path"),
        ([leaf(shape=(1,) * 40)], 64, "layout.leaves[0].shape"),
        ([leaf(kind=LeafKind.SCALAR, dtype="py.object", shape=())], 64, "layout.leaves[0].dtype"),
        ([leaf(kind=LeafKind.GENERATOR, dtype="uint8", shape=())], 64, "layout.leaves[0].dtype"),
        ([leaf(dtype="int32", shape=(16,), offset=2, size_bytes=62)], 64, "layout.leaves[0].offset"),
        ([leaf()], 63, "layout.region_bytes"),
        ([leaf()], 2**63, "layout.region_bytes"),
        ([leaf()], 4096, "layout.region_bytes"),  # a region larger than its leaves
    ],
)
def test_refused_by_name(leaves: list[Leaf], region: int, names: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Layout(tuple(leaves), region)
    assert caught.value.reason == "BAD_LAYOUT"
    assert names in caught.value.violations


def test_a_million_leaves_are_refused_before_they_are_read() -> None:
    message = state_pb2.Layout(region_bytes=64)
    for _ in range(MAX_LEAVES + 1):
        message.leaves.add()
    with pytest.raises(BadRequest, match="leaves"):
        wire.layout_from(message)


def test_leaves_that_share_memory_may_overlap_inside_their_group() -> None:
    whole = leaf("a", shape=(8, 8), stride=(8, 1))
    column = leaf("b", shape=(8,), stride=(8,), size_bytes=57)
    layout = Layout((whole, column), 64)
    assert layout.payload_bytes == 64

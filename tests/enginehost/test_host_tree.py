"""State trees to regions and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost import tree
from enginehost.arena import Arena, Budget
from enginehost.slots import Slot
from worldline.engine import StateTree
from worldline.errors import BadRequest, Mismatch, Unmovable
from worldline.layout import DTYPE_BYTES, Layout, Leaf, LeafKind

DTYPES = [name for name in DTYPE_BYTES if hasattr(torch, name)]


def raw(dtype: str, count: int, fill: int) -> torch.Tensor:
    """`count` elements of arbitrary bits."""
    size = DTYPE_BYTES[dtype] * count
    values = (torch.arange(size, dtype=torch.int64) * 37 + fill) % (2 if dtype == "bool" else 256)
    return values.to(torch.uint8).view(getattr(torch, dtype))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(torch.tensor(shape, dtype=torch.int64).prod())
    value = raw(dtype, count, draw(st.integers(0, 255))).view(shape)
    form = draw(st.sampled_from(["plain", "transposed", "expanded", "strided"]))
    if form == "transposed" and len(shape) > 1:
        return value.transpose(0, -1)
    if form == "expanded":
        return value.unsqueeze(0).expand(3, *shape)
    if form == "strided" and shape and shape[0] > 1:
        return value[::2]
    return value


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text))
    | st.binary(max_size=5)
)
keys = st.text(st.characters(codec="utf-8", exclude_characters="/[]{}()"), min_size=1, max_size=4)
trees = st.recursive(
    scalars | tensors(),
    lambda below: (
        st.lists(below, max_size=3) | st.lists(below, max_size=3).map(tuple) | st.dictionaries(keys, below, max_size=3)
    ),
    max_leaves=12,
)


def value_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not plain.numel():
        return b""
    size = plain.element_size()
    if size == 16:
        plain, size = torch.view_as_real(plain), 8
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.view(integers[size]).contiguous().numpy().tobytes()


def assert_same(left: object, right: object) -> None:
    if isinstance(left, dict):
        assert isinstance(right, dict)
        assert set(left) == set(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert type(left) is type(right)
        assert len(left) == len(right)  # type: ignore[arg-type]
        for one, other in zip(left, right, strict=True):  # type: ignore[call-overload]
            assert_same(one, other)
    elif isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert value_bytes(left) == value_bytes(right)
    elif isinstance(left, torch.Generator):
        assert isinstance(right, torch.Generator)
        assert torch.equal(left.get_state(), right.get_state())
    else:
        assert (type(left), left) == (type(right), right)


def moved(state: StateTree, budget: Budget) -> tuple[StateTree, Slot, Slot]:
    """The tree after it went through two slots, byte by byte."""
    captured = tree.capture(state)
    first = Slot(
        captured.layout, Arena("a", captured.layout.region_bytes, budget.reserve(captured.layout.region_bytes, "test"))
    )
    first.flatten(captured)
    second = Slot(
        captured.layout, Arena("b", captured.layout.region_bytes, budget.reserve(captured.layout.region_bytes, "test"))
    )
    second.arena.map[:] = first.arena.map[:]
    return second.rehydrate(), first, second


@settings(max_examples=40, deadline=None)
@given(trees, st.booleans())
def test_a_random_tree_comes_back_and_lives_in_its_slot(state: StateTree, share: bool) -> None:
    base = raw("int32", 64, 3)
    state = {"state": state, "generator": torch.Generator().manual_seed(5)}
    if share:
        state["shared"] = [base, base[8:24], base.view(8, 8).t(), base[40:].view(torch.int16), base]
    budget = Budget(1 << 24)
    back, first, second = moved(state, budget)
    assert_same(state, back)
    again = tree.capture(back)
    assert again.layout == second.layout
    tree.require_same(second.layout, again.layout)
    before = bytes(second.arena.map)
    flattened = second.flatten(again)
    assert bytes(second.arena.map) == before
    outside = sum(leaf.size_bytes for leaf in again.layout.leaves if leaf.kind is not LeafKind.TENSOR)
    assert flattened.copied_bytes == outside
    if share:
        back["shared"][0][10] = 99  # type: ignore[index, call-overload]
        assert back["shared"][1][2] == 99  # type: ignore[index, call-overload]
        assert back["shared"][4][10] == 99  # type: ignore[index, call-overload]
    del back, again
    first.close()
    second.close()
    assert budget.free_bytes == 1 << 24


def test_views_of_one_arena_share_a_storage_but_no_memory() -> None:
    arena = raw("float32", 64, 0)
    layout = tree.capture({"a": arena[:16], "b": arena[16:32], "c": arena[31:40]}).layout
    groups = {leaf.path: leaf.group for leaf in layout.leaves}
    assert groups["a"] != groups["b"] == groups["c"]


def test_a_group_keeps_the_alignment_of_its_memory() -> None:
    base = raw("uint8", 256, 0)
    shift = 4 + (-base.data_ptr()) % 64
    layout = tree.capture({"a": base[shift : shift + 8], "b": base[shift + 4 : shift + 16].view(torch.int32)}).layout
    assert [leaf.offset % 64 for leaf in layout.leaves] == [4, 8]


def test_450_leaves_have_450_rows() -> None:
    state = {f"layer{n:02}": {f"k{m:02}": torch.empty(256) for m in range(15)} for n in range(30)}
    assert len(tree.capture(state).layout.leaves) == 450


UNMOVABLE = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested"),
    "subclass": (lambda: torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})), "subclass"),
    "wide int": (lambda: 1 << 63, "64 bit"),
    "object": (lambda: object(), "object"),
    "surrogate": (lambda: "\ud800", "UTF-8"),
    "int subclass": (lambda: LeafKind.TENSOR, "LeafKind"),
}


@pytest.mark.filterwarnings("ignore")
def test_unmovable_leaves_are_all_refused_by_path_and_reason() -> None:
    state: dict[str, object] = {name: make() for name, (make, _) in UNMOVABLE.items()}
    fake = torch._subclasses.fake_tensor.FakeTensorMode()
    with fake:
        state["fake"] = torch.empty(3)
    shrunk = torch.ones(8)
    shrunk.untyped_storage().resize_(0)
    state["shrunk"] = shrunk
    state["fine"] = torch.ones(2)
    with pytest.raises(Unmovable) as caught:
        tree.capture(state)  # type: ignore[arg-type]
    assert set(caught.value.violations) == set(state) - {"fine"}
    for name, (_, why) in UNMOVABLE.items():
        assert why in caught.value.violations[name]


@pytest.mark.parametrize("key", ["", "a/b", "[0]", "(3)", "[]", "{}", 7, "\ud800"])
def test_keys_that_no_path_can_name_are_refused(key: object) -> None:
    with pytest.raises(Unmovable):
        tree.capture({key: 1, "fine": 2})  # type: ignore[dict-item]


def test_deep_wide_cyclic_and_bare_trees_are_refused() -> None:
    deep: StateTree = 1
    for _ in range(40):
        deep = [deep]
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for state in (deep, cyclic, list(range(70_000)), 5, torch.ones(2), {"long": {"x" * 600: 1}}):
        with pytest.raises(Unmovable):
            tree.capture(state)  # type: ignore[arg-type]
    noise = torch.Generator()
    with pytest.raises(Unmovable, match="same generator"):
        tree.capture({"a": noise, "b": noise})


def test_shared_memory_with_lazy_conjugates_is_refused() -> None:
    value = torch.ones(4, dtype=torch.complex64)
    with pytest.raises(Unmovable, match="conjugated"):
        tree.capture({"a": value, "b": value.conj()})
    assert_same({"b": value.conj()}, moved({"b": value.conj()}, Budget(1 << 20))[0])


DRIFTS = {
    "dtype": {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(4), "s": "xy"},
    "shape": {"a": torch.zeros(2, 2), "b": torch.ones(4), "s": "xy"},
    "size_bytes": {"a": torch.zeros(4), "b": torch.ones(4), "s": "longer"},
    "gone": {"a": torch.zeros(4), "b": torch.ones(4)},
    "new": {"a": torch.zeros(4), "b": torch.ones(4), "s": "xy", "t": 1},
}


@pytest.mark.parametrize("what", DRIFTS)
def test_drift_is_named(what: str) -> None:
    registered = tree.capture({"a": torch.zeros(4), "b": torch.ones(4), "s": "xy"}).layout
    with pytest.raises(Mismatch, match=what) as caught:
        tree.require_same(registered, tree.capture(DRIFTS[what]).layout)
    assert caught.value.reason == "LAYOUT_DRIFT"


def test_new_sharing_is_drift() -> None:
    registered = tree.capture({"a": torch.zeros(4), "b": torch.ones(4)}).layout
    same = torch.zeros(4)
    with pytest.raises(Mismatch, match="sharing"):
        tree.require_same(registered, tree.capture({"a": same, "b": same}).layout)


def leaf(path: str, dtype: str = "py.none", size: int = 0, offset: int = 0, group: int = 0) -> Leaf:
    kind = LeafKind.GENERATOR if dtype.startswith("generator") else LeafKind.SCALAR
    return Leaf(path, kind, dtype, (), (), offset, size, group)


@pytest.mark.parametrize(
    "paths",
    [["a", "a/b"], ["a/"], ["/a"], ["x/[0]", "x/[2]"], ["x/[0]", "x/k"], ["x/(0)", "x/[1]"], ["x/[]", "x/k"]],
)
def test_paths_that_make_no_tree_are_refused(paths: list[str]) -> None:
    layout = Layout(tuple(leaf(path, group=index) for index, path in enumerate(sorted(paths))), 64)
    with pytest.raises(BadRequest):
        tree.skeleton(layout)


@pytest.mark.parametrize(
    "bad",
    [leaf("b", "py.bool", 1), leaf("s", "py.str", 2), leaf("g", "generator.cpu", 7), leaf("g", "generator.cuda", 7)],
)
def test_bytes_that_are_no_value_are_refused(bad: Leaf) -> None:
    base = torch.full((64,), 0xFF, dtype=torch.uint8)
    with pytest.raises(BadRequest):
        tree.rehydrate(Layout((bad,), 64), base)

"""What the first engine's blocks read and write, and what it refuses."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehost.engines.window_geometry import GEOMETRIES, WINDOW_NAMES
from enginehost.engines.window_rewrite import WindowRewriteEngine, WindowRewriteSession
from worldline.engine import Readout, StateTree, installed
from worldline.errors import BadRequest, Mismatch, NotFound, WrongState
from worldline.layout import aligned
from worldline.testing.engines import play
from worldline.testing.trees import copied, describe, differing_bytes, leaves, region_bytes

ENGINE = WindowRewriteEngine()
TINY = GEOMETRIES["tiny"]
FRESH = ENGINE.create("tiny", 11)
QUANTA = 4


def action(keys: int = 0, right: int = 0, down: int = 0) -> bytes:
    return struct.pack("<Ihh", keys, right, down)


def tensor(tree: StateTree, path: str) -> torch.Tensor:
    leaf = leaves(tree)[path]
    assert isinstance(leaf, torch.Tensor)
    return leaf


def session_of(tree: StateTree, preset: str = "tiny") -> WindowRewriteSession:
    return ENGINE.load(preset, copied(tree))


def changed(tree: StateTree, path: str, leaf: StateTree = None, *, drop: bool = False) -> StateTree:
    """A copy with one leaf replaced or dropped."""
    node = whole = copied(tree)
    *parents, name = path.split("/")
    for parent in parents:
        assert isinstance(node, dict)
        node = node[parent]
    assert isinstance(node, dict)
    if drop:
        del node[name]
    else:
        node[name] = leaf
    return whole


@cache
def warm() -> StateTree:
    """A state after two blocks. Tests copy it."""
    session = session_of(FRESH)
    for keys in (1, 6):
        play(session, QUANTA, action(keys, 500, -90))
    return session.state_tree()


@cache
def shown_next() -> Readout:
    """What `action(3)` shows after `warm()`."""
    return play(session_of(warm()), QUANTA, action(3))


# Sizes


def test_is_installed() -> None:
    assert isinstance(installed()["window-rewrite"], WindowRewriteEngine)


def test_mg2_counts() -> None:
    geometry = GEOMETRIES["mg2"]
    sizes = [spec.size_bytes for spec in geometry.tensors()]
    assert (len(sizes), sum(sizes)) == (420, 1_670_124_960)
    assert len(sizes) + len(geometry.control_bytes()) == 450


@pytest.mark.parametrize("preset", GEOMETRIES)
def test_fractions_are_those_of_the_measured_model(preset: str) -> None:
    geometry = GEOMETRIES[preset]
    total = sum(spec.size_bytes for spec in geometry.tensors())
    assert 0.71 <= geometry.dirty_bytes() / total <= 0.78
    assert sum(spec.size_bytes for spec in geometry.cold_tensors()) / total >= 0.194


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_tree_is_what_the_geometry_says(preset: str) -> None:
    geometry, tree = GEOMETRIES[preset], ENGINE.create(preset, 1)
    expected = {
        spec.path: f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}" for spec in geometry.tensors()
    }
    found = {path: describe(leaf) for path, leaf in leaves(tree).items() if isinstance(leaf, torch.Tensor)}
    assert found == expected
    assert leaves(tree).keys() - found.keys() == geometry.control_bytes().keys()
    assert len(geometry.control_bytes()) == geometry.layers
    assert region_bytes(tree) == ENGINE.presets()[preset].state_bytes


def test_declared_dirty_bytes_are_those_written() -> None:
    session = session_of(warm())
    play(session, QUANTA, action())
    changed = differing_bytes(warm(), session.state_tree())
    read_only = {path for path in leaves(warm()) if "/cross/" in path or path.endswith("/local_end")}
    assert changed.keys() == leaves(warm()).keys() - set(session.cold_paths()) - read_only
    # Of the bytes that are rewritten some happen to stay: the high byte of a bf16 has few values.
    assert 0.8 * session.dirty_bytes_per_block() <= sum(changed.values()) <= session.dirty_bytes_per_block()


# What a block reads

WINDOWS = [(layer, name) for layer in range(TINY.layers) for name in WINDOW_NAMES if not TINY.is_cold(layer, name)]
places = st.tuples(st.sampled_from(WINDOWS), st.sampled_from("kv"), st.integers(0, 1 << 30))


def flipped(place: tuple[tuple[int, str], str, int], half: int, bit: int) -> StateTree:
    """warm() with one bit flipped, in the older (0) or the newer (1) half of one window."""
    (layer, name), part, seed = place
    tree = copied(warm())
    cache = tensor(tree, f"layers/{layer:02d}/{name}/{part}")
    size = cache.shape[1] // 2
    chosen = cache[:, half * size : half * size + size]
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(seed % chosen.numel()), chosen.shape))
    bits = chosen.view(torch.int16)
    bits[index] = bits[index] ^ torch.tensor(1 << bit if bit < 15 else -(1 << 15), dtype=torch.int16)
    return tree


@settings(max_examples=40, deadline=None)
@given(place=places, bit=st.integers(7, 15))
def test_exponent_and_sign_flips_in_the_read_half_show_in_the_next_block(
    place: tuple[tuple[int, str], str, int], bit: int
) -> None:
    tree = flipped(place, 1, bit)
    assert play(session_of(tree), QUANTA, action(3)).data != shown_next().data


@settings(max_examples=25, deadline=None)
@given(place=places, bit=st.integers(0, 15))
def test_flips_in_the_overwritten_half_are_erased(place: tuple[tuple[int, str], str, int], bit: int) -> None:
    session, control = session_of(flipped(place, 0, bit)), session_of(warm())
    assert play(session, QUANTA, action(3)) == shown_next() == play(control, QUANTA, action(3))
    assert not differing_bytes(session.state_tree(), control.state_tree())


@settings(max_examples=25, deadline=None)
@given(path=st.sampled_from([s.path for s in TINY.cold_tensors()]), seed=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_flips_in_the_cold_part_do_not_show(path: str, seed: int, bit: int) -> None:
    tree = copied(warm())
    raw = tensor(tree, path).view(torch.uint8).view(-1)
    raw[seed % raw.numel()] ^= 1 << bit
    assert play(session_of(tree), QUANTA, action(3)) == shown_next()


@pytest.mark.parametrize("path", [f"layers/{n:02d}/cross/{part}" for n in range(TINY.layers) for part in "kv"])
def test_flips_in_the_conditioning_show(path: str) -> None:
    for element in (0, 700, -1):
        tree = copied(warm())
        tensor(tree, path).view(torch.int16).view(-1)[element] ^= 1 << 7
        assert play(session_of(tree), QUANTA, action(3)).data != shown_next().data


@pytest.mark.parametrize(("layer", "name"), WINDOWS)
def test_window_positions_matter(layer: int, name: str) -> None:
    tree = copied(warm())
    tensor(tree, f"layers/{layer:02d}/{name}/global_end").add_(TINY.cache_shape(name)[1] // 2)
    assert play(session_of(tree), QUANTA, action(3)).data != shown_next().data


@pytest.mark.parametrize("layer", TINY.gained_layers)
def test_gains_matter(layer: int) -> None:
    gain = leaves(warm())[TINY.gain_path(layer)]
    assert isinstance(gain, float)
    tree = changed(warm(), TINY.gain_path(layer), gain + 2**-20)
    assert play(session_of(tree), QUANTA, action(3)).data != shown_next().data


def test_every_action_counts_and_none_stops_the_world() -> None:
    shown = {
        play(session_of(warm()), QUANTA, taken).data
        for taken in (action(), action(1), action(1 << 31), action(0, 1), action(0, -1), action(0, 0, 1))
    }
    assert len(shown) == 6
    session = session_of(warm())
    assert play(session, QUANTA, action()) != play(session, QUANTA, action())


# Where it lies, and beside whom


def test_lives_in_a_shared_memory_region() -> None:
    """As on an engine host: every tensor a view of one memfd, each aligned to 64 bytes, for any number of blocks."""
    size = ENGINE.presets()["tiny"].state_bytes
    fd = os.memfd_create("test-window-rewrite")
    try:
        os.ftruncate(fd, size)
        region = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
    finally:
        os.close(fd)
    tree, end = copied(warm()), 0
    placed: dict[int, torch.Tensor] = {}
    for leaf in leaves(tree).values():
        if isinstance(leaf, torch.Tensor):
            size = leaf.numel() * leaf.element_size()
            placed[id(leaf)] = region[end : end + size].view(leaf.dtype).view(leaf.shape).copy_(leaf)
            end = aligned(end + size)

    def moved(node: StateTree) -> StateTree:
        if isinstance(node, dict):
            return {name: moved(child) for name, child in node.items()}
        return placed.get(id(node), node)

    session, control = ENGINE.load("tiny", moved(tree)), session_of(warm())
    addresses = {value.data_ptr() for value in placed.values()}
    for keys in range(4):
        assert play(session, QUANTA, action(keys)) == play(control, QUANTA, action(keys))
    found = leaves(session.state_tree()).values()
    assert {leaf.data_ptr() for leaf in found if isinstance(leaf, torch.Tensor)} == addresses
    assert not differing_bytes(session.state_tree(), control.state_tree())


def test_engines_and_threads_play_alike() -> None:
    def played(_: int) -> Readout:
        engine = WindowRewriteEngine()
        session = engine.load("tiny", copied(warm()))
        return play(session, QUANTA, action(3))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(played, range(8))) == {shown_next()}


def test_one_engine_in_many_threads_draws_its_weights_once() -> None:
    engine = WindowRewriteEngine()
    with ThreadPoolExecutor(4) as pool:
        assert len({fields["weights"] for fields in pool.map(engine.fingerprint, ["tiny"] * 8)}) == 1


def test_weights_are_those_of_this_version() -> None:
    """Other weights need another `version`: a host would take the old state for its own."""
    assert WindowRewriteEngine.version == "1"
    assert ENGINE.fingerprint("tiny")["weights"].startswith("e4c4bf8967f56e50")


# What it refuses


def test_unknown_preset() -> None:
    with pytest.raises(NotFound, match="mg2, small, tiny"):
        ENGINE.create("huge", 1)


@pytest.mark.parametrize("seed", [1 << 64, -(1 << 63) - 1])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(BadRequest, match="64 bits"):
        ENGINE.create("tiny", seed)


def test_extreme_seeds_are_taken() -> None:
    for seed in (0, (1 << 64) - 1, -(1 << 63)):
        assert ENGINE.create("tiny", seed)


def test_calls_out_of_order() -> None:
    with pytest.raises(WrongState, match="no block has been played"):
        session_of(FRESH).readout()
    session = session_of(warm())
    closed: list[Callable[[], object]] = [partial(session.step, 0), session.end_block]
    for call in closed:
        with pytest.raises(WrongState, match="at a block boundary"):
            call()
    session.begin_block(action(3))
    session.step(0)
    opened: list[Callable[[], object]] = [
        partial(session.begin_block, action()),
        partial(session.step, 2),
        session.end_block,
        session.readout,
        session.state_tree,
    ]
    for call in opened:
        with pytest.raises(WrongState, match="before quantum 1"):
            call()
    for quantum in (1, 2, 3):
        session.step(quantum)
    session.end_block()
    assert session.readout() == shown_next()


K = "layers/00/self/k"
WRONG: list[tuple[StateTree, str]] = [
    (changed(FRESH, K, drop=True), f"{K}: missing"),
    (changed(FRESH, "layers/00/self/q", 1), "layers/00/self/q: not a leaf"),
    (changed(FRESH, K, 1.0), f"{K}: a float, not a tensor"),
    (changed(FRESH, K, tensor(FRESH, K).float()), f"{K}: torch.float32"),
    (changed(FRESH, K, tensor(FRESH, K)[:, 1:]), f"{K}: torch.bfloat16"),
    (changed(FRESH, K, tensor(FRESH, K).transpose(2, 3).contiguous().transpose(2, 3)), "not contiguous"),
    (changed(FRESH, "control/block", True), "control/block: a bool, not a int"),
    (changed(FRESH, "control/gain/01", 1), "control/gain/01: a int, not a float"),
    (changed(FRESH, "control/noise", 5), "control/noise: a int, not a Generator"),
    (changed(FRESH, "control/noise", [1]), "control/noise: a sequence"),
    (5, "the tree: a int, not a mapping"),
]


@pytest.mark.parametrize(("tree", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_other_trees_are_refused(tree: StateTree, complaint: str) -> None:
    with pytest.raises(Mismatch, match=complaint):
        ENGINE.load("tiny", tree)


# The full size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mg2_plays_a_block() -> None:
    tree = ENGINE.create("mg2", 5)
    found = leaves(tree)
    tensors = [leaf for leaf in found.values() if isinstance(leaf, torch.Tensor)]
    assert (len(found), len(tensors)) == (450, 420)
    assert sum(leaf.numel() * leaf.element_size() for leaf in tensors) == 1_670_124_960
    assert region_bytes(tree) == ENGINE.presets()["mg2"].state_bytes
    addresses = {leaf.data_ptr() for leaf in tensors}
    elsewhere = ENGINE.load("mg2", copied(tree, together=True, misaligned=True))
    session = ENGINE.load("mg2", tree)
    shown = play(session, QUANTA, action(9, 400, -3))
    assert (shown.frames, shown.height, shown.width, shown.channels) == (12, 176, 320, 3)
    assert len(set(shown.data)) == 256
    assert play(elsewhere, QUANTA, action(9, 400, -3)) == shown
    assert not differing_bytes(session.state_tree(), elsewhere.state_tree())
    after = leaves(session.state_tree())
    assert {leaf.data_ptr() for leaf in after.values() if isinstance(leaf, torch.Tensor)} == addresses
    assert sum(tensor(tree, path).count_nonzero().item() for path in session.cold_paths()) == 0

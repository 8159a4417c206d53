"""The conformance suite of engines: subclass `EngineConformance` in a test module, and pytest runs it on your engine.

```python
from worldline.testing.engines import EngineConformance

class TestMyEngine(EngineConformance):
    preset = "tiny"

    @classmethod
    def make_engine(cls) -> Engine:
        return MyEngine()
```

It needs torch and an engine that runs here, and nothing else: no service, no socket. Choose a small preset: each test
makes sessions of its own and plays a few blocks.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import ClassVar

import torch

from worldline.engine import Engine, EngineSession, Preset, Readout, StateLeaf, StateTree, preset_of
from worldline.errors import BadRequest
from worldline.layout import MAX_REGION_BYTES
from worldline.manifest import Fingerprint
from worldline.testing.trees import copied, describe, differing_bytes, leaves, raw, region_bytes


def play(session: EngineSession, quanta: int, action: bytes) -> Readout:
    """One block, and what it shows."""
    session.begin_block(action)
    for quantum in range(quanta):
        session.step(quantum)
    session.end_block()
    return session.readout()


class EngineConformance:
    """What Worldline relies on in an engine. Class attributes and the two class methods say what is tested, and how."""

    preset: ClassVar[str]
    seed: ClassVar[int] = 7
    warm_up_blocks: ClassVar[int] = 2
    """Blocks after which the engine is in its steady state."""
    flipped_leaves: ClassVar[int] = 16
    flips_per_leaf: ClassVar[int] = 8
    """How many leaves have a bit flipped, and in how many places of each until a frame changes."""
    replaced_paths: ClassVar[frozenset[str]] = frozenset()
    """Tensors that the engine replaces instead of writing them in place: each costs a copy in every freeze."""

    _engines: ClassVar[dict[type, Engine]] = {}

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test, as its entry point makes it."""
        raise NotImplementedError("override make_engine")

    @classmethod
    def make_action(cls, block: int) -> bytes:
        """A valid action for block `block`; by default bytes that differ from block to block."""
        size = preset_of(cls.engine(), cls.preset).action_bytes or 8
        return hashlib.shake_256(str(block).encode()).digest(size)

    @classmethod
    def engine(cls) -> Engine:
        """The engine under test, made once."""
        if cls not in cls._engines:
            cls._engines[cls] = cls.make_engine()
        return cls._engines[cls]

    @classmethod
    def offered(cls) -> Preset:
        """The preset under test."""
        return preset_of(cls.engine(), cls.preset)

    @classmethod
    def new_session(cls, seed: int | None = None) -> EngineSession:
        """A session before its first block."""
        engine = cls.engine()
        return engine.load(cls.preset, engine.create(cls.preset, cls.seed if seed is None else seed))

    @classmethod
    def play_block(cls, session: EngineSession, block: int) -> Readout:
        """Block `block` with its action."""
        return play(session, cls.offered().quanta_per_block, cls.make_action(block))

    @classmethod
    def warm(cls) -> tuple[EngineSession, StateTree]:
        """A session in its steady state, and a copy of its state there."""
        session = cls.new_session()
        for block in range(cls.warm_up_blocks):
            cls.play_block(session, block)
        return session, copied(session.state_tree())

    # What it offers

    def test_presets_and_fingerprint_are_sound(self) -> None:
        engine = self.engine()
        assert isinstance(engine, Engine), "not an Engine: a method or attribute is missing"
        assert engine.name, "it has no name"
        assert engine.version, "it has no version"
        for name, preset in engine.presets().items():
            assert preset.name == name, f"preset {name!r} calls itself {preset.name!r}"
            assert 0 < preset.state_bytes <= MAX_REGION_BYTES, f"{name}: {preset.state_bytes} state bytes"
            assert preset.action_bytes >= 0, f"{name}: {preset.action_bytes} bytes an action"
            assert preset.quanta_per_block >= 1, f"{name}: {preset.quanta_per_block} quanta a block"
        fields = Fingerprint(engine.fingerprint(self.preset)).fields
        assert fields.get("weights"), 'the fingerprint has no "weights"'
        assert fields == self.make_engine().fingerprint(self.preset), "two of this engine have other fingerprints"

    # The tree

    def test_create_is_deterministic(self) -> None:
        engine = self.engine()
        tree = engine.create(self.preset, self.seed)
        again = differing_bytes(tree, engine.create(self.preset, self.seed))
        assert not again, f"the same seed gave another state in {_some(again)}"
        assert differing_bytes(tree, engine.create(self.preset, self.seed + 1)), "another seed gave the same state"

    def test_tree_is_within_its_bounds_and_keeps_its_shape(self) -> None:
        session = self.new_session()
        first = {path: describe(leaf) for path, leaf in leaves(session.state_tree()).items()}
        for block in range(self.warm_up_blocks + 1):
            readout = self.play_block(session, block)
            tree = session.state_tree()
            now = {path: describe(leaf) for path, leaf in leaves(tree).items()}
            changed = {path for path in first.keys() | now.keys() if first.get(path) != now.get(path)}
            assert not changed, f"block {block} changed the shape of {_some(changed)}"
            size = region_bytes(tree)
            bound = self.offered().state_bytes
            assert size <= bound, f"a state of {size} bytes; the preset bounds them by {bound}"
            shown = readout.frames * readout.height * readout.width * readout.channels
            assert len(readout.data) == shown > 0, f"a readout of {len(readout.data)} bytes whose shape makes {shown}"

    def test_tree_holds_everything(self) -> None:
        """A copy of the tree, loaded, shows the last frames again and goes on bit for bit."""
        session, tree = self.warm()
        shown = session.readout()
        copy = self.engine().load(self.preset, tree)
        assert copy.readout() == shown, "the readout is not a function of the state tree"
        self._require_alike(session, copy)

    def test_where_the_state_lies_does_not_matter(self) -> None:
        """One arena and other alignments give the same bits: after a move the state is at other addresses."""
        _, tree = self.warm()
        for together, misaligned in ((True, False), (False, True), (True, True)):
            placed = copied(tree, together=together, misaligned=misaligned)
            straight = self.engine().load(self.preset, copied(tree))
            self._require_alike(straight, self.engine().load(self.preset, placed))

    def test_tensors_stay_where_they_were_loaded(self) -> None:
        engine = self.engine()
        tree = copied(engine.create(self.preset, self.seed), together=True)
        before = _addresses(tree)
        session = engine.load(self.preset, tree)
        for block in range(self.warm_up_blocks + 1):
            self.play_block(session, block)
        after = _addresses(session.state_tree())
        moved = {path for path, address in before.items() if after[path] != address} - self.replaced_paths
        assert not moved, f"not written in place (list them in `replaced_paths` if they cannot be): {_some(moved)}"

    # The blocks

    def test_sessions_of_one_engine_do_not_touch_each_other(self) -> None:
        one, other, alone = self.new_session(), self.new_session(self.seed + 1), self.new_session()
        for block in range(self.warm_up_blocks):
            shown = self.play_block(one, block)
            self.play_block(other, block)
            assert shown == self.play_block(alone, block), f"block {block} depends on what else the engine plays"

    def test_another_process_plays_the_same(self) -> None:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            theirs = pool.submit(_played_digests, type(self), torch.get_num_threads())
            assert theirs.result(timeout=300) == _played_digests(type(self), torch.get_num_threads())

    def test_global_generators_are_left_alone(self) -> None:
        state, python = torch.get_rng_state(), random.getstate()
        try:
            session, _ = self.warm()
            assert torch.equal(torch.get_rng_state(), state), "it draws from torch's global generator"
            assert random.getstate() == python, "it draws from Python's global generator"
            torch.manual_seed(self.seed + 1)
            again, _ = self.warm()
            assert again.readout() == session.readout(), "frames depend on torch's global seed"
        finally:
            torch.set_rng_state(state)

    def test_bad_action_changes_nothing(self) -> None:
        size = self.offered().action_bytes
        session, tree = self.warm()
        for action in (b"", bytes(size + 1), bytes(max(size - 1, 0)), bytes(1 << 16)) if size else ():
            if len(action) == size:
                continue
            try:
                session.begin_block(action)
            except BadRequest:
                changed = differing_bytes(tree, session.state_tree())
                assert not changed, f"a refused action of {len(action)} bytes changed {_some(changed)}"
            else:
                raise AssertionError(f"an action of {len(action)} bytes was taken; the preset says {size}")
        self._require_alike(self.engine().load(self.preset, tree), session)

    def test_readout_changes_nothing(self) -> None:
        session, tree = self.warm()
        assert session.readout() == session.readout(), "the same readout differs when asked twice"
        changed = differing_bytes(tree, session.state_tree())
        assert not changed, f"a readout changed {_some(changed)}"

    # What a block reads and writes

    def test_dirty_bytes_are_not_understated(self) -> None:
        session, tree = self.warm()
        self.play_block(session, self.warm_up_blocks)
        measured = sum(differing_bytes(tree, session.state_tree()).values())
        counted = session.dirty_bytes_per_block()
        assert counted >= measured, f"it counts {counted} dirty bytes a block, but {measured} changed"
        assert counted <= self.offered().state_bytes, f"it counts {counted} dirty bytes a block: more than its state"

    def test_cold_leaves_are_cold(self) -> None:
        session, tree = self.warm()
        cold = set(session.cold_paths())
        assert cold <= leaves(tree).keys(), f"cold paths that are not in the tree: {_some(cold - leaves(tree).keys())}"
        flipped = copied(tree)
        for path in sorted(cold):
            leaf = leaves(flipped)[path]
            assert isinstance(leaf, torch.Tensor), f"{path} is cold, and no tensor: what is it for?"
            _flip(leaf, 0, bit=0)
            _flip(leaf, leaf.numel() - 1, bit=leaf.element_size() * 8 - 3)
        start = copied(flipped)
        other = self.engine().load(self.preset, flipped)
        for block in range(self.warm_up_blocks, self.warm_up_blocks + 2):
            shown = self.play_block(other, block)
            assert shown == self.play_block(session, block), f"block {block} read a cold leaf"
        written = cold & differing_bytes(start, other.state_tree()).keys()
        assert not written, f"cold leaves were written: {_some(written)}"

    def test_flipped_bits_show(self) -> None:
        """In every leaf that is not cold there is a place where a flipped exponent bit changes frames soon."""
        session, tree = self.warm()
        cold = set(session.cold_paths())
        live = [
            path
            for path, leaf in sorted(leaves(tree).items())
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() and path not in cold
        ]
        expected = self._shown_from(tree)
        dice = random.Random(self.seed)
        for path in dice.sample(live, min(len(live), self.flipped_leaves)):
            if not any(self._shown_after_flip(tree, path, dice) != expected for _ in range(self.flips_per_leaf)):
                raise AssertionError(
                    f"{path}: {self.flips_per_leaf} flipped exponent bits changed no frame: nothing reads this leaf, "
                    "so declare it cold, or leave it out of the tree"
                )

    def test_generators_are_drawn_from(self) -> None:
        _, tree = self.warm()
        for path, leaf in leaves(tree).items():
            if isinstance(leaf, torch.Generator):
                other = copied(tree)
                generator = leaves(other)[path]
                assert isinstance(generator, torch.Generator)
                generator.manual_seed(generator.initial_seed() + 1)
                assert self._shown_from(other) != self._shown_from(copied(tree)), f"no block draws from {path}"

    def _shown_after_flip(self, tree: StateTree, path: str, dice: random.Random) -> list[Readout]:
        flipped = copied(tree)
        leaf = leaves(flipped)[path]
        assert isinstance(leaf, torch.Tensor)
        _flip(leaf, dice.randrange(leaf.numel()), bit=leaf.element_size() * 8 - 3)
        return self._shown_from(flipped)

    def _shown_from(self, tree: StateTree) -> list[Readout]:
        session = self.engine().load(self.preset, copied(tree))
        shown = [session.readout()]
        return [*shown, *(self.play_block(session, self.warm_up_blocks + block) for block in range(2))]

    def _require_alike(self, one: EngineSession, other: EngineSession) -> None:
        for block in range(self.warm_up_blocks, self.warm_up_blocks + 2):
            shown = self.play_block(one, block)
            assert shown == self.play_block(other, block), f"block {block} shows other frames"
            changed = differing_bytes(one.state_tree(), other.state_tree())
            assert not changed, f"block {block} left another state in {_some(changed)}"


def _played_digests(suite: type[EngineConformance], threads: int) -> list[str]:
    """SHA-256 of a few blocks' frames and of the state after them. Runs in another process too."""
    torch.set_num_threads(threads)
    session = suite.new_session()
    digests = [
        hashlib.sha256(suite.play_block(session, block).data).hexdigest() for block in range(suite.warm_up_blocks + 1)
    ]
    sha = hashlib.sha256()
    for path, leaf in sorted(leaves(session.state_tree()).items()):
        sha.update(f"{path} {describe(leaf)}".encode())
        sha.update(raw(leaf).numpy().tobytes())
    return [*digests, sha.hexdigest()]


def _flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element, in place; `bit` counts from the least significant."""
    place = tensor.view(-1)[element : element + 1].view(torch.uint8)
    place[bit // 8] ^= 1 << bit % 8


def _addresses(tree: StateTree) -> dict[str, int]:
    found: Mapping[str, StateLeaf] = leaves(tree)
    return {path: leaf.data_ptr() for path, leaf in found.items() if isinstance(leaf, torch.Tensor) and leaf.numel()}


def _some(paths: Mapping[str, int] | set[str]) -> str:
    listed = sorted(paths)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")

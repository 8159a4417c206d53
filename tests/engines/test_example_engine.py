"""The example engine of docs/engines.md, the conformance suite on it, and on engines with one thing wrong each."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Engine, EngineSession, Preset, Readout, StateTree
from worldline.errors import BadRequest
from worldline.testing.engines import EngineConformance

# The example of docs/engines.md begins here.


def fold(u: torch.Tensor) -> torch.Tensor:
    return (u - torch.round(u)).abs() * 4 - 1


class DriftEngine:
    """A field that is stirred, pushed by the player and shaken by noise."""

    name = "drift"
    version = "1"

    def __init__(self) -> None:
        self.stir = torch.rand(16, 16, generator=torch.Generator().manual_seed(1))

    def presets(self) -> Mapping[str, Preset]:
        contract = Contract(ContractClass.C1, horizon_s=5.0, tier=Tier.T0)
        return {"demo": Preset("demo", state_bytes=16_384, action_bytes=1, quanta_per_block=2, contract=contract)}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": hashlib.sha256(self.stir.numpy().tobytes()).hexdigest()}

    def create(self, preset: str, seed: int) -> StateTree:
        noise = torch.Generator().manual_seed(seed)
        field = torch.rand(16, 16, generator=noise)
        return {"field": field, "spare": torch.zeros(64), "noise": noise, "block": 0}

    def load(self, preset: str, tree: StateTree) -> EngineSession:
        assert isinstance(tree, Mapping)
        return DriftSession(self.stir, dict(tree))


class DriftSession:
    """Lives in the tensors it is given; `block` is a Python number, so it is put back into the tree when asked."""

    def __init__(self, stir: torch.Tensor, tree: dict[str, StateTree]) -> None:
        field, noise, block = tree["field"], tree["noise"], tree["block"]
        assert isinstance(field, torch.Tensor)
        assert isinstance(noise, torch.Generator)
        assert isinstance(block, int)
        self.stir, self.tree = stir, tree
        self.field, self.noise, self.block = field, noise, block
        self.push = 0.0

    def begin_block(self, action: bytes) -> None:
        if len(action) != 1:
            raise BadRequest(f"an action of {len(action)} bytes; this engine's are 1", violations={"action": "size"})
        self.push = action[0] / 255

    def step(self, quantum: int) -> None:
        moved = self.field.roll(1, dims=quantum) * self.stir + self.field
        shaken = torch.rand(16, 16, generator=self.noise) * 0.01
        self.field.copy_(fold(moved + shaken + self.push))  # in place: the tensor stays where it was loaded

    def end_block(self) -> None:
        self.block += 1

    def readout(self) -> Readout:
        return Readout(1, 16, 16, 1, ((self.field + 1) * 127).to(torch.uint8).numpy().tobytes())

    def state_tree(self) -> StateTree:
        return {**self.tree, "block": self.block}

    def dirty_bytes_per_block(self) -> int:
        return 16 * 16 * 4 + 5056 + 8  # the field, the generator's state, the count

    def cold_paths(self) -> Sequence[str]:
        return ["spare"]


class TestDrift(EngineConformance):
    preset = "demo"

    @classmethod
    def make_engine(cls) -> Engine:
        return DriftEngine()


# The example ends here.

DOCS = Path(__file__).parents[2] / "docs" / "engines.md"


def test_docs_show_this_example() -> None:
    source = Path(__file__).read_text()
    example = source.split("# The example of docs/engines.md begins here.")[1].split("# The example ends here.")[0]
    assert example.strip() in DOCS.read_text(), "docs/engines.md shows another example than the one tested here"


class Replacing(DriftSession):
    def step(self, quantum: int) -> None:
        super().step(quantum)
        self.field = self.field.clone()
        self.tree["field"] = self.field


class Remembering(DriftSession):
    """Keeps something that the next block depends on outside the tree."""

    heat = 0.0

    def step(self, quantum: int) -> None:
        super().step(quantum)
        self.heat += 0.1
        self.field.add_(self.heat).sub_(self.field.round())


class ShowingCache(DriftSession):
    shown = bytes(256)

    def end_block(self) -> None:
        super().end_block()
        self.shown = super().readout().data

    def readout(self) -> Readout:
        return Readout(1, 16, 16, 1, self.shown)


class StirringReadout(DriftSession):
    def readout(self) -> Readout:
        shown = super().readout()
        self.field.mul_(-1)
        return shown


class Global(DriftSession):
    def step(self, quantum: int) -> None:
        super().step(quantum)
        self.field.mul_(torch.rand(()))


class Aligned(DriftSession):
    """Results depend on where the state lies, as those of some vectorised kernels do."""

    def step(self, quantum: int) -> None:
        super().step(quantum)
        self.field.mul_(1.0 if self.field.data_ptr() % 64 == 0 else 0.999)


class Lenient(DriftSession):
    def begin_block(self, action: bytes) -> None:
        self.push = len(action) / 255


class Spoiling(DriftSession):
    """Refuses a bad action after it has changed something."""

    def begin_block(self, action: bytes) -> None:
        self.block += 1
        super().begin_block(action)
        self.block -= 1


class Understating(DriftSession):
    def dirty_bytes_per_block(self) -> int:
        return 256


class WritingCold(DriftSession):
    def end_block(self) -> None:
        super().end_block()
        spare = self.tree["spare"]
        assert isinstance(spare, torch.Tensor)
        spare.add_(1)


class ReadingCold(DriftSession):
    def end_block(self) -> None:
        super().end_block()
        spare = self.tree["spare"]
        assert isinstance(spare, torch.Tensor)
        self.field.sub_(spare.view(torch.int32).ne(0).sum() * 0.25)


class HidingCold(DriftSession):
    def cold_paths(self) -> Sequence[str]:
        return []


class Lying(DriftSession):
    def cold_paths(self) -> Sequence[str]:
        return ["spares"]


class Growing(DriftSession):
    def state_tree(self) -> StateTree:
        return {**self.tree, "block": self.block, f"mark{self.block}": 1}


class Seeding(DriftSession):
    """Has a generator in its tree that no block draws from."""

    def step(self, quantum: int) -> None:
        self.noise = torch.Generator().manual_seed(self.block)
        super().step(quantum)


class Process(DriftSession):
    def step(self, quantum: int) -> None:
        super().step(quantum)
        self.field.mul_(1 / (1 + os.getpid() % 1000))


CAUGHT: list[tuple[type[DriftSession], Callable[[EngineConformance], None], str]] = [
    (Replacing, EngineConformance.test_tensors_stay_where_they_were_loaded, "not written in place .*: field"),
    (Remembering, EngineConformance.test_tree_holds_everything, "block 2 shows other frames"),
    (ShowingCache, EngineConformance.test_tree_holds_everything, "not a function of the state tree"),
    (StirringReadout, EngineConformance.test_readout_changes_nothing, "differs when asked twice"),
    (Global, EngineConformance.test_global_generators_are_left_alone, "torch's global generator"),
    (Aligned, EngineConformance.test_where_the_state_lies_does_not_matter, "block 2 shows other frames"),
    (Lenient, EngineConformance.test_bad_action_changes_nothing, "was taken"),
    (Spoiling, EngineConformance.test_bad_action_changes_nothing, "changed block"),
    (Understating, EngineConformance.test_dirty_bytes_are_not_understated, "counts 256 dirty bytes"),
    (WritingCold, EngineConformance.test_cold_leaves_are_cold, "written: spare"),
    (ReadingCold, EngineConformance.test_cold_leaves_are_cold, "read a cold leaf"),
    (Lying, EngineConformance.test_cold_leaves_are_cold, "not in the tree: spares"),
    (HidingCold, EngineConformance.test_flipped_bits_show, "spare: .* changed no frame"),
    (Growing, EngineConformance.test_tree_is_within_its_bounds_and_keeps_its_shape, "changed the shape of mark"),
    (Seeding, EngineConformance.test_generators_are_drawn_from, "no block draws from noise"),
]


def named(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("session", "test", "complaint"), CAUGHT, ids=named)
def test_suite_catches(session: type[DriftSession], test: Callable[[EngineConformance], None], complaint: str) -> None:
    class Wrong(DriftEngine):
        def load(self, preset: str, tree: StateTree) -> EngineSession:
            assert isinstance(tree, Mapping)
            return session(self.stir, dict(tree))

    class Suite(TestDrift):
        @classmethod
        def make_engine(cls) -> Engine:
            return Wrong()

    with pytest.raises(AssertionError, match=complaint):
        test(Suite())


class ProcessEngine(DriftEngine):
    def load(self, preset: str, tree: StateTree) -> EngineSession:
        assert isinstance(tree, Mapping)
        return Process(self.stir, dict(tree))


class ProcessSuite(TestDrift):
    """Not run by itself: at the top of the module because another process has to find it."""

    __test__ = False

    @classmethod
    def make_engine(cls) -> Engine:
        return ProcessEngine()


@pytest.mark.slow
def test_suite_catches_dependence_on_the_process() -> None:
    with pytest.raises(AssertionError):
        ProcessSuite().test_another_process_plays_the_same()


class Sharing(DriftEngine):
    """The first session's field stirs all the others."""

    first: torch.Tensor | None = None

    def load(self, preset: str, tree: StateTree) -> EngineSession:
        assert isinstance(tree, Mapping)
        session = DriftSession(self.stir, dict(tree))
        if self.first is None:
            self.first = session.field
        session.stir = self.first
        return session


class Unseeded(DriftEngine):
    count = itertools.count()

    def create(self, preset: str, seed: int) -> StateTree:
        return super().create(preset, next(self.count))


class Oversized(DriftEngine):
    def presets(self) -> Mapping[str, Preset]:
        offered = super().presets()["demo"]
        return {"demo": Preset("demo", 4096, offered.action_bytes, offered.quanta_per_block, offered.contract)}


class Unfingerprinted(DriftEngine):
    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": str(id(self))}


@pytest.mark.parametrize(
    ("engine", "test", "complaint"),
    [
        (Sharing, EngineConformance.test_sessions_of_one_engine_do_not_touch_each_other, "what else the engine plays"),
        (Unseeded, EngineConformance.test_create_is_deterministic, "gave another state in field, noise"),
        (Oversized, EngineConformance.test_tree_is_within_its_bounds_and_keeps_its_shape, "bounds them by 4096"),
        (Unfingerprinted, EngineConformance.test_presets_and_fingerprint_are_sound, "other fingerprints"),
    ],
    ids=named,
)
def test_suite_catches_engine(
    engine: type[DriftEngine], test: Callable[[EngineConformance], None], complaint: str
) -> None:
    class Suite(TestDrift):
        @classmethod
        def make_engine(cls) -> Engine:
            return engine()

    with pytest.raises(AssertionError, match=complaint):
        test(Suite())

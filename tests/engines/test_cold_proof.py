"""The proof of cold leaves: it passes what is cold, and names what is written, read, or declared and not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from enginehost.engines.window_rewrite import WindowRewriteEngine
from worldline.cli import main as command
from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Preset, Readout, StateTree
from worldline.errors import BadRequest, Mismatch, NotFound
from worldline.instruments.cold import prove_cold


class LedgerEngine:
    """A counter and some leaves that nothing uses; `during` is called by each block with the session."""

    name = "ledger"
    version = "3"

    def __init__(
        self,
        cold: Sequence[str] = ("zeros", "ones", "flags", "mixed"),
        during: Callable[[LedgerSession], None] = lambda session: None,
    ) -> None:
        self.cold = cold
        self.during = during
        self.refused: Callable[[bytes], bool] = lambda action: False

    def presets(self) -> Mapping[str, Preset]:
        return {"one": Preset("one", 1 << 16, 1, 2, Contract(ContractClass.C1, 5.0, Tier.T0))}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": "none"}

    def create(self, preset: str, seed: int) -> StateTree:
        return {
            "count": torch.zeros(4, dtype=torch.int64),
            "zeros": torch.zeros(100, dtype=torch.bfloat16),
            "ones": torch.ones(3, 50, dtype=torch.bfloat16).t(),
            "flags": torch.ones(7, dtype=torch.bool),
            "mixed": torch.arange(50, dtype=torch.float32),
            "seeded": torch.full((32,), seed, dtype=torch.int32),
            "label": "text",
        }

    def load(self, preset: str, tree: StateTree) -> LedgerSession:
        assert isinstance(tree, dict)
        return LedgerSession(self, tree)


class LedgerSession:
    def __init__(self, engine: LedgerEngine, tree: dict[str, torch.Tensor]) -> None:
        self.engine, self.tree = engine, tree

    def begin_block(self, action: bytes) -> None:
        if self.engine.refused(action):
            raise BadRequest("not an action of this engine")
        self.action = action[0]

    def step(self, quantum: int) -> None:
        self.tree["count"].add_(self.action + quantum)
        self.engine.during(self)

    def end_block(self) -> None:
        pass

    def readout(self) -> Readout:
        return Readout(1, 1, 32, 1, self.tree["count"].numpy().tobytes())

    def state_tree(self) -> StateTree:
        return self.tree

    def dirty_bytes_per_block(self) -> int:
        return 32

    def cold_paths(self) -> Sequence[str]:
        return self.engine.cold


def test_what_is_cold_is_proven_and_its_constants_are_told() -> None:
    proof = prove_cold(LedgerEngine(), "one", blocks=3)
    proof.require()
    assert (proof.engine, proof.engine_version, proof.preset, proof.blocks) == ("ledger", "3", "one", 3)
    assert proof.cold == {"flags": 7, "mixed": 200, "ones": 300, "zeros": 200}
    assert proof.constants == {"zeros": b"\0", "ones": b"\x80\x3f", "flags": b"\1"}
    assert (proof.cold_bytes, proof.constant_bytes) == (707, 507)


def test_what_differs_from_session_to_session_is_no_constant() -> None:
    proof = prove_cold(LedgerEngine(("seeded", "zeros")), "one", blocks=1)
    proof.require()
    assert proof.constants == {"zeros": b"\0"}


def test_a_writer_is_named() -> None:
    def write(session: LedgerSession) -> None:
        if int(session.tree["count"][0]) > 200:
            session.tree["zeros"][99] = 1

    proof = prove_cold(LedgerEngine(during=write), "one", blocks=50)
    assert "has written it" in proof.faults["zeros"]
    with pytest.raises(Mismatch) as caught:
        proof.require()
    assert caught.value.reason == "COLD_NOT_PROVEN"
    assert "zeros" in caught.value.violations


@pytest.mark.parametrize("shows", [True, False])
def test_a_reader_is_found_by_what_it_shows_or_by_what_it_leaves(shows: bool) -> None:
    def read(session: LedgerSession) -> None:
        session.tree["count" if shows else "seeded"][0] += int(session.tree["mixed"].sum() > 1225)

    proof = prove_cold(LedgerEngine(during=read), "one", blocks=2, seed=9)
    assert ("readout" in proof.faults) is shows
    assert "is read" in proof.faults["count" if shows else "seeded"]


@pytest.mark.parametrize("path", ["nowhere", "label"])
def test_what_is_no_leaf_of_bytes_is_refused(path: str) -> None:
    with pytest.raises(Mismatch, match=f"{path}: is no tensor"):
        prove_cold(LedgerEngine(("zeros", path)), "one").require()


def test_nothing_declared_is_nothing_proven() -> None:
    with pytest.raises(BadRequest) as caught:
        prove_cold(LedgerEngine(()), "one", blocks=1).require()
    assert caught.value.reason == "NO_COLD_LEAVES"


def test_actions_that_are_refused_are_drawn_again() -> None:
    engine = LedgerEngine()
    engine.refused = lambda action: action[0] % 2 == 0
    prove_cold(engine, "one", blocks=4).require()
    engine.refused = lambda action: True
    with pytest.raises(BadRequest, match="none of 32 random actions"):
        prove_cold(engine, "one")
    with pytest.raises(BadRequest, match="prove nothing"):
        prove_cold(engine, "one", blocks=0)
    with pytest.raises(NotFound, match="no preset"):
        prove_cold(engine, "two")


def test_the_engine_that_comes_with_the_host() -> None:
    proof = prove_cold(WindowRewriteEngine(), "tiny", blocks=2)
    proof.require()
    assert proof.constant_bytes == proof.cold_bytes
    assert proof.constant_bytes / proof.state_bytes >= 0.194


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["prove-cold", "window-rewrite", "tiny", "--blocks", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proven"] is True
    assert told["constants"]["layers/03/mouse/k"] == "00"
    assert command.main(["prove-cold", "window-rewrite", "tiny", "--blocks", "1"]) == 0
    assert "proven over 1 blocks" in capsys.readouterr().out
    assert command.main(["prove-cold", "no-such-engine", "tiny"]) == 3

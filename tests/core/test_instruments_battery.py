"""`worldline battery`: on a toy whose geometry is known, on toys that lie, on the engine that comes with the host."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldline.cli.main import main
from worldline.contract import Contract, ContractClass, Tier
from worldline.engine import Preset, Readout, StateTree
from worldline.errors import NotFound
from worldline.instruments import battery, geometry, lossy
from worldline.instruments.bits import BitClass, bits_of, flip_bit
from worldline.instruments.geometry import Fate
from worldline.instruments.readouts import psnr_db
from worldline.instruments.region import lay
from worldline.instruments.twin import Reference, Twin, engine_of

ROWS, WIDTH = 12, 5
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn]


class Toy:
    """A window along dimension 1 whose first half is overwritten by the second; a text that is read; spare memory."""

    name = "toy"
    version = "1"

    def __init__(self, lie: Callable[[dict[str, torch.Tensor]], None] = lambda _: None, dirty_bytes: int = 0) -> None:
        self.lie = lie
        self.dirty_bytes = dirty_bytes or 2 * ROWS * WIDTH * 4 + 8

    def presets(self) -> Mapping[str, Preset]:
        return {"one": Preset("one", 1 << 16, 2, 1, Contract(ContractClass.C1, 5.0, Tier.T0))}

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        return {"weights": "toy"}

    def create(self, preset: str, seed: int) -> StateTree:
        noise = torch.Generator().manual_seed(seed)
        return {
            "block": 0,
            "spare": torch.zeros(6),
            "text": torch.rand(1, 3, 4, generator=noise),
            "window": {"0": torch.rand(2, ROWS, WIDTH, generator=noise)},
        }

    def load(self, preset: str, tree: StateTree) -> ToySession:
        return ToySession(self, tree)


class ToySession:
    def __init__(self, engine: Toy, tree: StateTree) -> None:
        assert isinstance(tree, dict)
        self.engine, self.tree = engine, dict(tree)
        self.window = tree["window"]["0"]
        self.push = 0.0

    def begin_block(self, action: bytes) -> None:
        self.push = sum(action) / 512

    def step(self, quantum: int) -> None:
        half = ROWS // 2
        self.window[:, :half] = self.window[:, half:]
        mixed = self.window[:, :half].sum((0, 1)) * 0.37 + self.tree["text"].sum() + self.push
        made = self.window[:, :half].roll(1, dims=1) * 0.9 + mixed
        # Every bit of what is read counts, as in a chaotic model.
        self.window[:, half:] = (made * 97.3) % 1.0
        self.engine.lie({"window": self.window, **{n: self.tree[n] for n in ("spare", "text")}})

    def end_block(self) -> None:
        self.tree["block"] += 1

    def readout(self) -> Readout:
        shown = self.window[:, ROWS // 2 :].contiguous().view(torch.uint8).numpy().tobytes()
        return Readout(1, 1, len(shown), 1, shown)

    def state_tree(self) -> StateTree:
        return self.tree

    def dirty_bytes_per_block(self) -> int:
        return self.engine.dirty_bytes

    def cold_paths(self) -> Sequence[str]:
        return ("spare",)


def run(engine: Toy, flipped: int = 36) -> battery.Report:
    return battery.run(Twin(engine, "one", 3), battery.Wanted(2, 2, flipped, 3))


def test_the_geometry_is_found_and_flips_are_as_it_predicts() -> None:
    found = run(Toy())
    assert found.good
    by_name = {item.name: item for item in found.classes}
    window = by_name["window/* 2x12x5"]
    assert [(half.dimension, half.start, half.end, half.fate) for half in window.halves] == [
        (1, 0, 6, Fate.OVERWRITTEN),
        (1, 6, 12, Fate.READ),
    ]
    assert [half.fate for half in by_name["text 1x3x4"].halves] == [Fate.READ]
    assert [half.fate for half in by_name["spare 6"].halves] == [Fate.UNREAD]
    assert by_name["spare 6"].cold
    cells = {(cell.leaf_class, cell.where, cell.bit_class): cell for cell in found.cells}
    assert len(cells) == 4 * len(BitClass)
    for kind in ("sign", "exponent"):
        erased = cells["window/* 2x12x5", "first half", kind]
        assert (erased.erased, erased.reached, erased.flips) == (3, 0, 3)
        read = cells["window/* 2x12x5", "second half", kind]
        assert (read.erased, read.reached, read.as_predicted) == (0, 3, True)
        assert cells["spare 6", "declared cold", kind].kept == 3
    assert cells["window/* 2x12x5", "second half", "mantissa"].as_predicted is None


def test_every_lossy_handle_breaks_the_continuation() -> None:
    found = run(Toy(), flipped=1)
    assert [loss.name for loss in found.losses] == ["eviction", "quantization", "low-rank", "dedup"]
    for loss in found.losses:
        assert not loss.went_on.exact
        assert loss.went_on.shown_at == 1
        assert loss.changed_share > 0
        assert all(0 < block.psnr_db < 60 for block in loss.went_on.blocks)
    as_dict = json.loads(json.dumps(battery.as_dict(found)))
    assert [loss["exact"] for loss in as_dict["kill_family"]] == [False] * 4


def test_an_engine_that_understates_its_dirty_bytes() -> None:
    found = run(Toy(dirty_bytes=100), flipped=1)
    assert not found.declared.dirty_holds
    assert found.declared.cold_holds
    assert not found.good


def test_an_engine_that_writes_a_cold_leaf() -> None:
    found = run(Toy(lambda leaves: leaves["spare"].add_(1), dirty_bytes=1000), flipped=1)
    assert found.declared.dirty_holds
    assert "spare" in found.declared.cold_faults
    assert not found.good


def test_an_engine_that_reads_a_cold_leaf() -> None:
    found = run(Toy(lambda leaves: leaves["window"].add_(leaves["spare"].nan_to_num().sum().clamp(-1, 1))))
    assert found.declared.cold_faults
    assert "spare" not in found.declared.cold_faults  # it is as it was: others are not
    assert not found.good
    assert any(flip.escaped for flip in found.flips if flip.path == "spare")


def test_an_engine_that_cannot_go_on_from_a_changed_state() -> None:
    def picky(leaves: dict[str, torch.Tensor]) -> None:
        if not bool(torch.isfinite(leaves["text"]).all()) or float(leaves["text"].min()) < 0:
            raise ValueError("a text that no session has")

    found = run(Toy(picky))
    failed = [flip for flip in found.flips if flip.went_on.failed]
    assert failed
    assert all(flip.path == "text" and flip.reached and flip.shown_at == 1 for flip in failed)
    assert found.good


def test_a_continuation_of_an_unchanged_copy_is_exact() -> None:
    twin = Twin(Toy(), "one", 1)
    twin.play(2)
    reference = Reference(twin, 3)
    assert reference.play_on(reference.changed()[0]).exact
    twin.play(3)
    assert twin.session.readout() == reference.readouts[-1]


# --- bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bit_classes_part_every_number(dtype: torch.dtype) -> None:
    bits = [bit for kind in BitClass for bit in bits_of(dtype, kind)]
    assert sorted(bits) == list(range(8 * dtype.itemsize))
    leaf = torch.tensor([[1.5, -0.75], [0.0, 3.0]]).to(dtype)
    before = leaf.clone().view(torch.uint8)
    for bit in bits:
        flip_bit(leaf, (1, 1), bit)
        changed = before ^ leaf.view(torch.uint8)
        assert int(sum(bin(int(byte)).count("1") for byte in changed.reshape(-1))) == 1
        assert not changed[0].any()
        flip_bit(leaf, (1, 1), bit)
    assert torch.equal(before, leaf.view(torch.uint8))
    flip_bit(leaf, (0, 0), bits_of(dtype, BitClass.SIGN)[0])
    assert float(leaf[0, 0]) == -1.5


def test_negated_halves_differ_everywhere() -> None:
    for dtype in DTYPES:
        leaf = torch.tensor([0.0, 1.0, -2.0, 0.5]).to(dtype)
        changed = leaf.clone()
        geometry.negate(changed)
        assert bool((changed.float() != leaf.float()).all())


def test_psnr() -> None:
    one = Readout(1, 2, 2, 1, bytes([0, 10, 20, 30]))
    assert math.isinf(psnr_db(one, one))
    assert psnr_db(one, Readout(1, 2, 2, 1, bytes([0, 10, 20, 31]))) == pytest.approx(10 * math.log10(255**2 / 0.25))
    assert psnr_db(one, Readout(1, 1, 2, 1, bytes(2))) == 0.0


# --- lossy handles


@given(seed=st.integers(0, 1000), rows=st.integers(2, 30), heads=st.integers(1, 3), channels=st.integers(2, 9))
@settings(deadline=None, max_examples=40)
def test_lossy_handles_lose_what_they_say(seed: int, rows: int, heads: int, channels: int) -> None:
    part = torch.randn(rows, heads, channels, generator=torch.Generator().manual_seed(seed))
    tenth = max(1, round(rows / 10))
    evicted = lossy.evict(part)
    assert int((evicted.abs().sum((1, 2)) == 0).sum()) == tenth
    step = part.abs().amax((0, 1)) / 127
    assert bool(((lossy.quantize(part) - part).abs() <= step * 0.5001).all())
    merged = lossy.merge(part)
    assert int((merged != part).any(2).any(1).sum()) <= tenth
    rank = max(1, min(rows, channels) // 2)
    low = lossy.low_rank(part)
    for head in range(heads):
        u, s, v = torch.linalg.svd(part[:, head], full_matrices=False)
        best = u[:, :rank] @ torch.diag(s[:rank]) @ v[:rank]
        assert torch.allclose(low[:, head], best, atol=1e-3)


def test_quantizing_zeros_and_merging_equals_changes_nothing() -> None:
    zeros = torch.zeros(20, 4)
    for handle in lossy.HANDLES:
        assert torch.equal(handle.apply(zeros), zeros)


# --- the command


def test_layouts_of_trees_have_every_leaf() -> None:
    layout = lay({"b": torch.zeros(3, dtype=torch.bfloat16), "a": [1, 2.0, None, "x", b"yz", True]}).layout
    assert [(leaf.path, leaf.dtype, leaf.size_bytes) for leaf in layout.leaves] == [
        ("a/[0]", "py.int", 8),
        ("a/[1]", "py.float", 8),
        ("a/[2]", "py.none", 0),
        ("a/[3]", "py.str", 1),
        ("a/[4]", "py.bytes", 2),
        ("a/[5]", "py.bool", 1),
        ("b", "bfloat16", 6),
    ]


def test_unknown_engines_are_named() -> None:
    with pytest.raises(NotFound, match="installed are toy"):
        engine_of({"toy": Toy()}, "other")


@pytest.mark.slow
def test_the_engine_that_comes_with_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's n = 24 and more: nothing in the overwritten half, every sign and exponent in the read one."""
    picture = tmp_path / "b.svg"
    words = ["battery", "--engine", "window-rewrite", "--flips", "96"]
    assert main([*words, "--json", "--picture", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["good"]
    assert b"<svg" in picture.read_bytes()
    halves = {half["fate"] for item in found["geometry"] if not item["declared_cold"] for half in item["halves"]}
    assert halves == {"READ", "OVERWRITTEN"}
    for flip in found["flips"]:
        if flip["fate"] == "OVERWRITTEN":
            assert flip["shown_at"] == 0
            assert flip["differing_bytes"] == [0, 0]
        elif flip["fate"] == "READ" and flip["bit_class"] != "mantissa":
            assert flip["shown_at"] == 1
    assert {loss["exact"] for loss in found["kill_family"]} == {False}
    assert main(["battery", "--engine", "window-rewrite", "--flips", "12"]) == 0
    assert "all as declared: yes" in capsys.readouterr().out


def test_the_command_line_needs_neither_torch_nor_numpy_to_start() -> None:
    code = "import sys, worldline.cli.main as m; m.parser(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_exit_status_tells_of_a_lie(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "toy", "--preset", "one"]
    for lie, status in ((lambda _: None, 0), (lambda leaves: leaves["spare"].add_(1), 1)):
        engines = {"toy": Toy(lie, dirty_bytes=1000)}
        monkeypatch.setattr("worldline.cli.local.installed", lambda engines=engines: engines)
        assert main(["inspect", *words, "--blocks", "2"]) == status
        assert ("NOT AS DECLARED, written were spare" in capsys.readouterr().out) == bool(status)
        assert main(["battery", *words, "--flips", "12"]) == status
        assert ("all as declared: NO" in capsys.readouterr().out) == bool(status)


def test_states_with_infinities_and_odd_formats_are_gone_around() -> None:
    class Masked(Toy):
        def create(self, preset: str, seed: int) -> StateTree:
            made = super().create(preset, seed)
            assert isinstance(made, dict)
            mask = torch.zeros(3, 4)
            mask[0] = -torch.inf
            return {**made, "mask": mask, "scale": torch.ones(4).to(torch.float8_e8m0fnu)}

    found = run(Masked(), flipped=12)
    assert found.good
    assert {item.name for item in found.classes} == {"mask 3x4", "spare 6", "text 1x3x4", "window/* 2x12x5"}
    assert all(math.isfinite(loss.relative_error) for loss in found.losses)


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["battery", "--engine", "no-such"]) == 3
    assert "UNKNOWN_ENGINE" in capsys.readouterr().err
    for wrong in (("--picture", str(tmp_path / "x.gif")), ("--action", "xyz"), ("--flips", "0")):
        with pytest.raises(SystemExit) as caught:
            main(["battery", "--engine", "window-rewrite", *wrong])
        assert caught.value.code == 2
        assert wrong[0] in capsys.readouterr().err

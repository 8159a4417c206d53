"""The engine `transformers`: a small model with random weights, token for token what the library itself generates."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from enginehost.engines.causal_lm import BLOCK_TOKENS, BUILT_IN, CausalLmEngine, Shape
from worldline.engine import DeviceEngine, Engine, EngineSession, installed
from worldline.errors import BadRequest, Mismatch
from worldline.testing.engines import EngineConformance, play
from worldline.testing.trees import copied

ENGINE = CausalLmEngine()


def action(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def answered(session: EngineSession, *tokens: int) -> list[int]:
    """The tokens that one block answers."""
    shown = play(session, BLOCK_TOKENS, action(*tokens))
    return [value for index, value in enumerate(struct.unpack(f"<{2 * BLOCK_TOKENS}q", shown.data)) if index % 2 == 0]


class TestTiny(EngineConformance):
    preset = BUILT_IN
    flips_per_leaf = 24

    @classmethod
    def make_engine(cls) -> Engine:
        return CausalLmEngine()

    @classmethod
    def make_action(cls, block: int) -> bytes:
        return action(*(1 + block * 7 + n for n in range(4)))


def test_is_installed_for_every_device() -> None:
    assert isinstance(installed()["transformers"], DeviceEngine)


def test_it_answers_what_the_library_generates() -> None:
    tree = ENGINE.create(BUILT_IN, 3)
    session = ENGINE.load(BUILT_IN, tree)
    prompt = tree["tokens"][:8].tolist()  # type: ignore[index, call-overload, union-attr]
    said = []
    for block in range(4):
        given = [block, block + 100]
        said += given + answered(session, *given)
        if block % 2:
            # As after a move: other memory, the same bytes.
            session = ENGINE.load(BUILT_IN, copied(session.state_tree(), together=True))
    model = ENGINE.model(BUILT_IN)
    context = list(prompt)
    for block in range(4):
        context += [block, block + 100]
        ids = torch.tensor([context])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=BLOCK_TOKENS, do_sample=False, eos_token_id=None
        )
        context = made[0].tolist()
    assert context == prompt + said


@pytest.mark.parametrize("bad", [b"abc", action(-1), action(512), action(*([1] * 65))])
def test_what_is_no_action_changes_nothing(bad: bytes) -> None:
    session, twin = (ENGINE.load(BUILT_IN, ENGINE.create(BUILT_IN, 1)) for _ in range(2))
    with pytest.raises(BadRequest):
        session.begin_block(bad)
    assert answered(session, 5) == answered(twin, 5)


def test_the_built_in_shape_is_its_models() -> None:
    assert Shape.of(ENGINE.model(BUILT_IN).config) == ENGINE.shape(BUILT_IN)


def test_a_full_context_is_told() -> None:
    session = ENGINE.load(BUILT_IN, ENGINE.create(BUILT_IN, 1))
    for _ in range((128 - 8) // BLOCK_TOKENS):
        answered(session)
    with pytest.raises(BadRequest, match="128 of 128 are taken") as caught:
        answered(session)
    assert caught.value.reason == "CONTEXT_FULL"


def test_a_tree_of_something_else_is_refused() -> None:
    tree = ENGINE.create(BUILT_IN, 1)
    assert isinstance(tree, dict)
    changes: list[dict[str, object]] = [{"more": 1}, {"count": 4000}, {"tokens": torch.zeros(3)}, {"cached": "1"}]
    for wrong in ({}, *({**tree, **change} for change in changes)):
        with pytest.raises(Mismatch):
            ENGINE.load(BUILT_IN, wrong)


def test_a_model_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ENGINE.model(BUILT_IN).save_pretrained(tmp_path / "saved")
    monkeypatch.setenv("TRANSFORMERS_MODELS", f"mine={tmp_path / 'saved'}")
    engine = CausalLmEngine()
    assert set(engine.presets()) == {BUILT_IN, "mine"}
    assert engine.fingerprint("mine") == ENGINE.fingerprint(BUILT_IN)
    theirs, ours = (each.load(name, each.create(name, 9)) for each, name in ((engine, "mine"), (ENGINE, BUILT_IN)))
    assert answered(theirs, 1, 2, 3) == answered(ours, 1, 2, 3)
    monkeypatch.setenv("TRANSFORMERS_MODELS", "nothing")
    with pytest.raises(BadRequest, match="name=folder"):
        CausalLmEngine()

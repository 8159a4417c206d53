"""A session of an engine in this process, played from copies of its state: what batteries run on."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worldline.engine import Engine, EngineSession, Preset, Readout, StateLeaf, StateTree, preset_of
from worldline.errors import NotFound
from worldline.instruments.readouts import psnr_db
from worldline.testing.trees import copied, leaves, raw

# Path -> all bytes of the leaf, uint8.
Bytes = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Played:
    """One block beside the reference's: PSNR of its readout in dB (infinite if equal), and path -> bytes of the state
    after it that differ.
    """

    psnr_db: float
    differing: Mapping[str, int]

    @property
    def shows(self) -> bool:
        """Whether the player sees a difference."""
        return not math.isinf(self.psnr_db)


@dataclass(frozen=True, slots=True)
class Continuation:
    """The blocks that a state went on with. `failed`: what the engine raised instead of a further block."""

    blocks: tuple[Played, ...]
    failed: str = ""

    @property
    def exact(self) -> bool:
        """Whether every block and every state was the reference's, bit for bit."""
        return not self.failed and not any(block.shows or block.differing for block in self.blocks)

    @property
    def shown_at(self) -> int:
        """Which block, counted from 1, is the first that shows a difference; 0 if none does."""
        shows = (number for number, block in enumerate(self.blocks, start=1) if block.shows)
        return next(shows, len(self.blocks) + 1 if self.failed else 0)


class Twin:
    """One engine and preset, and the actions of each block: `action`, or bytes that differ from block to block."""

    def __init__(self, engine: Engine, preset: str, seed: int, action: bytes | None = None) -> None:
        """Raises NotFound: no such preset."""
        self.engine = engine
        self.preset: Preset = preset_of(engine, preset)
        self.seed = seed
        self._action = action
        self.next_block = 0
        self.session = self.load(engine.create(preset, seed))
        self.block_s = 0.0

    def load(self, tree: StateTree) -> EngineSession:
        """A session that lives in `tree`."""
        return self.engine.load(self.preset.name, tree)

    def action_of(self, block: int) -> bytes:
        """The action of a block."""
        if self._action is not None:
            return self._action
        return hashlib.shake_256(f"{self.seed} {block}".encode()).digest(self.preset.action_bytes)

    def play_block(self, session: EngineSession, block: int) -> Readout:
        """Block `block`, in any session."""
        with torch.no_grad():
            session.begin_block(self.action_of(block))
            for quantum in range(self.preset.quanta_per_block):
                session.step(quantum)
            session.end_block()
            return session.readout()

    def play(self, blocks: int = 1) -> None:
        """Play this twin's own session on; `block_s` is what the last block took."""
        for _ in range(blocks):
            started_s = time.monotonic()
            self.play_block(self.session, self.next_block)
            self.block_s = time.monotonic() - started_s
            self.next_block += 1

    def state(self) -> StateTree:
        """A copy of the state, in memory of its own."""
        return copied(self.session.state_tree())


def engine_of(engines: Mapping[str, Engine], name: str) -> Engine:
    """An installed engine. Raises NotFound with the names there are."""
    if name not in engines:
        raise NotFound(
            f"no engine {name[:64]!r} is installed; installed are {', '.join(sorted(engines)) or 'none'}",
            reason="UNKNOWN_ENGINE",
            resource=("engine", name[:64]),
        )
    return engines[name]


def bytes_of(tree: StateTree) -> Bytes:
    """Every leaf's bytes; of contiguous tensors the memory itself, not a copy."""
    return {path: raw(leaf) for path, leaf in leaves(tree).items()}


def differences(reference: Bytes, now: Bytes) -> dict[str, int]:
    """Path -> bytes that differ; all bytes of a leaf that has another size, or that only one of the two has."""
    found: dict[str, int] = {}
    for path in sorted({*reference, *now}):
        one, other = reference.get(path), now.get(path)
        if one is None or other is None or one.numel() != other.numel():
            found[path] = max(leaf.numel() for leaf in (one, other) if leaf is not None)
        elif not torch.equal(one, other):
            found[path] = int((one != other).sum())
    return found


class Reference:
    """A state at a block boundary, and the exact continuation from it, `blocks` long, that others are compared with."""

    def __init__(self, twin: Twin, blocks: int) -> None:
        """Keeps `blocks` + 1 copies of the state. The twin itself stays where it is."""
        self.twin = twin
        self.first_block = twin.next_block
        self.tree = twin.state()
        self.leaves: Mapping[str, StateLeaf] = leaves(self.tree)
        self.shown = twin.session.readout()
        session = twin.load(copied(self.tree))
        self.readouts: list[Readout] = []
        self.states: list[Bytes] = []
        for number in range(blocks):
            self.readouts.append(twin.play_block(session, self.first_block + number))
            self.states.append(bytes_of(copied(session.state_tree())))

    def changed(self) -> tuple[StateTree, Mapping[str, StateLeaf]]:
        """A copy of the state to be changed, and its leaves."""
        tree = copied(self.tree)
        return tree, leaves(tree)

    def play_on(self, tree: StateTree, blocks: int = 0) -> Continuation:
        """Play the blocks of the reference, or the first `blocks` of them, from another state, which is used up."""
        played: list[Played] = []
        try:
            session = self.twin.load(tree)
            for number in range(blocks or len(self.readouts)):
                readout = self.twin.play_block(session, self.first_block + number)
                differing = differences(self.states[number], bytes_of(session.state_tree()))
                played.append(Played(psnr_db(self.readouts[number], readout), differing))
        except Exception as error:
            # A state that no engine would make: whatever the engine says of it is an answer.
            return Continuation(tuple(played), f"{type(error).__name__}: {error}"[:200])
        return Continuation(tuple(played))

"""Proof that the leaves an engine declares cold are: written by no block and read by none. On any engine and device.

Two sessions of one seed play the same random actions; in one of them the cold leaves are full of noise from the start.
After every block, cold bytes must be what they were, and every readout and every other byte equal. It is evidence from
the blocks that were played, not from the engine's code; what a move makes instead of sending is checked by CRC besides.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from worldline.crc import crc32
from worldline.engine import Engine, EngineSession, StateLeaf, StateTree, preset_of
from worldline.errors import BadRequest, Mismatch
from worldline.testing.trees import leaves, raw, region_bytes

BLOCKS = 8
ZERO = b"\0"
# An action of an engine that takes any size.
_ACTION_BYTES = 8
# Not every engine takes every sequence of bytes for an action.
_TRIED_ACTIONS = 32
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class ColdProof:
    """What was found. `cold` are the declared leaves and their bytes, `constants` those of them that hold one element
    over and over in every new session, and that element's bytes; one zero byte stands for zeros of any width.

    `faults` says of each leaf, or of "readout", what was wrong with it; empty: proven.
    """

    engine: str
    engine_version: str
    preset: str
    blocks: int
    state_bytes: int
    cold: Mapping[str, int]
    constants: Mapping[str, bytes]
    faults: Mapping[str, str]

    @property
    def cold_bytes(self) -> int:
        """Bytes of all cold leaves."""
        return sum(self.cold.values())

    @property
    def constant_bytes(self) -> int:
        """Bytes of those that can be made instead of sent."""
        return sum(self.cold[path] for path in self.constants)

    def require(self) -> None:
        """Refuse what is not proven.

        Raises:
            BadRequest: NO_COLD_LEAVES, there is nothing to prove.
            Mismatch: COLD_NOT_PROVEN, with every fault.
        """
        name = f"{self.engine}/{self.preset}"
        if not (self.cold or self.faults):
            raise BadRequest(f"{name} declares no cold leaves: a move has to send all of it", reason="NO_COLD_LEAVES")
        if self.faults:
            listed = "; ".join(f"{path}: {what}" for path, what in list(self.faults.items())[:8])
            raise Mismatch(
                f"the cold leaves of {name} are not cold: {listed}. Correct its cold_paths()",
                reason="COLD_NOT_PROVEN",
                violations=dict(list(self.faults.items())[:256]),
                numbers={"faults": len(self.faults)},
            )


def prove_cold(engine: Engine, preset: str, *, blocks: int = BLOCKS, seed: int = 1) -> ColdProof:
    """Play `blocks` blocks twice. Takes the memory of two sessions.

    Raises:
        NotFound: no such preset.
        BadRequest: the engine takes none of the actions that were drawn, or `blocks` is under 1.
    """
    if blocks < 1:
        raise BadRequest(f"{blocks} blocks prove nothing: play at least 1", violations={"blocks": "under 1"})
    offered = preset_of(engine, preset)
    other = engine.load(preset, engine.create(preset, seed + 1))
    held = _constants(leaves(other.state_tree()), other.cold_paths())
    del other
    plain = engine.load(preset, engine.create(preset, seed))
    tree = plain.state_tree()
    found, paths = leaves(tree), sorted({*plain.cold_paths()})
    faults = {path: "is no tensor of this state" for path in paths if not isinstance(found.get(path), torch.Tensor)}
    paths = [path for path in paths if path not in faults]
    noisy = engine.load(preset, _with_noise(engine.create(preset, seed), paths, seed))
    twins = _Twins(plain, noisy, paths)
    dice = random.Random(seed)
    for block in range(blocks if paths and not faults else 0):
        action = _begin(plain, offered.action_bytes, dice)
        noisy.begin_block(action)
        for quantum in range(offered.quanta_per_block):
            plain.step(quantum)
            noisy.step(quantum)
        plain.end_block()
        noisy.end_block()
        faults = twins.faults(block)
        if faults:
            break
    constants = _constants(found, paths)
    return ColdProof(
        engine=engine.name,
        engine_version=engine.version,
        preset=preset,
        blocks=blocks,
        state_bytes=region_bytes(tree),
        cold={path: raw(found[path]).numel() for path in paths},
        constants={path: fill for path, fill in constants.items() if held.get(path) == fill},
        faults=faults,
    )


class _Twins:
    """Two sessions of one seed, `noisy` with noise in its cold leaves."""

    def __init__(self, plain: EngineSession, noisy: EngineSession, paths: Sequence[str]) -> None:
        self._sessions = (plain, noisy)
        self._paths = paths
        self._crcs = [self._cold_crcs(session) for session in self._sessions]

    def _cold_crcs(self, session: EngineSession) -> dict[str, int]:
        found = leaves(session.state_tree())
        return {path: _crc(found[path]) for path in self._paths}

    def faults(self, block: int) -> dict[str, str]:
        """What is wrong after a block."""
        faults: dict[str, str] = {}
        for before, session in zip(self._crcs, self._sessions, strict=True):
            now = self._cold_crcs(session)
            faults |= {path: f"block {block} has written it" for path in self._paths if now[path] != before[path]}
        plain, noisy = self._sessions
        if plain.readout() != noisy.readout():
            faults["readout"] = f"block {block} shows other frames where cold leaves hold noise: one of them is read"
        mine, theirs = leaves(plain.state_tree()), leaves(noisy.state_tree())
        for path in sorted({*mine, *theirs} - {*self._paths}):
            if path not in mine or path not in theirs or not torch.equal(raw(mine[path]), raw(theirs[path])):
                faults[path] = f"block {block} leaves other bytes where cold leaves hold noise: one of them is read"
        return faults


def _begin(session: EngineSession, action_bytes: int, dice: random.Random) -> bytes:
    """Begin a block with a random action. Returns it."""
    refused = ""
    for _ in range(_TRIED_ACTIONS):
        action = dice.randbytes(action_bytes or _ACTION_BYTES)
        try:
            session.begin_block(action)
        except BadRequest as error:
            refused = error.message
        else:
            return action
    raise BadRequest(f"none of {_TRIED_ACTIONS} random actions is one of this engine's: {refused}")


def _with_noise(tree: StateTree, paths: Sequence[str], seed: int) -> StateTree:
    """The same tree, its cold leaves overwritten in place."""
    noise = torch.Generator().manual_seed(seed)
    found = leaves(tree)
    for path in paths:
        leaf = found[path]
        assert isinstance(leaf, torch.Tensor)
        bits = _as_integers(leaf)
        if leaf.dtype is torch.bool:
            bits.bitwise_xor_(1)  # any other byte is no bool
        elif bits.numel():
            info = torch.iinfo(bits.dtype)
            drawn = torch.randint(info.min, info.max, bits.shape, dtype=bits.dtype, generator=noise)
            bits.copy_(drawn)
    return tree


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: noise in floats would be changed by whoever copies it."""
    tensor = tensor.detach()
    if tensor.element_size() == 16:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_AS_INTEGER[tensor.element_size()])


def _constants(found: Mapping[str, StateLeaf], paths: Sequence[str]) -> dict[str, bytes]:
    """The element that each tensor of these holds over and over; nothing of one that holds different ones."""
    constants: dict[str, bytes] = {}
    for path in paths:
        leaf = found.get(path)
        if not isinstance(leaf, torch.Tensor) or not leaf.numel():
            continue
        data = raw(leaf)
        if not data.any():
            constants[path] = ZERO
            continue
        elements = data.view(-1, leaf.element_size())
        if bool((elements == elements[0]).all()):
            constants[path] = bytes(elements[0].tolist())
    return constants


def _crc(leaf: StateLeaf) -> int:
    return crc32(raw(leaf).cpu().numpy().data)

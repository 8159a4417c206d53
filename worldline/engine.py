"""The engine protocol: what a model implements so that Worldline can serve and move its sessions.

An engine is found through the entry-point group `worldline.engines`; the entry point names a callable that takes no
arguments and returns an `Engine`. `worldline.testing.engines` is the conformance suite to run on one.

A session's whole state is its *state tree*: nested mappings and sequences whose leaves are torch tensors, torch
generators and Python scalars (None, bool, int of 64 bits, float, str, bytes). Whatever the next block depends on is in
the tree, apart from the weights, which every host has and which the fingerprint names. Readouts are a function of the
tree alone: that is what lets the last one be asked again after a move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from worldline.contract import Contract
from worldline.errors import BadRequest, NotFound

if TYPE_CHECKING:
    import torch

StateLeaf: TypeAlias = "torch.Tensor | torch.Generator | bool | int | float | str | bytes | None"
StateTree: TypeAlias = "StateLeaf | Mapping[str, StateTree] | Sequence[StateTree]"

GROUP = "worldline.engines"


@dataclass(frozen=True, slots=True)
class Preset:
    """One size of an engine, as it is offered to players.

    `state_bytes` bounds the region of one session (used to refuse before memory is taken). `action_bytes` is the size
    of one action, 0 for any. `quanta_per_block` quanta make one block. `contract` is what it is served under when the
    player asks for nothing else; its horizon is sensible for this preset's own block time.
    """

    name: str
    state_bytes: int
    action_bytes: int
    quanta_per_block: int
    contract: Contract


@dataclass(frozen=True, slots=True)
class Readout:
    """What one block shows: `data` is frames x height x width x channels bytes, row-major."""

    frames: int
    height: int
    width: int
    channels: int
    data: bytes


@runtime_checkable
class EngineSession(Protocol):
    """One session's state and the next-block function. Called from one thread at a time."""

    def begin_block(self, action: bytes) -> None:
        """Take the action of the next block. Raises BadRequest if it is not an action, and changes nothing then."""

    def step(self, quantum: int) -> None:
        """Run quantum `quantum` (0 .. quanta_per_block - 1) of the block. Not preemptible."""

    def end_block(self) -> None:
        """Close the block: the state is at a block boundary again."""

    def readout(self) -> Readout:
        """The last block's frames: a function of the state tree alone. Only at a block boundary, after block 0."""

    def state_tree(self) -> StateTree:
        """The whole state, at a block boundary. Paths, dtypes and shapes are the same at every boundary."""

    def dirty_bytes_per_block(self) -> int:
        """Bytes one block rewrites, counted by the engine itself."""

    def cold_paths(self) -> Sequence[str]:
        """Paths of the leaves that no block writes and no block reads."""


@runtime_checkable
class Engine(Protocol):
    """A model. One instance a host; its weights are shared by its sessions."""

    name: str
    version: str

    def presets(self) -> Mapping[str, Preset]:
        """The sizes it is offered in, by name."""

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        """What results depend on beside torch and the device: at least "weights", a digest of the weights."""

    def create(self, preset: str, seed: int) -> StateTree:
        """A new session's state tree before its first block. Deterministic from the seed."""

    def load(self, preset: str, tree: StateTree) -> EngineSession:
        """A session that lives in `tree`: it writes its tensors in place and does not copy them.

        The tensors may be views of one arena. A tensor the engine replaces instead of writing in place is found and
        flattened back at each freeze, which is charged to the session. Strides may differ from those the engine made:
        a leaf that shares no memory with another comes back contiguous.
        """


@runtime_checkable
class DeviceEngine(Engine, Protocol):
    """An engine that can serve on a GPU. Others serve on the CPU only."""

    def use_device(self, device: torch.device) -> None:
        """Called once, before anything else: `create` puts tensors there, `load` computes there from now on.

        Work is queued on the calling thread's current stream, or joined to it before `end_block` returns.
        """


def installed() -> dict[str, Engine]:
    """Every engine of the entry-point group, by its entry point's name.

    Raises:
        BadRequest: an entry point that does not give an `Engine`, or one whose name is not its entry point's.
    """
    engines: dict[str, Engine] = {}
    for point in entry_points(group=GROUP):
        engine = point.load()()
        if not isinstance(engine, Engine) or engine.name != point.name:
            raise BadRequest(f"entry point {point.name!r} ({point.value}) does not give an engine of that name")
        engines[point.name] = engine
    return engines


def preset_of(engine: Engine, preset: str) -> Preset:
    """The preset of that name. Raises NotFound with the names there are."""
    presets = engine.presets()
    if preset not in presets:
        raise NotFound(
            f"engine {engine.name!r} has no preset {preset[:64]!r}; it has {', '.join(sorted(presets))}",
            reason="UNKNOWN_PRESET",
            resource=("preset", preset[:64]),
        )
    return presets[preset]

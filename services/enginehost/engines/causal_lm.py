"""Causal language models of Hugging Face's `transformers` as sessions: an append-only cache of keys and values.

A block takes the player's tokens and answers `BLOCK_TOKENS` tokens, greedily. The cache is a static one whose tensors
are the session's leaves, written in place. Each answered token is shown with a checksum of its logits, so that a
difference anywhere shows, not only one that changes a choice.

`tiny-qwen2` is a small model with random weights. More come from `TRANSFORMERS_MODELS`, as `name=folder,...`; nothing
is downloaded. Without `transformers` (the extra `transformers`) the engine offers nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from worldline.contract import Contract, ContractClass, Tier
from worldline.crc import crc32
from worldline.engine import Preset, Readout, StateLeaf, StateTree, preset_of
from worldline.errors import BadRequest, Mismatch, Unsupported, WrongState
from worldline.layout import aligned

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MODELS = "TRANSFORMERS_MODELS"
BUILT_IN = "tiny-qwen2"
BLOCK_TOKENS = 8
MAX_ACTION_TOKENS = 64
PROMPT_TOKENS = 8
_TOKEN_BYTES = 4
_CONTEXT_TOKENS = 4096  # of a session, unless its model has fewer positions
_WEIGHTS_SEED = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """The cache of one model: `context` tokens of `heads` x `head_dim` keys, and as many values, in each layer."""

    layers: int
    heads: int
    head_dim: int
    context: int
    vocabulary: int
    dtype: torch.dtype

    @staticmethod
    def of(config: PreTrainedConfig) -> Shape:
        """From a model's configuration. Raises Unsupported for one whose layers do not all attend to everything."""
        from transformers import StaticCache
        from transformers.cache_utils import StaticLayer

        text = config.get_text_config(decoder=True)
        context = min(int(text.max_position_embeddings), _CONTEXT_TOKENS)
        kinds = {type(layer) for layer in StaticCache(config=config, max_cache_len=context).layers}
        if kinds != {StaticLayer}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise Unsupported(f"{type(config).__name__} caches in {names}; only models of full attention are served")
        heads = int(text.num_attention_heads)
        return Shape(
            layers=int(text.num_hidden_layers),
            heads=int(getattr(text, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            context=context,
            vocabulary=int(text.vocab_size),
            dtype=_dtype(text.dtype),
        )

    @property
    def token_bytes(self) -> int:
        """What one token takes in all layers."""
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize

    @property
    def cache(self) -> tuple[int, int, int, int]:
        """Shape of a layer's keys, and of its values."""
        return (1, self.heads, self.context, self.head_dim)

    def tensors(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Path -> shape and dtype of every tensor of the state."""
        caches = {f"{layer:03}/{part}": (self.cache, self.dtype) for layer in range(self.layers) for part in "kv"}
        return {**caches, "shown": ((BLOCK_TOKENS, 2), torch.int64), "tokens": ((self.context,), torch.int64)}

    def state_bytes(self) -> int:
        """Bytes of a region."""
        parts = self.tensors().values()
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in parts]
        return sum(aligned(size) for size in (*sizes, 8, 8, 8))


_BUILT_IN_SHAPE = Shape(layers=3, heads=2, head_dim=32, context=128, vocabulary=512, dtype=torch.float32)


def _dtype(named: torch.dtype | str | None) -> torch.dtype:
    """A configuration that was read from a file may name it."""
    found = getattr(torch, named) if isinstance(named, str) else named or torch.float32
    if not isinstance(found, torch.dtype):
        raise Unsupported(f"{named} is no dtype of torch {torch.__version__}")
    return found


class CausalLmEngine:
    """The engine `transformers`. See `worldline.engine.DeviceEngine`."""

    name = "transformers"
    version = "1"

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._folders = _folders(os.environ.get(MODELS, ""))
        self._configs: dict[str, PreTrainedConfig] = {}
        self._models: dict[str, PreTrainedModel] = {}
        self._loading = threading.RLock()

    def use_device(self, device: torch.device) -> None:
        """Models and caches lie there from now on."""
        self._device = device

    def presets(self) -> Mapping[str, Preset]:
        """`tiny-qwen2` and the models that `TRANSFORMERS_MODELS` names."""
        if importlib.util.find_spec("transformers") is None:
            return {}
        contract = Contract(ContractClass.C1, 5.0, Tier.T0)
        return {
            name: Preset(name, self.shape(name).state_bytes(), 0, BLOCK_TOKENS, contract)
            for name in (BUILT_IN, *self._folders)
        }

    def shape(self, preset: str) -> Shape:
        """The cache's shape. That of `tiny-qwen2` is known without importing `transformers`, which takes seconds."""
        return Shape.of(self._config(preset)) if preset in self._folders else _BUILT_IN_SHAPE

    def fingerprint(self, preset: str) -> Mapping[str, str]:
        """The weights' digest, and the release that computes with them."""
        from transformers import __version__

        sha = hashlib.sha256()
        for name, tensor in sorted(self.model(preset).state_dict().items()):
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            sha.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode() + plain.numpy().tobytes())
        return {"weights": sha.hexdigest(), "transformers": __version__}

    def create(self, preset: str, seed: int) -> StateTree:
        """A session with a prompt of random tokens."""
        shape = self.shape(preset_of(self, preset).name)
        noise = torch.Generator().manual_seed(seed % (1 << 63))
        leaves: dict[str, StateLeaf] = {
            path: torch.zeros(size, dtype=dtype, device=self._device) for path, (size, dtype) in shape.tensors().items()
        }
        tokens = leaves["tokens"]
        prompt = torch.randint(0, shape.vocabulary, (PROMPT_TOKENS,), generator=noise)
        if isinstance(tokens, torch.Tensor):
            tokens[:PROMPT_TOKENS].copy_(prompt)
        return _nested({**leaves, "blocks": 0, "cached": 0, "count": PROMPT_TOKENS})

    def load(self, preset: str, tree: StateTree) -> CausalLmSession:
        """A session whose cache is in `tree`. Raises Mismatch if it is not a tree of the preset."""
        shape = self.shape(preset_of(self, preset).name)
        tensors, numbers = _checked(shape, tree, self._device)
        return CausalLmSession(self.model(preset), shape, tensors, numbers)

    def model(self, preset: str) -> PreTrainedModel:
        """The model, loaded when it is first used."""
        from transformers import AutoModelForCausalLM

        with self._loading:
            if preset not in self._models:
                if preset in self._folders:
                    model = AutoModelForCausalLM.from_pretrained(self._folders[preset], local_files_only=True)
                else:
                    with torch.random.fork_rng(devices=[]):
                        torch.manual_seed(_WEIGHTS_SEED)
                        model = AutoModelForCausalLM.from_config(self._config(preset))  # type: ignore[no-untyped-call]
                model.to(self._device)  # type: ignore[arg-type]  # a decorator there hides its arguments
                self._models[preset] = model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
            return self._models[preset]

    def _config(self, preset: str) -> PreTrainedConfig:
        from transformers import AutoConfig, Qwen2Config

        with self._loading:
            if preset not in self._configs:
                self._configs[preset] = (
                    AutoConfig.from_pretrained(self._folders[preset], local_files_only=True)
                    if preset in self._folders
                    else Qwen2Config(
                        vocab_size=_BUILT_IN_SHAPE.vocabulary,
                        hidden_size=2 * _BUILT_IN_SHAPE.heads * _BUILT_IN_SHAPE.head_dim,
                        intermediate_size=256,
                        num_hidden_layers=_BUILT_IN_SHAPE.layers,
                        num_attention_heads=2 * _BUILT_IN_SHAPE.heads,
                        num_key_value_heads=_BUILT_IN_SHAPE.heads,
                        max_position_embeddings=_BUILT_IN_SHAPE.context,
                        dtype=_BUILT_IN_SHAPE.dtype,
                    )
                )
            return self._configs[preset]


class CausalLmSession:
    """One session. Its cache's tensors stay where `load` found them."""

    def __init__(
        self, model: PreTrainedModel, shape: Shape, tensors: dict[str, torch.Tensor], numbers: dict[str, int]
    ) -> None:
        self._model = model
        self._shape = shape
        self._tensors = tensors
        self._numbers = numbers
        self._cache = _cache_over(model, shape, tensors, numbers["cached"])
        self._next: int | None = None

    def begin_block(self, action: bytes) -> None:
        """`action`: up to `MAX_ACTION_TOKENS` token ids, each a little-endian int32.

        Raises:
            BadRequest: not such tokens, or more than the session's context has room for.
        """
        self._require(None)
        count = len(action) // _TOKEN_BYTES
        if len(action) % _TOKEN_BYTES or count > MAX_ACTION_TOKENS:
            raise BadRequest(
                f"an action of {len(action)} bytes; it is up to {MAX_ACTION_TOKENS} tokens of {_TOKEN_BYTES} bytes",
                violations={"action": "not whole tokens, or too many"},
            )
        given = struct.unpack(f"<{count}i", action)
        if any(not 0 <= token < self._shape.vocabulary for token in given):
            raise BadRequest(f"a token is not in 0 .. {self._shape.vocabulary - 1}", violations={"action": "no token"})
        at = self._numbers["count"]
        if at + count + BLOCK_TOKENS > self._shape.context:
            raise BadRequest(
                f"{count} tokens and {BLOCK_TOKENS} answered ones do not fit: {at} of {self._shape.context} are taken",
                reason="CONTEXT_FULL",
                violations={"action": "the session's context is full"},
            )
        if count:
            self._tokens[at : at + count].copy_(torch.tensor(given))
        self._numbers["count"] = at + count
        self._next = 0

    def step(self, quantum: int) -> None:
        """One token. Raises WrongState if it is not the next one."""
        self._require(quantum)
        cached, count = self._numbers["cached"], self._numbers["count"]
        with torch.no_grad():
            made = self._model(
                input_ids=self._tokens[cached:count].view(1, -1), past_key_values=self._cache, use_cache=True
            )
            logits = made.logits[0, -1]
            token = int(logits.argmax())
        self._tokens[count] = token
        self._tensors["shown"][quantum].copy_(torch.tensor([token, crc32(logits.float().cpu().numpy().tobytes())]))
        self._numbers.update(cached=count, count=count + 1)
        self._next = quantum + 1

    def end_block(self) -> None:
        """Raises WrongState unless every token was made."""
        self._require(BLOCK_TOKENS)
        self._numbers["blocks"] += 1
        self._next = None

    def readout(self) -> Readout:
        """The last block's tokens, and the CRC-32 of each one's logits: two little-endian int64 each."""
        self._require(None)
        if not self._numbers["blocks"]:
            raise WrongState("no block has been played yet: there is nothing to read out")
        return Readout(1, BLOCK_TOKENS, 2, 8, self._tensors["shown"].cpu().numpy().tobytes())

    def state_tree(self) -> StateTree:
        """The tree that was loaded, with its numbers as they are now."""
        self._require(None)
        return _nested({**self._tensors, **self._numbers})

    def dirty_bytes_per_block(self) -> int:
        """The cache of a block's tokens, as many as there may be, and the tokens themselves."""
        tokens = BLOCK_TOKENS + MAX_ACTION_TOKENS
        shown_bytes = BLOCK_TOKENS * 2 * 8
        return min(tokens * (self._shape.token_bytes + 8) + shown_bytes + 24, self._shape.state_bytes())

    def cold_paths(self) -> Sequence[str]:
        """None: what is appended is read by every later block."""
        return ()

    @property
    def _tokens(self) -> torch.Tensor:
        return self._tensors["tokens"]

    def _require(self, expected: int | None) -> None:
        if self._next != expected:
            at = "at a block boundary" if self._next is None else f"before quantum {self._next}"
            raise WrongState(f"the session is {at}, not where this call belongs")


def _cache_over(model: PreTrainedModel, shape: Shape, tensors: Mapping[str, torch.Tensor], cached: int) -> Any:  # noqa: ANN401
    """A static cache of `transformers` whose keys and values are the state's own tensors."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=shape.context)
    # Their types know less than they have.
    layers: Sequence[Any] = cache.layers
    for number, layer in enumerate(layers):
        layer.keys, layer.values = tensors[f"{number:03}/k"], tensors[f"{number:03}/v"]
        layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        layer.batch_size, layer.num_heads = layer.keys.shape[:2]
        layer.k_head_dim = layer.v_head_dim = layer.keys.shape[-1]
        layer.cumulative_length = torch.tensor(cached, device=layer.device)
        layer.is_initialized = True
    return cache


def _checked(shape: Shape, tree: StateTree, device: torch.device) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Tensors by path, and numbers. Raises Mismatch with every difference."""
    flat = _flat(tree)
    wanted = shape.tensors()
    numbers = {name: flat.get(name) for name in ("blocks", "cached", "count")}
    wrong = {
        path: "not as the preset has it"
        for path, (size, dtype) in wanted.items()
        if not isinstance(leaf := flat.get(path), torch.Tensor)
        or (leaf.shape, leaf.dtype, leaf.device) != (size, dtype, device)
        or not leaf.is_contiguous()
    }
    wrong.update({name: "no number" for name, value in numbers.items() if type(value) is not int})
    wrong.update(dict.fromkeys(flat.keys() - wanted.keys() - numbers.keys(), "not a leaf of this preset"))
    if not wrong and not 0 <= int(numbers["cached"]) < int(numbers["count"]) <= shape.context:  # type: ignore[arg-type]
        wrong["count"] = "out of the context"
    if wrong:
        raise Mismatch("not a state of this preset: " + ", ".join(sorted(wrong)[:8]), violations=wrong)
    tensors = {path: leaf for path in wanted if isinstance(leaf := flat[path], torch.Tensor)}
    return tensors, {name: value for name, value in numbers.items() if isinstance(value, int)}


def _nested(leaves: Mapping[str, StateLeaf]) -> StateTree:
    """The tree: one mapping a layer, and what is no layer's beside them."""
    tree: dict[str, StateTree] = {path: leaf for path, leaf in leaves.items() if "/" not in path}
    layers: dict[str, dict[str, StateTree]] = {}
    for path, leaf in leaves.items():
        layer, slash, part = path.partition("/")
        if slash:
            layers.setdefault(layer, {})[part] = leaf
    return {**layers, **tree}


def _flat(tree: StateTree) -> dict[str, StateTree]:
    """Leaves by path."""
    flat: dict[str, StateTree] = {}
    for name, below in tree.items() if isinstance(tree, Mapping) else ():
        if isinstance(below, Mapping):
            flat.update({f"{name}/{key}": leaf for key, leaf in below.items()})
        else:
            flat[name] = below
    return flat


def _folders(listed: str) -> dict[str, str]:
    """`name=folder,...`. Raises BadRequest."""
    found = {}
    for entry in filter(None, listed.split(",")):
        name, _, folder = entry.partition("=")
        if not name or not folder or name == BUILT_IN:
            raise BadRequest(f"{MODELS}: {entry[:64]!r} is not name=folder", violations={MODELS: "name=folder,..."})
        found[name] = folder
    return found

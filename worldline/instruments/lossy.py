"""The paper's kill family: each lossy way to carry less of the state, applied to it, and what the session then shows.

Only leaves that a block reads are changed: floating-point tensors of two dimensions or more that are not cold. Rows are
what lies along the dimension of their window; those that are all zeros are not filled yet, and stay, as do leaves with
infinities. All four are gentle settings of ideas that keep a language model's text good; here it only counts whether
the continuation is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from worldline.instruments.geometry import Fate, Half, LeafClass
from worldline.instruments.twin import Continuation, Reference

SHARE = 0.1
_INT8_MOST = 127.0


@dataclass(frozen=True, slots=True)
class Loss:
    """What one handle did: share of the elements of `leaves` leaves that it changed, the relative error that makes
    (root mean square), and how the session went on."""

    name: str
    what: str
    leaves: int
    changed_share: float
    relative_error: float
    went_on: Continuation


@dataclass(frozen=True, slots=True)
class Handle:
    """A lossy handle: gives a part of a leaf, as float32 with its rows along dimension 0, as it would be afterwards."""

    name: str
    what: str
    apply: Callable[[torch.Tensor], torch.Tensor]


def evict(part: torch.Tensor) -> torch.Tensor:
    """The tenth of the filled rows with the smallest norms, as zeros."""
    kept = part.clone()
    norms = torch.linalg.vector_norm(part.reshape(part.shape[0], -1), dim=1)
    filled = norms.nonzero().view(-1)
    kept[filled[norms[filled].argsort()[: _count(filled)]]] = 0
    return kept


def quantize(part: torch.Tensor) -> torch.Tensor:
    """To 8-bit integers and back, each channel (last dimension) with a scale of its own."""
    scale = part.abs().amax(tuple(range(part.dim() - 1)), keepdim=True) / _INT8_MOST
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (part / scale).round().clamp(-_INT8_MOST, _INT8_MOST) * scale


def low_rank(part: torch.Tensor) -> torch.Tensor:
    """The best approximation of half the rank, of rows x channels for each head apart."""
    heads = part.movedim(0, -2)
    # The right singular vectors are the eigenvectors of the channels' Gram matrix, which is small.
    _, vectors = torch.linalg.eigh(heads.transpose(-1, -2) @ heads)
    rank = max(1, min(heads.shape[-2:]) // 2)
    kept = vectors[..., -rank:]
    projected: torch.Tensor = heads @ kept @ kept.transpose(-1, -2)
    return projected.movedim(-2, 0)


def merge(part: torch.Tensor) -> torch.Tensor:
    """The tenth of the filled rows most like the filled row before them, as that row."""
    rows = part.reshape(part.shape[0], -1)
    filled = rows.any(1).nonzero().view(-1)
    alike = torch.nn.functional.cosine_similarity(rows[filled[1:]], rows[filled[:-1]], dim=1)
    chosen = alike.argsort(descending=True)[: _count(filled)]
    merged = part.clone()
    merged[filled[chosen + 1]] = part[filled[chosen]]
    return merged


HANDLES = (
    Handle("eviction", "a tenth of the filled rows, those of the smallest norm, set to zero", evict),
    Handle("quantization", "int8 and back, one scale a channel", quantize),
    Handle("low-rank", "half the rank, each head by itself", low_rank),
    Handle("dedup", "a tenth of the filled rows, those most like the one before, replaced by it", merge),
)


def run(reference: Reference, classes: Sequence[LeafClass]) -> Iterator[Loss]:
    """Each handle by itself, from the same state."""
    parts = [
        (path, half)
        for leaf_class in classes
        if not leaf_class.cold
        for half in leaf_class.halves
        if half.fate is Fate.READ
        for path in leaf_class.paths
    ]
    for handle in HANDLES:
        yield _lose(reference, handle, parts)


def _lose(reference: Reference, handle: Handle, parts: Sequence[tuple[str, Half]]) -> Loss:
    tree, leaves = reference.changed()
    touched = changed = elements = 0
    error = power = 0.0
    for path, half in parts:
        leaf = leaves[path]
        assert isinstance(leaf, torch.Tensor)
        if leaf.dim() < 2 or leaf.shape[half.dimension] < 2:
            continue
        part = half.of(leaf)
        before = part.float().clone()
        if not bool(torch.isfinite(before).all()):
            continue
        after = handle.apply(before.movedim(half.dimension, 0)).movedim(0, half.dimension).to(leaf.dtype)
        part.copy_(after)
        moved = part.float() - before
        touched += 1
        elements += moved.numel()
        changed += int((moved != 0).sum())
        error += float(moved.double().square().sum())
        power += float(before.double().square().sum())
    relative = (error / power) ** 0.5 if power else 0.0
    return Loss(
        handle.name, handle.what, touched, changed / elements if elements else 0.0, relative, reference.play_on(tree)
    )


def _count(filled: torch.Tensor) -> int:
    return max(1, round(SHARE * filled.numel()))

"""The motion set: what a move of a session sends. Cold leaves of one constant can be made at the destination instead.

Both receipts bind the made bytes too. Should an engine write a leaf that was proven cold (`enginehost.cold_proof`), the
source's checksums tell: no receipt is given, the session plays on, and from then on all of it is sent.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from enginehost.slots import Slot
from worldline.errors import Mismatch
from worldline.instruments.cold import ZERO
from worldline.layout import Layout, LeafKind, aligned
from worldline.made import Made, fill_crc
from worldline.plan import Plan

# Smaller stretches are sent: each one is a chunk of its own.
MIN_MADE_BYTES = 4096
# What a heartbeat tells of one session; the largest stretches count.
MOST_TOLD = 256
COLD_LEAF_WRITTEN = "COLD_LEAF_WRITTEN"


def made_of(layout: Layout, constants: Mapping[str, bytes]) -> tuple[Made, ...]:
    """What of a region can be made: leaves (by path) that hold a constant, joined where only padding is between them.

    Leaves that share memory are sent.
    """
    members = Counter(leaf.group for leaf in layout.leaves)
    found: list[Made] = []
    for leaf in sorted(layout.leaves, key=lambda leaf: leaf.offset):
        fill = constants.get(leaf.path)
        if fill is None or leaf.kind is not LeafKind.TENSOR or members[leaf.group] > 1 or not leaf.size_bytes:
            continue
        end = leaf.offset + leaf.size_bytes
        before = found[-1] if found else None
        # Padding is zeros, and goes with zeros.
        reach = before and (aligned(before.end) if fill == ZERO else before.end)
        if before and before.fill == fill and reach == leaf.offset:
            found[-1] = Made(before.offset, end - before.offset, fill)
        else:
            found.append(Made(leaf.offset, leaf.size_bytes, fill))
    large = sorted((item for item in found if item.size_bytes >= MIN_MADE_BYTES), key=lambda item: -item.size_bytes)
    return tuple(sorted(large[:MOST_TOLD], key=lambda item: item.offset))


def make(slot: Slot, plan: Plan) -> None:
    """Write what the plan makes into a fresh slot, whose memory is zeros.

    Raises:
        BadRequest: the plan does not fit the slot's region.
    """
    plan.chunks(slot.layout.region_bytes)
    others = [item for item in plan.made if any(item.fill)]
    if others:
        with slot.device.aside():
            _write(slot.arena.tensor(), others)
            slot.device.settle()


def make_in_buffer(address: int, size_bytes: int, plan: Plan) -> None:
    """Write what the plan makes into host memory that a mover checks before the device does; it may hold anything."""
    buffer = (ctypes.c_uint8 * size_bytes).from_address(address)
    _write(torch.frombuffer(buffer, dtype=torch.uint8), plan.made)


def _write(region: torch.Tensor, made: Sequence[Made]) -> None:
    for item in made:
        fill = torch.tensor(list(item.fill), dtype=torch.uint8, device=region.device)
        region[item.offset : item.end].view(-1, len(item.fill)).copy_(fill)


def require_constant(layout: Layout, made: Sequence[Made], plan: Plan, chunk_crcs: Sequence[int]) -> None:
    """Refuse a source's checksums of what the plan makes, unless they are those of its constants.

    `made` is what this host has told that a move may make.

    Raises:
        Mismatch: MOTION_SET, the plan makes other stretches; COLD_LEAF_WRITTEN, with the leaves.
    """
    unknown = [item for item in plan.made if item not in made]
    if unknown:
        raise Mismatch(
            f"the plan makes {unknown[0].size_bytes} bytes at {unknown[0].offset} instead of sending them, which this "
            "host has not proven to be cold: plan the move again",
            reason="MOTION_SET",
            numbers={"stretches": len(unknown), "offset": unknown[0].offset},
            violations={"plan.made": "not what this host has proven"},
            retry_after_s=1.0,
        )
    chunks = plan.chunks(layout.region_bytes)
    written = [
        chunk
        for chunk, crc in zip(chunks, chunk_crcs, strict=True)
        if chunk.fill and crc != fill_crc(chunk.fill, chunk.size_bytes)
    ]
    if not written:
        return
    paths = [
        leaf.path
        for leaf in layout.leaves
        if any(
            leaf.offset < chunk.offset + chunk.size_bytes and chunk.offset < leaf.offset + leaf.size_bytes
            for chunk in written
        )
    ]
    raise Mismatch(
        f"{len(written)} chunks of cold leaves are not constant any more, first chunk {written[0].index} at offset "
        f"{written[0].offset}; in them lie {', '.join(paths[:8])}. The engine writes what it declares cold. Nothing is "
        "installed, the source plays on, and from now on moves send all of this session",
        reason=COLD_LEAF_WRITTEN,
        numbers={"chunks": len(written), "chunk": written[0].index, "offset": written[0].offset},
        violations=dict.fromkeys(paths[:256], "declared cold, but written"),
        retry_after_s=1.0,
    )

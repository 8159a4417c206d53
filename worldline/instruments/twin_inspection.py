"""A session of this process, inspected like one on a host (`worldline inspect --engine`)."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator

from worldline.crc import crc32
from worldline.errors import Mismatch
from worldline.instruments import compress
from worldline.instruments.pieces import cut, default_piece_bytes
from worldline.instruments.region import Region, lay
from worldline.instruments.snapshot import Boundary, Coded, Subject
from worldline.instruments.twin import Twin
from worldline.layout import Layout
from worldline.plan import Chunk


def inspect(twin: Twin, blocks: int, piece_bytes: int = 0, one_in: int = 1) -> Iterator[Subject | Boundary | Coded]:
    """Plays `blocks` blocks; gives what a host does, in the same order. `piece_bytes` 0: what suits the state.

    Raises:
        BadRequest: sizes out of bounds.
        Mismatch: the state changes its layout.
    """
    layout = lay(twin.session.state_tree()).layout
    pieces = cut(layout, piece_bytes or default_piece_bytes(layout.region_bytes), one_in)
    yield Subject(
        name=f"played here, seed {twin.seed}",
        engine=twin.engine.name,
        preset=twin.preset.name,
        layout=layout,
        piece_bytes=pieces.piece_bytes,
        cold_paths=frozenset(twin.session.cold_paths()),
        dirty_bytes_per_block=twin.session.dirty_bytes_per_block(),
        block_s=twin.block_s,
    )
    yield _boundary(twin, layout, pieces.chunks)
    for _ in range(blocks):
        twin.play()
        yield _boundary(twin, layout, pieces.chunks)
    content = _laid(twin, layout).content
    yield from compress.code(
        layout,
        {
            place: content[place.offset : place.offset + place.size_bytes].numpy().tobytes()
            for place in compress.places(layout)
        },
    )


def _boundary(twin: Twin, layout: Layout, chunks: tuple[Chunk, ...]) -> Boundary:
    started_s = time.monotonic()
    data = _laid(twin, layout).content.numpy().data
    crcs = array("I", [crc32(data[chunk.offset : chunk.offset + chunk.size_bytes]) for chunk in chunks])
    return Boundary(twin.next_block, crcs, time.monotonic() - started_s)


def _laid(twin: Twin, layout: Layout) -> Region:
    region = lay(twin.session.state_tree())
    if region.layout != layout:
        raise Mismatch(
            f"before block {twin.next_block} the state has other paths, dtypes, shapes or sharing than when this began",
            reason="LAYOUT_DRIFT",
        )
    return region

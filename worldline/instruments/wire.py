"""Messages of `InspectSession` <-> what a host found; beside `worldline.wire`, which everything else goes through."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from worldline.errors import BadRequest
from worldline.instruments.snapshot import Boundary, Coded, Subject
from worldline.v1 import engine_host_service_pb2 as pb
from worldline.wire import layout_from, layout_to


def found_to(found: Subject | Boundary | tuple[Coded, ...]) -> pb.InspectSessionResponse:
    """To the wire."""
    if isinstance(found, Subject):
        session = pb.InspectedSession(
            session_id=found.name,
            engine=found.engine,
            preset=found.preset,
            layout=layout_to(found.layout),
            piece_bytes=found.piece_bytes,
            cold_paths=sorted(found.cold_paths),
            dirty_bytes_per_block=found.dirty_bytes_per_block,
            block_s=found.block_s,
        )
        return pb.InspectSessionResponse(session=session)
    if isinstance(found, Boundary):
        boundary = pb.InspectedBoundary(next_block=found.next_block, piece_crcs=found.crcs, still_s=found.still_s)
        return pb.InspectSessionResponse(boundary=boundary)
    leaves = [
        pb.InspectedLeaf(
            path=item.path, sampled_bytes=item.sampled_bytes, wire_bytes=item.wire_bytes, plane_bytes=item.planes
        )
        for item in found
    ]
    return pb.InspectSessionResponse(codec=pb.InspectedCodec(leaves=leaves))


def found_from(response: pb.InspectSessionResponse) -> Iterator[Subject | Boundary | Coded]:
    """From the wire. Raises BadRequest for a message without content, or a layout that lies."""
    kind = response.WhichOneof("message")
    if kind == "session":
        session = response.session
        yield Subject(
            name=session.session_id,
            engine=session.engine,
            preset=session.preset,
            layout=layout_from(session.layout),
            piece_bytes=session.piece_bytes,
            cold_paths=frozenset(session.cold_paths),
            dirty_bytes_per_block=session.dirty_bytes_per_block,
            block_s=session.block_s,
        )
    elif kind == "boundary":
        boundary = response.boundary
        yield Boundary(boundary.next_block, array("I", boundary.piece_crcs), boundary.still_s)
    elif kind == "codec":
        for leaf in response.codec.leaves:
            yield Coded(leaf.path, leaf.sampled_bytes, leaf.wire_bytes, tuple(leaf.plane_bytes))
    else:
        raise BadRequest("an answer of InspectSession without content", violations={"message": "one of three"})

"""What this host says of a session."""

from __future__ import annotations

from enginehost.ownership import State
from enginehost.session import Session
from worldline import wire
from worldline.compressibility import Compressibility
from worldline.v1 import engine_host_service_pb2 as pb


def session_info(session: Session) -> pb.SessionInfo:
    """The session as it stands now; for one that is gone, where it went."""
    with session.cond:
        copy, moved, owner = session.copy, session.moved, session.ownership
        descriptor = copy.descriptor if copy is not None else session.descriptor
        sample = session.sample
        return pb.SessionInfo(
            descriptor=None if descriptor is None else wire.descriptor_to(descriptor),
            state=int(owner.state),  # type: ignore[arg-type]
            epoch=owner.epoch,
            next_block=session.next_block,
            state_bytes=0 if copy is None else copy.slot.layout.region_bytes,
            dirty_bytes_per_block=session.dirty_bytes_per_block,
            cold_bytes=session.cold_bytes,
            block_s=session.block_s,
            flattened_bytes=session.flattened_bytes,
            move_id=owner.move_id,
            moved_to=moved.public_address if moved is not None and owner.state is State.GONE else "",
            host_memory_bytes=0 if copy is None or session.host_copy is None else copy.slot.layout.region_bytes,
            leaf_count=0 if copy is None else len(copy.slot.layout.leaves),
            compressibility=None if sample is None else _compressibility_to(sample.compressibility),
            made=() if copy is None else wire.made_to(copy.made),
        )


def _compressibility_to(found: Compressibility) -> pb.Compressibility:
    return pb.Compressibility(
        ratio=found.ratio, encode_bytes_per_s=found.encode_Bps, decode_bytes_per_s=found.decode_Bps
    )

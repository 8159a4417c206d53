"""What coded moves say of a codec on a path, and what the rules are told of one: its share and its rates.

Share and rates are tracks as those of the path are (`estimators.py`). Before a coded move was measured, the sample that
a session's host took stands in, with the threads that its movers have.
"""

from __future__ import annotations

from dataclasses import dataclass

from admission.facts import MoverFacts
from admission.rules import Codec
from worldline.compressibility import Compressibility
from worldline.v1 import mover_service_pb2 as mover_pb


@dataclass(frozen=True, slots=True)
class CodedMove:
    """What one coded move measured: the share of what the codec looked at that was left, and seconds for each byte of
    state, all threads together. None: it says nothing of that.
    """

    ratio: float | None
    encode_s_per_byte: float | None
    decode_s_per_byte: float | None


@dataclass(frozen=True, slots=True)
class MeasuredCodec:
    """A codec on a path as coded moves measured it: bounds, which hardly a move is worse than."""

    ratio: float
    encode_Bps: float
    decode_Bps: float


def coded_move(last: mover_pb.MoveResponse, streams: int, made_bytes: int = 0) -> CodedMove | None:
    """What the last message of a move tells of its codec; None if it was not coded.

    Bytes that went raw because the wire was free are not the codec's share, nor are the `made_bytes` of its plan.
    """
    if not last.encode_threads:
        return None
    looked_bytes = last.total_bytes - made_bytes - last.late_bytes
    left_bytes = last.wire_bytes - last.late_bytes
    encode_Bps = last.encode_bytes_per_s * last.encode_threads
    decode_Bps = last.decode_bytes_per_s * (last.decode_threads or streams)
    return CodedMove(
        left_bytes / looked_bytes if looked_bytes > 0 and 0 <= left_bytes <= looked_bytes else None,
        1 / encode_Bps if encode_Bps > 0 else None,
        1 / decode_Bps if decode_Bps > 0 else None,
    )


def codec_for(
    name: str, sample: Compressibility | None, measured: MeasuredCodec | None, movers: tuple[MoverFacts, ...]
) -> Codec | None:
    """The codec as the rules are told of it; None where nobody knows its share.

    The share is the session's own where its host has told it, for sessions differ more than paths. The rates are the
    path's where moves have measured them, for what else its movers do is in them.
    """
    if measured is not None:
        ratio = sample.ratio if sample else measured.ratio
        return Codec(name, ratio, measured.encode_Bps, measured.decode_Bps, beside=True)
    if sample is None:
        return None
    threads = min((mover.codec_threads for mover in movers), default=1) or 1
    return Codec(name, sample.ratio, sample.encode_Bps * threads, sample.decode_Bps * threads, beside=True)

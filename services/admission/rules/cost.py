"""Cost model: what each stage of a move takes, T = setup + first touch + quantum + codec + wire + exposed (paper §4.1).

The wire carries the payload P (S, or r·S coded) at the share of B that a move gets among those into the same port.
Verification is what the placement leaves exposed of it (§6.5): all of S / B_crc in sequence, one last chunk when it is
pipelined, and on the receive path a slower wire. Nothing that was not told is charged, nothing that B contains twice.

A codec that works beside the wire codes the share of S that it keeps up with; the rest goes raw, so that P over B is
never longer than S over B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from admission.rules.question import Question
from worldline.plan import Placement


@dataclass(frozen=True, slots=True)
class Stages:
    """Predicted seconds of each stage, in order; `wire_s` is infinite where a live move never catches up."""

    setup_s: float
    first_touch_s: float
    quantum_s: float
    encode_s: float
    wire_s: float
    exposed_s: float
    decode_s: float

    @property
    def fixed_s(self) -> float:
        """What is paid beside the wire and what it leaves to verify."""
        return self.setup_s + self.first_touch_s + self.quantum_s + self.encode_s + self.decode_s

    @property
    def total_s(self) -> float:
        """T."""
        return self.fixed_s + self.exposed_s + self.wire_s


def fan_in(question: Question) -> int:
    """K: the moves into the destination's mover, this one among them."""
    return 1 + len(question.mover_moves)


def wire_Bps(question: Question) -> float:
    """What this move gets of the wire, bytes/s: the path under its ceilings, shared by the moves into its port."""
    rate_Bps = question.bandwidth_Bps
    if question.ceiling_Bps is not None:
        rate_Bps = min(rate_Bps, question.ceiling_Bps)
    if question.stream_Bps is not None:
        rate_Bps = min(rate_Bps, question.stream_Bps * question.streams)
    return rate_Bps / fan_in(question)


def crc_Bps(question: Question) -> float | None:
    """What this move gets of the destination's checksum engine, bytes/s; None if that was not told."""
    engine = question.destination_crc
    return engine.rate_Bps / fan_in(question) if engine else None


def coded_share(question: Question) -> float:
    """Of S, what the codec gets to: all of it, or beside the wire as much as it codes while S crosses."""
    codec = question.codec
    if codec is None or codec.ratio is None:
        return 0.0
    if not codec.beside or codec.encode_Bps is None:
        return 1.0
    return min(1.0, codec.encode_Bps / (wire_Bps(question) + (1 - codec.ratio) * codec.encode_Bps))


def payload_bytes(question: Question) -> float:
    """P: the bytes that cross the wire."""
    ratio = question.codec.ratio if question.codec else None
    if ratio is None:
        return float(question.sent_bytes)
    share = coded_share(question)
    return question.sent_bytes * (share * ratio + 1 - share)


def predict(question: Question) -> Stages:
    """The stages of this move under this plan."""
    codec, sent_bytes = question.codec, question.sent_bytes
    carried_s = _carried_s(question)
    verified_s = _verified_s(question, carried_s)
    if question.chunk_s:
        chunks = math.ceil(sent_bytes / question.chunk_bytes) + len(question.tail_bytes)
        carried_s += question.chunk_s * chunks / question.streams
        verified_s += question.chunk_s * chunks / question.streams
    exposed_s = question.exposed_s + (verified_s - carried_s if math.isfinite(carried_s) else 0.0)
    return Stages(
        setup_s=question.setup_s,
        first_touch_s=0.0 if question.slot_warm is not False else question.first_touch_s or 0.0,
        quantum_s=question.quantum_s or 0.0,
        encode_s=sent_bytes / codec.encode_Bps if codec and codec.encode_Bps and not codec.beside else 0.0,
        wire_s=carried_s,
        exposed_s=exposed_s,
        decode_s=sent_bytes / codec.decode_Bps if codec and codec.decode_Bps and not codec.beside else 0.0,
    )


def _carried_s(question: Question) -> float:
    """First to last byte: P over the wire less what is dirtied meanwhile (L*, eq. 2), no faster than the source checks.

    On the receive path the wire waits for the checksums and is slowed by them besides. A B that was measured with all
    that at work has it in it.
    """
    rate_Bps = wire_Bps(question) - question.dirty_Bps
    carried_s = payload_bytes(question) / rate_Bps if rate_Bps > 0 else math.inf
    codec = question.codec
    if codec and codec.beside and codec.decode_Bps:
        carried_s = max(carried_s, coded_share(question) * question.sent_bytes / codec.decode_Bps)
    if question.verified:
        return carried_s
    if question.source_crc:
        carried_s = max(carried_s, _checked_s(question, question.source_crc.rate_Bps))
    if question.placement is Placement.IN_PATH:
        rate_Bps = crc_Bps(question) or math.inf
        carried_s = max(carried_s, _checked_s(question, rate_Bps)) / question.in_path_wire_fraction
    return carried_s


def _checked_s(question: Question, rate_Bps: float) -> float:
    left_Bps = rate_Bps - question.dirty_Bps
    return question.state_bytes / left_Bps if left_Bps > 0 else math.inf


def _verified_s(question: Question, carried_s: float) -> float:
    """First byte to last checksum."""
    rate_Bps = crc_Bps(question)
    if rate_Bps is None or question.verified or question.state_bytes == 0:
        return carried_s
    checked_s = _checked_s(question, rate_Bps)
    if question.placement is Placement.SEQUENTIAL:
        return carried_s + checked_s
    if math.isinf(carried_s) or math.isinf(checked_s):
        return math.inf
    return _pipelined_s(question, carried_s, checked_s)


def _pipelined_s(question: Question, carried_s: float, checked_s: float) -> float:
    """Two machines in a row, chunks through both: the longest of "all up to chunk k landed, then all from k checked".

    Among chunks of equal size only the first and the last can be that k. The last chunk of the body counts as a whole
    one, so that a state that is a little smaller never takes longer.
    """
    state_bytes, sent_bytes = float(question.state_bytes), float(question.sent_bytes)
    if not sent_bytes:
        return max(carried_s, checked_s)
    carried_s *= state_bytes / sent_bytes  # as if all of it were sent, so that a chunk's share is one of S
    tail = question.tail_bytes if sum(question.tail_bytes) < sent_bytes else ()
    landed_bytes = sent_bytes - sum(tail)
    chunk_bytes = min(float(question.chunk_bytes), landed_bytes)
    unchecked_bytes = chunk_bytes + sum(tail)
    first_s = carried_s * chunk_bytes / state_bytes + checked_s
    last_s = (carried_s * landed_bytes + checked_s * unchecked_bytes) / state_bytes
    longest_s, unchecked_bytes = max(first_s, last_s), unchecked_bytes - chunk_bytes
    for size_bytes in tail:
        landed_bytes += size_bytes
        longest_s = max(longest_s, (carried_s * landed_bytes + checked_s * unchecked_bytes) / state_bytes)
        unchecked_bytes -= size_bytes
    return longest_s

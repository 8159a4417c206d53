"""Full-cache moves that may not share a link: the later one waits for the others, or is refused."""

from __future__ import annotations

from collections.abc import Sequence

from admission.rules.question import InFlight, Question
from worldline.verdict import Clause, Kind


def kept_apart(name: str, reason: str, question: Question, moves: Sequence[InFlight], where: str) -> Clause:
    """ADMIT if none of `moves` fills its link, or this one does not; else DEFER until the last is over, or REJECT.

    `where` says what the moves have in common, for instance "out of the source's node".
    """
    floor_bytes = question.duplex_bytes
    filling = [move for move in moves if move.state_bytes >= floor_bytes]
    numbers = {
        "moves": float(len(filling)),
        "state_bytes": float(question.state_bytes),
        "full_cache_bytes": float(floor_bytes),
    }
    if question.state_bytes < floor_bytes:
        text = f"{question.state_bytes} B < {floor_bytes} B: too small to fill a link"
        return Clause(name, Kind.ADMIT, text, numbers)
    if not filling:
        return Clause(name, Kind.ADMIT, f"no full-cache move {where}", numbers)
    last = max(filling, key=lambda move: move.left_s)
    waits = question.patience_s >= last.left_s
    numbers["wait_s"] = last.left_s
    text = f"{len(filling)} full-cache moves {where}, the last is {last.move_id}; "
    if last.stalled:
        text += f"it is stalled, no end of it is known; ask again in {last.left_s:.3f} s"
    else:
        text += f"over in {last.left_s:.3f} s"
    return Clause(
        name,
        Kind.DEFER if waits else Kind.REJECT,
        f"{text} {'<=' if waits else '>'} {question.patience_s:g} s patience",
        numbers,
        reason=reason,
        retry_after_s=last.left_s if waits else 0.0,
    )

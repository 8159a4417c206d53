"""Receiver: a host or mover with as many moves in flight into it as its cap is at capacity (incast, paper §6.3)."""

from __future__ import annotations

from admission.rules.question import InFlight, Question
from worldline.verdict import Clause, Kind

NAME = "receiver"


def receiver(question: Question) -> Clause:
    """ADMIT below both caps; else DEFER until enough moves are over if the caller's patience allows, else REJECT."""
    at_host, at_mover = question.host_moves, question.mover_moves
    patience_s, mover_cap = question.patience_s, question.mover_cap
    numbers = {
        "in_flight": float(len(at_host)),
        "receiver_cap": float(question.receiver_cap),
        "mover_in_flight": float(len(at_mover)),
        "mover_cap": float(mover_cap),
        "patience_s": patience_s,
    }
    full = []
    if len(at_host) >= question.receiver_cap:
        full.append(
            (_last_to_wait_for(at_host, question.receiver_cap), "the host", len(at_host), question.receiver_cap)
        )
    if mover_cap and len(at_mover) >= mover_cap:
        full.append((_last_to_wait_for(at_mover, mover_cap), "its mover", len(at_mover), mover_cap))
    if not full:
        told = f"; {len(at_mover)} into its mover < {mover_cap}" if mover_cap else ""
        return Clause(NAME, Kind.ADMIT, f"{len(at_host)} moves in flight < {question.receiver_cap}{told}", numbers)
    last, where, in_flight, cap = max(full, key=lambda found: found[0].left_s)
    numbers["wait_s"] = last.left_s
    text = f"{in_flight} moves in flight into {where} >= {cap}; "
    if last.stalled:
        text += f"move {last.move_id} is stalled, no end of it is known; ask again in {last.left_s:.3f} s"
    else:
        text += f"room in {last.left_s:.3f} s"
    waits = patience_s >= last.left_s
    return Clause(
        NAME,
        Kind.DEFER if waits else Kind.REJECT,
        f"{text} {'<=' if waits else '>'} {patience_s:g} s patience",
        numbers,
        reason="RECEIVER_STALLED" if last.stalled else "RECEIVER_BUSY",
        retry_after_s=last.left_s if waits else 0.0,
    )


def _last_to_wait_for(moves: tuple[InFlight, ...], cap: int) -> InFlight:
    """Room comes when all but cap - 1 of the moves in flight are over."""
    return sorted(moves, key=lambda move: move.left_s)[len(moves) - cap]

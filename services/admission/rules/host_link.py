"""Host link: checksums, suspends and resumes on the link that generation uses slow it down (paper Appendix H).

Sessions that play at the destination must bear that: +13 % while a move is checked over the same link, +75.5 % while
another session is suspended or resumed over it.
"""

from __future__ import annotations

from admission.rules import paper
from admission.rules.question import Question
from worldline.verdict import Clause, Kind

NAME = "host_link"


def slowdown(*, checks: bool, suspends: int) -> float:
    """What a block takes on a shared link, as a multiple of what it takes alone."""
    return 1.0 + checks * paper.LINK_CHECKSUM_SLOWDOWN + suspends * paper.LINK_SUSPEND_SLOWDOWN


def host_link(question: Question) -> Clause:
    """ADMIT if every session that plays there still makes its blocks; DEFER while suspends last, else REJECT."""
    if question.host_link_shared is None:
        return Clause(NAME, Kind.ADMIT, "whether moves and generation share a link there was not told: not charged")
    if not question.host_link_shared:
        return Clause(NAME, Kind.ADMIT, "moves and generation have links of their own there")
    factor = slowdown(checks=True, suspends=len(question.suspending))
    late = [item for item in question.residents if item.block_s * factor > item.horizon_s]
    numbers = {"slowdown": factor, "suspending": float(len(question.suspending)), "late": float(len(late))}
    if not late:
        text = f"blocks there take {factor:.3f} times as long meanwhile; all {len(question.residents)} bear it"
        return Clause(NAME, Kind.ADMIT, text, numbers)
    worst = max(late, key=lambda item: item.block_s * factor / item.horizon_s)
    text = (
        f"{worst.session_id} would take {worst.block_s:.4g} x {factor:.3f} = {worst.block_s * factor:.4g} s a block > "
        f"{worst.horizon_s:g} s"
    )
    alone = slowdown(checks=True, suspends=0)
    clears_s = max((move.left_s for move in question.suspending), default=0.0)
    may_clear = all(item.block_s * alone <= item.horizon_s for item in late) and clears_s <= question.patience_s
    if may_clear:
        text += f"; suspends there are over in {clears_s:.3f} s"
    return Clause(
        NAME,
        Kind.DEFER if may_clear else Kind.REJECT,
        text,
        numbers,
        reason="HOST_LINK",
        retry_after_s=clears_s if may_clear else 0.0,
    )

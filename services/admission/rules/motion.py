"""Motion criterion: a state must move exactly when every escape is closed (paper §4.1, Appendix F).

Reduce: the tier bears a smaller state. Replay: it is rebuilt within the time allowed. Restart: its trajectory carries
no value of its own. An open escape forbids no move: the clause names it, for whoever is refused by the others.
"""

from __future__ import annotations

import enum

from admission.rules.question import Question, UpdateRule
from worldline.contract import ContractClass, Tier
from worldline.verdict import Clause, Kind

NAME = "motion"
# Bulk is run again, maintenance is nobody's world, and a rollout cohort begins its episodes anew.
_RESTARTS = frozenset({ContractClass.C2B, ContractClass.C3, ContractClass.C5})


class Escape(enum.Enum):
    """What a session may do instead of moving as it is."""

    REDUCE = "reduce"
    REPLAY = "replay"
    RESTART = "restart"


def open_escapes(question: Question) -> dict[Escape, str]:
    """The escapes that are open, each with why."""
    told, contract = question.escapes, question.contract
    found = {}
    if contract.tier is not Tier.T0 and told.reduced_ratio is not None and told.reduced_ratio < 1:
        found[Escape.REDUCE] = f"{contract.tier.name} bears {told.reduced_ratio:.0%} of S"
    if told.replay_s is not None and told.replay_s < question.allowed_s:
        found[Escape.REPLAY] = f"{told.replay_s:.4g} s < {question.allowed_s:g} s"
    if contract.contract_class in _RESTARTS and told.restart_s is not None and told.restart_s < question.allowed_s:
        found[Escape.RESTART] = f"{told.restart_s:.4g} s < {question.allowed_s:g} s, and no trajectory is lost"
    return found


def motion(question: Question) -> Clause:
    """ADMIT always: says whether the move is forced, or which escapes are open."""
    told, tier = question.escapes, question.contract.tier
    found = open_escapes(question)
    numbers = {"escapes": float(len(found))}
    if found:
        listed = ", ".join(f"{escape.value} ({why})" for escape, why in found.items())
        return Clause(NAME, Kind.ADMIT, f"not forced: {listed} is open", numbers)
    reduce = f"{tier.name} bears no reduction" if tier is Tier.T0 else f"no reduction is known that {tier.name} bears"
    replay = "replay was not timed" if told.replay_s is None else f"replay takes {told.replay_s:.4g} s"
    if question.contract.contract_class not in _RESTARTS:
        restart = f"a restart loses what {question.contract.contract_class.name} is for"
    else:
        restart = "restart was not timed" if told.restart_s is None else f"restart takes {told.restart_s:.4g} s"
    unknown = "not timed" in f"{replay} {restart}"
    rule = f"; {told.update_rule.value}: {_WRITES[told.update_rule]}" if told.update_rule else ""
    return Clause(
        NAME,
        Kind.ADMIT,
        f"motion is {'forced as far as is known' if unknown else 'forced'}: {reduce}, {replay}, {restart}{rule}",
        numbers,
    )


_WRITES = {
    UpdateRule.APPEND_ONLY: "what is written stays, pre-copy is open",
    UpdateRule.FRAME_BANK: "what is written stays and conditions all that follows: corruption there lasts",
    UpdateRule.WINDOW_REWRITE: "most of it is rewritten each block, no prefix is clean",
}

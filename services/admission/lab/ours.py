"""The arm `ours`: admission's own rules, fed by admission's own estimators, one node-disjoint move at a time.

A question is asked of `admission.rules` for every receiver; an ADMIT begins at once, so its wire starts with the
decision; a DEFER waits for the next move to end. What the controller believes of a path is the bound of its estimate
(mean and deviations), so the margin comes from the moves that were seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from admission.lab.belief import Belief
from admission.lab.board import Admit, Answer, Board, FirstCome, Move, Refuse, Request, Wait
from admission.lab.fabric import FabricSpec
from admission.rules import InFlight, Mode, Question, choose
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Fingerprint
from worldline.verdict import Kind, Verdict

_HERE = Fingerprint({"fabric": "lab"})
_PRESET = "lab/state"
_SOONEST_S = 1e-3


class Ours(FirstCome):
    """Rules and estimators as the admission service has them."""

    def __init__(self, spec: FabricSpec, belief: Belief) -> None:
        self._spec = spec
        self._belief = belief

    def decide(self, request: Request, board: Board) -> Answer:
        """The best verdict over all receivers, by margin."""
        left_s = request.deadline_s - board.now_s
        if left_s <= 0:
            return Refuse("DEADLINE_PASSED")
        answers = {
            node: choose(self._question(request, node, left_s, board)).verdict
            for node in board.spec.receivers(request.source)
        }
        admitted = {node: verdict for node, verdict in answers.items() if verdict.kind is Kind.ADMIT}
        if admitted:
            return Admit(max(admitted, key=lambda node: admitted[node].slack_s), board.now_s)
        waits = [verdict.retry_after_s for verdict in answers.values() if verdict.kind is Kind.DEFER]
        if waits:
            return Wait(board.now_s + max(min(waits), _SOONEST_S))
        return Refuse(_reason(answers.values()))

    def ended(self, move: Move, board: Board) -> None:
        """One more sample of this path."""
        self._belief.learn(move, board.now_s)

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """What should be probed."""
        return self._belief.idle(now_s)

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """One more sample of this path."""
        self._belief.probed(path, pace_s_per_byte, now_s)

    def _left_s(self, move: Move, now_s: float) -> float:
        """What a move in flight is still expected to take; an overdue one is looked at again after as long."""
        ends_s = move.begun_s + self._belief.fair_s(move.request.source, move.receiver)
        return max(ends_s - now_s, now_s - ends_s, _SOONEST_S)

    def _in_flight(self, moves: list[Move], now_s: float) -> tuple[InFlight, ...]:
        return tuple(
            InFlight(str(move.request.number), self._left_s(move, now_s), state_bytes=self._spec.state_bytes)
            for move in moves
        )

    def _question(self, request: Request, receiver: int, left_s: float, board: Board) -> Question:
        """The move as it would begin now: what is left of its horizon is the horizon that the rules see."""
        spec, now_s = self._spec, board.now_s
        leaving = [move for move in board.in_flight if move.request.source == request.source]
        setup_s, bandwidth_Bps = self._belief.bound(request.source, receiver, now_s)
        opposite = [
            move for move in board.in_flight if request.source == move.receiver or receiver == move.request.source
        ]
        return Question(
            contract=Contract(ContractClass.C1, left_s, Tier.T0),
            mode=Mode.FROZEN,
            state_bytes=spec.state_bytes,
            dirty_rate_Bps=None,
            bandwidth_Bps=bandwidth_Bps,
            setup_s=setup_s,
            bound_s=spec.horizon_s,
            preset=_PRESET,
            source_fingerprint=_HERE,
            destination_fingerprint=_HERE,
            destination_presets=frozenset({_PRESET}),
            destination_free_bytes=spec.state_bytes,
            destination_has_id=False,
            host_moves=self._in_flight(board.into(receiver), now_s),
            receiver_cap=1,
            mover_moves=(),
            mover_cap=0,
            peers=(),
            transport="lab",
            transport_refusal="",
            # How long it can wait and still be in time.
            patience_s=max(left_s - setup_s - spec.state_bytes / bandwidth_Bps, 0.0),
            silent_s=1.0,
            silent_grace_s=0.0,
            heartbeat_s=1.0,
            sender_moves=self._in_flight(leaving, now_s),
            opposite_moves=self._in_flight(opposite, now_s),
        )


def _reason(verdicts: Iterable[Verdict]) -> str:
    """The clause that stands in the way of the receiver with the fewest failures."""
    nearest = min(verdicts, key=lambda verdict: len(verdict.failed))
    return nearest.failed[0].reason

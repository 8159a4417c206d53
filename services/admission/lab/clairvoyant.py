"""The clairvoyant arm: knows every true rate, every freeze and every winner, though not who will come.

It looks ahead in a copy of the fabric itself and admits what is certain to be in time without making a move in flight
late, the one that ends soonest first. It misses nothing; what it lands is what knowledge of the fabric is worth. Unlike
all arms with a cap it may let moves share a sender's line, where each slows down and both are still in time;
`disjoint` denies it that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from admission.lab.board import Admit, Answer, Board, FirstCome, Move, Refuse, Request, Wait
from admission.lab.fluid import Flow, Fluid

_SLACK_S = 1e-9


class Clairvoyant(FirstCome):
    """Decides by the fabric's own future."""

    def __init__(self, fluid: Fluid, *, disjoint: bool = False) -> None:
        self._fluid = fluid
        self._disjoint = disjoint
        self._spec = fluid.truth.spec
        self._deadlines_s: dict[int, float] = {}
        # What was foreseen for those who wait, until somebody is admitted.
        self._foreseen: dict[int, dict[int, float]] = {}

    def order(self, waiting: Sequence[Request], board: Board) -> list[Request]:
        """Who ends soonest if begun now."""
        self._foreseen = {request.number: self._ends_s(request, board) for request in waiting}
        soonest_s = {number: min(ends_s.values()) for number, ends_s in self._foreseen.items()}
        return sorted(waiting, key=lambda request: soonest_s[request.number])

    def decide(self, request: Request, board: Board) -> Answer:
        """Admit if all stay in time; wait as long as an empty fabric would still do."""
        ends_s = self._foreseen.get(request.number) or self._ends_s(request, board)
        receiver = min(ends_s, key=lambda node: ends_s[node])
        if ends_s[receiver] <= request.deadline_s + _SLACK_S:
            self._deadlines_s[request.number] = request.deadline_s
            self._foreseen = {}
            return Admit(receiver, board.now_s)
        alone_s = min(self._alone_s(request, node, board.now_s) for node in self._spec.receivers(request.source))
        if alone_s > request.deadline_s + _SLACK_S:
            return Refuse("TOO_LATE")
        return Wait(board.now_s + (request.deadline_s - alone_s) + _SLACK_S)

    def ended(self, move: Move, board: Board) -> None:
        """It knew."""
        del self._deadlines_s[move.request.number]

    def _ends_s(self, request: Request, board: Board) -> dict[int, float]:
        """By receiver: when this request would be over if it began now; infinite if it made another one late."""
        found = {}
        for node in self._spec.receivers(request.source):
            if self._disjoint and (board.at(node) or board.at(request.source)):
                found[node] = math.inf
                continue
            ends_s = self._ahead(request, node, board.now_s, self._fluid.copy())
            late = any(
                end > self._deadlines_s[number] + _SLACK_S for number, end in ends_s.items() if number != request.number
            )
            found[node] = math.inf if late else ends_s[request.number]
        return found

    def _alone_s(self, request: Request, node: int, now_s: float) -> float:
        return self._ahead(request, node, now_s, Fluid(self._fluid.truth, now_s))[request.number]

    def _ahead(self, request: Request, node: int, now_s: float, fluid: Fluid) -> dict[int, float]:
        fluid.add(Flow(request.number, request.source, node, float(self._spec.state_bytes), now_s + self._spec.setup_s))
        return fluid.ends_s()

"""Arms without a model of the fabric, or with a wrong one (paper §6.3 and §6.5)."""

from __future__ import annotations

from admission.lab.board import Admit, Answer, Board, FirstCome, Refuse, Request, Wait
from admission.lab.fabric import LINE_BPS, FabricSpec

PAIR_CAP = 2


def _least_loaded(request: Request, board: Board) -> int:
    """The receiver with the shortest queue, the paper's min-queue-depth picker."""
    return min(board.spec.receivers(request.source), key=lambda node: len(board.into(node)))


class PairCalibrated(FirstCome):
    """Naive: calibrated on two flows of one host, which share the line fairly, so each receiver serves two at a time.

    By that model a receiver carries more than by the cap of one, and it books so (max_fan_in = 2, §6.3).
    """

    def __init__(self, spec: FabricSpec) -> None:
        self._takes_s = spec.setup_s + spec.state_bytes * PAIR_CAP / LINE_BPS
        self._free_s = [[0.0] * PAIR_CAP for _ in range(spec.nodes)]

    def decide(self, request: Request, board: Board) -> Answer:
        """Book the place that is free first; refuse where that is predicted to be too late."""
        receiver = min(
            board.spec.receivers(request.source), key=lambda node: (min(self._free_s[node]), len(board.into(node)))
        )
        begins_s = max(board.now_s, min(self._free_s[receiver]))
        if begins_s + self._takes_s > request.deadline_s:
            return Refuse("PREDICTED_DEADLINE_MISS")
        places_s = self._free_s[receiver]
        places_s[places_s.index(min(places_s))] = begins_s + self._takes_s
        return Admit(receiver, begins_s)


class RateLimited(FirstCome):
    """Accepts all, queues it, and lets it begin no faster than the fabric can bear on paper."""

    def __init__(self, spec: FabricSpec) -> None:
        self._every_s = 1 / spec.capacity_per_s
        self._next_s = 0.0

    def decide(self, request: Request, board: Board) -> Answer:
        """Admit, to begin when there is a token and the moves before it at both nodes are over."""
        begins_s = max(board.now_s, self._next_s)
        self._next_s = begins_s + self._every_s
        return Admit(_least_loaded(request, board), begins_s, tied=True)


class OverlapEverything(FirstCome):
    """Begins all at once and checks the bytes while they are received, to hide the checksum."""

    def decide(self, request: Request, board: Board) -> Answer:
        """Admit now."""
        return Admit(_least_loaded(request, board), board.now_s, in_path=True)


class DeferAndReject(FirstCome):
    """An operator's heuristic, tuned by hand: idle nodes only, look again every 25 ms, give up after H/3.

    H/3 is the longest wait that leaves the slowest mover of the default fabric in time.
    """

    _RETRY_S = 0.025

    def __init__(self, spec: FabricSpec) -> None:
        self._gives_up_s = spec.horizon_s / 3

    def decide(self, request: Request, board: Board) -> Answer:
        """Admit if both ends are idle."""
        waited_s = board.now_s - request.arrival_s
        if waited_s > self._gives_up_s:
            return Refuse("GAVE_UP")
        idle = [node for node in board.spec.receivers(request.source) if not board.at(node)]
        if idle and not board.at(request.source):
            return Admit(idle[request.number % len(idle)], board.now_s)
        return Wait(board.now_s + self._RETRY_S)

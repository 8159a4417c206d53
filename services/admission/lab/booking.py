"""The paper's controller: constants measured once, moves booked ahead by what they should take (paper §6.3, §6.5).

It is told every rule of the paper: one move a receiver, spread over receivers, no duplex pairs, the path's own rate,
and an explicit reject where the predicted end is too late. What it lacks is learning, and wires tied to its decisions:
the paper's harness prepares each payload between the two (§6.3), which is the gap here. `scale` feeds it constants of
another idiom: 0.7 underestimates by 30 %, where the paper's controller collapsed (appendix I).
"""

from __future__ import annotations

from admission.lab.board import Admit, Answer, Board, FirstCome, Move, Refuse, Request
from admission.lab.fabric import FabricSpec


class Booking(FirstCome):
    """Books the earliest predicted end over all receivers."""

    def __init__(self, spec: FabricSpec, *, scale: float = 1.0, gap_s: float = 0.0, tied: bool = False) -> None:
        self._spec = spec
        self._scale = scale
        self._gap_s = gap_s
        self._tied = tied
        self._free_s = [0.0] * spec.nodes

    def decide(self, request: Request, board: Board) -> Answer:
        """Admit now or never."""
        takes_s = self._spec.solo_s(request.source) * self._scale
        starts_s = {
            node: max(board.now_s, self._free_s[request.source], self._free_s[node])
            for node in board.spec.receivers(request.source)
            if not self._overdue(request.source, board) and not self._overdue(node, board)
        }
        receiver = min(starts_s, key=lambda node: (starts_s[node], self._free_s[node]), default=None)
        if receiver is None or starts_s[receiver] + takes_s > request.deadline_s:
            return Refuse("PREDICTED_DEADLINE_MISS" if starts_s else "RECEIVER_BUSY")
        begins_s = starts_s[receiver]
        self._free_s[request.source] = self._free_s[receiver] = begins_s + takes_s
        return Admit(receiver, begins_s, tied=self._tied, gap_s=self._gap_s)

    def ended(self, move: Move, board: Board) -> None:
        """Constants stay as they are."""

    def _overdue(self, node: int, board: Board) -> bool:
        """Whether a move that should be over holds the node: it is at capacity, and nobody knows until when."""
        return self._free_s[node] <= board.now_s and bool(board.at(node))

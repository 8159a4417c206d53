"""What a controller sees and answers, and what every controller is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from admission.lab.fabric import FabricSpec


@dataclass(frozen=True, slots=True)
class Request:
    """A session on `source` that has to be playable elsewhere by `deadline_s`."""

    number: int
    arrival_s: float
    deadline_s: float
    source: int


@dataclass(slots=True)
class Move:
    """An admitted request. `begun_s` and `ended_s` are NaN until it happens."""

    request: Request
    receiver: int
    admitted_s: float
    booked_s: float
    begun_s: float = math.nan
    ended_s: float = math.nan

    @property
    def over(self) -> bool:
        """Whether its state has been committed."""
        return not math.isnan(self.ended_s)

    def touches(self, node: int) -> bool:
        """Whether it leaves or enters `node`."""
        return node in (self.request.source, self.receiver)


@dataclass(slots=True)
class Board:
    """The controllers' view: the fabric as believed, the moves in flight as admission knows them, the time."""

    spec: FabricSpec
    now_s: float = 0.0
    in_flight: list[Move] = field(default_factory=list)

    def into(self, node: int) -> list[Move]:
        """Moves in flight into a node."""
        return [move for move in self.in_flight if move.receiver == node]

    def at(self, node: int) -> list[Move]:
        """Moves in flight that leave or enter a node."""
        return [move for move in self.in_flight if move.touches(node)]


@dataclass(frozen=True, slots=True)
class Admit:
    """Begin at `begin_s`; `tied` waits for the moves admitted before at both nodes to be over.

    `gap_s` bounds what passes between that and the wire's start without the controller's knowledge; `in_path` checks
    the bytes while they are received.
    """

    receiver: int
    begin_s: float
    tied: bool = False
    gap_s: float = 0.0
    in_path: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again when a move ends, or at `until_s`."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """An explicit reject, with its reason."""

    reason: str


Answer = Admit | Wait | Refuse


class Controller(Protocol):
    """One arm of the lab."""

    def order(self, waiting: Sequence[Request], board: Board) -> list[Request]:
        """In which order those that wait are asked about."""
        ...

    def decide(self, request: Request, board: Board) -> Answer:
        """What becomes of a request now."""
        ...

    def ended(self, move: Move, board: Board) -> None:
        """A move is over: learn from it."""
        ...

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """Paths (source, receiver) that should be probed, the most needed first."""
        ...

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """A probe of a quiet path took so long for each byte."""
        ...


class FirstCome:
    """Asks in the order of arrival, learns nothing and probes nothing."""

    def order(self, waiting: Sequence[Request], board: Board) -> list[Request]:
        """As they came."""
        return list(waiting)

    def ended(self, move: Move, board: Board) -> None:
        """Nothing is learnt."""

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """None."""
        return []

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """Nothing is learnt."""

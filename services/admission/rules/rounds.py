"""Rounds: several transfers as matchings that run one after another, no node twice in one of them (paper §6.5).

A node that sends and receives full states at the same time starves one direction, and two flows into one port halve
each other: four such transfers that took 2.0 to 2.4 s side by side were over after two rounds of 250 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from admission.rules.coloring import color


@dataclass(frozen=True, slots=True)
class Transfer:
    """One move as rounds see it: from node to node, in `seconds` as predicted. `key` is its asker's own."""

    key: str
    source: str
    destination: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """Transfers that share no node."""

    transfers: tuple[Transfer, ...]

    @property
    def seconds(self) -> float:
        """As long as its longest."""
        return max(transfer.seconds for transfer in self.transfers)


def rounds_of(transfers: Sequence[Transfer]) -> tuple[Round, ...]:
    """At most D + m rounds, for a largest degree D and m parallel transfers; the fullest first, then the shortest."""
    # Long ones are colored first, so that they lie together and few rounds are long.
    ordered = sorted(transfers, key=lambda transfer: (-transfer.seconds, transfer.key))
    classes: dict[int, list[Transfer]] = {}
    for transfer, number in zip(ordered, color([(item.source, item.destination) for item in ordered]), strict=True):
        classes.setdefault(number, []).append(transfer)
    made = [Round(tuple(members)) for members in classes.values()]
    return tuple(sorted(made, key=lambda round_: (-len(round_.transfers), round_.seconds, round_.transfers[0].key)))


def finish_s(rounds: Sequence[Round]) -> float:
    """Seconds that the rounds take one after another."""
    return sum(round_.seconds for round_ in rounds)

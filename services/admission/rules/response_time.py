"""Fleet test: moves into one port are jobs of a non-preemptive deadline-monotonic schedule (paper §4.1, Appendix C).

R_i = C_i/B + setup + blocking_i + interference_i <= H_i, C_i = S_i + D_i·H_i. A move holds the port from its setup to
its end; one that has begun with a later deadline blocks, those with an earlier or equal one go first. Moves of equal
deadline count against each other both ways, so that the answer holds for any order among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from admission.rules.cost import fan_in, payload_bytes, predict, wire_Bps
from admission.rules.question import Mode, PortMove, Question
from worldline.verdict import Clause, Kind

NAME = "response_time"
_MINE = "this move"
# Fixed points that are not found in so many steps belong to a port that is all but full: it is refused.
_STEPS = 10_000
# A window that ends a rounding error before a release is taken to contain it.
_ROUNDING = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Task:
    """A stream of moves: seconds each holds the port, its deadline (s, infinite if none), shortest time between two."""

    name: str
    cost_s: float
    horizon_s: float
    period_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Response:
    """The worst response of a task: `response_s` is the sum of the other three, infinite if the port is overloaded."""

    task: Task
    blocking_s: float
    interference_s: float
    response_s: float

    @property
    def in_time(self) -> bool:
        """R <= H."""
        return self.response_s <= self.task.horizon_s


def fluid_limit(horizon_s: float, bandwidth_Bps: float, move_bytes: float, setup_s: float = 0.0) -> float:
    """N <= HB/C for equal moves (eq. 3); with the setup of each charged, H / (setup + C/B)."""
    return horizon_s / (setup_s + move_bytes / bandwidth_Bps)


def responses(tasks: Sequence[Task]) -> list[Response]:
    """The worst response of each task."""
    return [_response(number, tasks) for number in range(len(tasks))]


def response_time(question: Question) -> Clause:
    """ADMIT if this move and every other one into the port still end in time, else REJECT."""
    if not question.port_moves:
        return Clause(NAME, Kind.ADMIT, "no other move into this port: nothing blocks or interferes", {"moves": 1.0})
    port_Bps = wire_Bps(question) * fan_in(question)
    tasks = [_mine(question, port_Bps), *(_other(move, port_Bps) for move in question.port_moves)]
    found = responses(tasks)
    late = [item for item in found if not item.in_time]
    worst = max(late or found[:1], key=lambda item: item.response_s - item.task.horizon_s)
    numbers = {
        "moves": float(len(tasks)),
        "cost_s": worst.task.cost_s,
        "blocking_s": worst.blocking_s,
        "interference_s": worst.interference_s,
        "response_s": worst.response_s,
        "horizon_s": worst.task.horizon_s,
        "late": float(len(late)),
    }
    text = (
        f"{worst.task.name}: R = {worst.task.cost_s:.3f} + {worst.blocking_s:.3f} blocking + "
        f"{worst.interference_s:.3f} interference = {worst.response_s:.3f} s {'>' if late else '<='} "
        f"{worst.task.horizon_s:g} s; {len(found) - len(late)} of {len(found)} moves into the port end in time"
    )
    return Clause(NAME, Kind.REJECT if late else Kind.ADMIT, text, numbers, reason="RESPONSE_TIME" if late else "")


def _mine(question: Question, port_Bps: float) -> Task:
    alone = predict(replace(question, mover_moves=()) if question.mover_moves else question)
    cost_s, horizon_s = alone.total_s, question.contract.horizon_s
    if not question.contract.has_deadline:
        return Task(_MINE, cost_s, math.inf)
    if question.mode is Mode.LIVE:
        moved_bytes = payload_bytes(question) + question.dirty_Bps * horizon_s
        cost_s = alone.fixed_s + (alone.exposed_s if math.isfinite(alone.exposed_s) else 0.0) + moved_bytes / port_Bps
    return Task(_MINE, cost_s, horizon_s, question.period_s)


def _other(move: PortMove, port_Bps: float) -> Task:
    moved_bytes = move.state_bytes + move.dirty_rate_Bps * move.horizon_s
    return Task(
        move.move_id,
        move.setup_s + moved_bytes / port_Bps,
        move.horizon_s if move.horizon_s > 0 else math.inf,
        move.period_s,
    )


def _response(number: int, tasks: Sequence[Task]) -> Response:
    """The longest response in the longest time that the port is busy for this task and those before it.

    After George, Rivierre and Spuri (1996): job q waits until w = blocking + q·C + sum over the others of
    (floor(w/T) + 1)·C, and ends C later.
    """
    task = tasks[number]
    first = [other for at, other in enumerate(tasks) if at != number and other.horizon_s <= task.horizon_s]
    blocking_s = max((other.cost_s for other in tasks if other.horizon_s > task.horizon_s), default=0.0)
    busy_s = _busy_s((task, *first), blocking_s)
    jobs = _releases(busy_s, task.period_s) if busy_s < math.inf else _STEPS
    if jobs >= _STEPS:
        return Response(task, blocking_s, math.inf, math.inf)
    worst_s = 0.0
    for job in range(jobs):
        waits_s = _waits_s(blocking_s + job * task.cost_s, first)
        worst_s = max(worst_s, waits_s + task.cost_s - (job * task.period_s if job else 0.0))
        if worst_s > task.horizon_s:
            break
    return Response(task, blocking_s, max(worst_s - blocking_s - task.cost_s, 0.0), worst_s)


def _busy_s(busy: Sequence[Task], blocking_s: float) -> float:
    """How long these keep the port busy at most; infinite if they ask for more than it has."""
    length_s = blocking_s + sum(item.cost_s for item in busy)
    if math.isinf(length_s) or sum(item.cost_s / item.period_s for item in busy) >= 1.0:
        return math.inf
    for _ in range(_STEPS):
        longer_s = blocking_s + sum(_releases(length_s, item.period_s) * item.cost_s for item in busy)
        if longer_s <= length_s:
            return length_s
        length_s = longer_s
    return math.inf


def _waits_s(before_s: float, first: Sequence[Task]) -> float:
    """How long a job waits at most that has `before_s` of blocking and of its own kind before it."""
    waits_s = before_s + sum(item.cost_s for item in first)
    for _ in range(_STEPS):
        releases = [math.floor(waits_s * _ROUNDING / item.period_s) + 1 for item in first]
        longer_s = before_s + sum(count * item.cost_s for count, item in zip(releases, first, strict=True))
        if longer_s <= waits_s:
            return waits_s
        waits_s = longer_s
    return math.inf


def _releases(window_s: float, period_s: float) -> int:
    """Releases in a window that begins with one: at least that one."""
    return max(1, math.ceil(window_s * _ROUNDING / period_s))

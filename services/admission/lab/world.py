"""One run: requests come, a controller answers, moves are carried, all on one simulated clock (simpy)."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

import simpy

from admission.estimators import BANDWIDTH_SAMPLE_BYTES
from admission.lab.board import Admit, Board, Controller, Move, Refuse, Request, Wait
from admission.lab.fluid import Flow, Fluid
from admission.lab.truth import Truth

Steps = Generator[simpy.Event, object, None]
# Nobody is asked again sooner than this.
_SOONEST_S = 1e-3
# How often it is looked for a path to probe.
_LOOK_S = 0.1


@dataclass(slots=True)
class Record:
    """What came of every request of a run."""

    requests: list[Request]
    moves: list[Move] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)


class _Signal:
    """Something that processes wait for again and again."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.next = env.event()

    def fire(self) -> None:
        """Wake whoever waits; who comes later waits for the next time."""
        fired, self.next = self.next, self._env.event()
        fired.succeed()


class World:
    """The clock, the wires and the queue of those who wait."""

    def __init__(self, truth: Truth, requests: list[Request]) -> None:
        self.fluid = Fluid(truth)
        self.board = Board(truth.spec)
        self.record = Record(requests)
        self._truth = truth
        self._env = simpy.Environment()
        self._waiting: list[Request] = []
        self._over: dict[int, simpy.Event] = {}
        self._rates_changed = _Signal(self._env)
        self._asked = _Signal(self._env)
        self._ask_at_s = math.inf
        self._to_come = len(requests)
        self._finished = self._env.event()

    def run(self, controller: Controller) -> Record:
        """Until every request has been answered and every admitted move is over."""
        self._env.process(self._arrive(controller))
        self._env.process(self._carry())
        self._env.process(self._remind(controller))
        self._env.process(self._probe(controller))
        self._env.run(until=self._finished)
        return self.record

    def _arrive(self, controller: Controller) -> Steps:
        for request in self.record.requests:
            yield self._env.timeout(max(request.arrival_s - self._env.now, 0.0))
            self._waiting.append(request)
            self._to_come -= 1
            self._ask(controller)

    def _ask(self, controller: Controller) -> None:
        """Ask about everybody who waits."""
        self._bring_up_to_now()
        soonest_s = math.inf
        for request in controller.order(tuple(self._waiting), self.board):
            answer = controller.decide(request, self.board)
            if isinstance(answer, Wait):
                soonest_s = min(soonest_s, answer.until_s)
                continue
            self._waiting.remove(request)
            if isinstance(answer, Refuse):
                self.record.refusals[request.number] = answer.reason
            else:
                self._admit(controller, request, answer)
        self._ask_at_s = max(soonest_s, self._env.now + _SOONEST_S)
        self._asked.fire()
        if not (self._to_come or self._waiting or self.board.in_flight):
            self._finished.succeed()

    def _admit(self, controller: Controller, request: Request, answer: Admit) -> None:
        """Answer at once; a move that begins at once is on the wires before the next request is looked at."""
        move = Move(request, answer.receiver, self._env.now, answer.begin_s)
        nodes = (request.source, answer.receiver)
        before = [other for other in self.board.in_flight if other.touches(nodes[0]) or other.touches(nodes[1])]
        ends = [self._over[other.request.number] for other in before] if answer.tied else []
        self.record.moves.append(move)
        self.board.in_flight.append(move)
        self._over[request.number] = self._env.event()
        begins_now = answer.begin_s <= self._env.now and not ends
        if begins_now:
            self._begin(move, answer)
        self._env.process(self._follow(controller, move, answer, ends, begun=begins_now))

    def _follow(
        self, controller: Controller, move: Move, answer: Admit, ends: list[simpy.Event], *, begun: bool
    ) -> Steps:
        """From the begin, which may have been booked for later, to the commit."""
        over = self._over[move.request.number]
        if not begun:
            yield self._env.timeout(max(answer.begin_s - self._env.now, 0.0))
            yield self._env.all_of(ends)
            self._begin(move, answer)
        yield over
        move.ended_s = self._env.now
        self.board.in_flight.remove(move)
        self.board.now_s = self._env.now
        controller.ended(move, self.board)
        self._ask(controller)

    def _begin(self, move: Move, answer: Admit) -> None:
        now_s = move.begun_s = self._env.now
        gap_s = answer.gap_s * self._truth.chance[move.request.number][1]
        self._bring_up_to_now()
        self.fluid.add(
            Flow(
                move.request.number,
                move.request.source,
                move.receiver,
                float(self._truth.spec.state_bytes),
                now_s + gap_s + self._truth.spec.setup_s,
                answer.in_path,
            )
        )
        self._rates_changed.fire()

    def _probe(self, controller: Controller) -> Steps:
        """As the service does: one small probe at a time, of an idle path between nodes that are in no move."""
        for number in count(1):
            yield self._env.timeout(_LOOK_S)
            quiet = (path for path in controller.idle(self._env.now) if not self._busy(path))
            path = next(quiet, None)
            if path is None:
                continue
            begun_s = self._env.now
            over = self._over[-number] = self._env.event()
            self._bring_up_to_now()
            self.fluid.add(Flow(-number, *path, float(BANDWIDTH_SAMPLE_BYTES), begun_s))
            self._rates_changed.fire()
            yield over
            if not self._busy(path):
                controller.probed(path, (self._env.now - begun_s) / BANDWIDTH_SAMPLE_BYTES, self._env.now)

    def _busy(self, path: tuple[int, int]) -> bool:
        return any(move.touches(node) for move in self.board.in_flight for node in path)

    def _carry(self) -> Steps:
        """Move the wires on from change to change."""
        while True:
            changed, at_s = self._rates_changed.next, self.fluid.next_change_s()
            if math.isinf(at_s):
                yield changed
            else:
                yield self._env.timeout(max(at_s - self._env.now, 0.0)) | changed
            self._bring_up_to_now()

    def _bring_up_to_now(self) -> None:
        self.board.now_s = self._env.now
        for flow in self.fluid.advance(self._env.now):
            self._over[flow.request].succeed()

    def _remind(self, controller: Controller) -> Steps:
        """Ask again at the time that an answer named."""
        while True:
            asked, at_s = self._asked.next, self._ask_at_s
            if math.isinf(at_s):
                yield asked
                continue
            yield self._env.timeout(max(at_s - self._env.now, 0.0)) | asked
            if self._env.now >= self._ask_at_s:
                self._ask(controller)

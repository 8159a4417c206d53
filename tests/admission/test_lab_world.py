"""The lab's clock and queue: when who is asked, when wires begin, when paths are probed."""

from __future__ import annotations

import pytest

from admission.lab.board import Admit, Answer, Board, FirstCome, Move, Refuse, Request, Wait
from admission.lab.fabric import FLUID, MESH, Errors
from admission.lab.truth import draw
from admission.lab.world import Record, World

SOLO_S = MESH.solo_s(0)


class Scripted(FirstCome):
    """Gives each request the next of its answers, and keeps what it was told."""

    def __init__(self, answers: dict[int, list[Answer]], probes: list[tuple[int, int]] | None = None) -> None:
        self.answers = answers
        self.probes = probes or []
        self.asked: list[tuple[float, int]] = []
        self.paces: list[float] = []
        self.ends: list[int] = []

    def decide(self, request: Request, board: Board) -> Answer:
        self.asked.append((board.now_s, request.number))
        return self.answers[request.number].pop(0)

    def ended(self, move: Move, board: Board) -> None:
        assert move not in board.in_flight
        self.ends.append(move.request.number)

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        return self.probes

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        self.paces.append(pace_s_per_byte)


def request(number: int, at_s: float, source: int = 0) -> Request:
    return Request(number, at_s, at_s + MESH.horizon_s, source)


def play(controller: Scripted, *requests: Request, errors: Errors = FLUID) -> Record:
    return World(draw(MESH, errors, 0, 8, 10.0), list(requests)).run(controller)


def test_an_admitted_move_ends_after_setup_and_wire() -> None:
    record = play(Scripted({0: [Admit(1, 1.0)]}), request(0, 1.0))
    assert (record.moves[0].begun_s, record.moves[0].ended_s) == pytest.approx((1.0, 1.0 + SOLO_S))


def test_who_waits_is_asked_at_the_named_time_and_when_a_move_ends() -> None:
    controller = Scripted({0: [Admit(1, 0.0)], 1: [Wait(0.15), Wait(9.0), Refuse("NO")]})
    record = play(controller, request(0, 0.0), request(1, 0.1, source=2))
    assert [at_s for at_s, number in controller.asked if number == 1] == pytest.approx([0.1, 0.15, SOLO_S])
    assert record.refusals == {1: "NO"}
    assert controller.ends == [0]


def test_a_booked_move_begins_when_booked_even_into_a_busy_receiver() -> None:
    record = play(Scripted({0: [Admit(1, 0.0)], 1: [Admit(1, 0.1)]}), request(0, 0.0), request(1, 0.0, source=2))
    assert record.moves[1].begun_s == pytest.approx(0.1)
    assert record.moves[0].ended_s > SOLO_S + 0.1


def test_a_tied_move_begins_when_those_before_it_at_its_nodes_are_over() -> None:
    answers: dict[int, list[Answer]] = {0: [Admit(1, 0.0)], 1: [Admit(1, 0.05, tied=True)], 2: [Admit(2, 0.0)]}
    record = play(Scripted(answers), request(0, 0.0), request(1, 0.0, source=3), request(2, 0.0, source=3))
    begun = {move.request.number: move.begun_s for move in record.moves}
    assert begun == pytest.approx({0: 0.0, 1: SOLO_S, 2: 0.0})


def test_a_gap_delays_the_wire_unseen() -> None:
    record = play(Scripted({0: [Admit(1, 0.0, gap_s=0.1)]}), request(0, 0.0))
    assert record.moves[0].begun_s == 0.0
    assert SOLO_S < record.moves[0].ended_s < SOLO_S + 0.1


def test_a_quiet_path_is_probed_and_a_busy_one_is_not() -> None:
    controller = Scripted({0: [Admit(1, 0.0)], 1: [Admit(1, 1.0)]}, probes=[(0, 1), (2, 3)])
    play(controller, request(0, 0.0), request(1, 1.0))
    # Every 0.1 s until the second move is over, on whichever of the two paths is quiet.
    assert len(controller.paces) >= 9
    assert controller.paces == pytest.approx([1 / MESH.believed_Bps(0)] * len(controller.paces))

"""Drains and plans on a fleet of fakes: rounds, yielding, restarts, and what cannot be moved."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from admission_cluster import Cluster
from admission_fakes import LIVE, FakeHost, FakeMover, until

from admission.decision import Ask
from admission.opening import Opener, Waits
from admission.record import MoveRecord
from worldline import errors
from worldline.manifest import Fingerprint
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import move_pb2
from worldline.v1.admission_service_pb2 import (
    SCHEDULE_STATE_CANCELLED,
    SCHEDULE_STATE_DONE,
    SCHEDULE_STATE_RUNNING,
    SCHEDULE_STATE_UNSPECIFIED,
    STEP_STATE_FAILED,
    STEP_STATE_GONE,
    STEP_STATE_MOVED,
    STEP_STATE_MOVING,
    STEP_STATE_WAITING,
)

THREE = ("s-1", "s-2", "s-3")


class Trio(Cluster):
    """Three hosts, each beside a mover of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.movers["mover-c"] = FakeMover("mover-c", self.hosts)
        self.c = self.hosts["host-c"] = FakeHost("host-c", "mover-c")
        self.stub.RegisterMover(pb.RegisterMoverRequest(registration=self.movers["mover-c"].registration()))
        self.register()

    def live_on(self, host: FakeHost, *session_ids: str) -> None:
        """Sessions that live on a host, and admission knows it."""
        for session_id in session_ids:
            host.hold_session(session_id)
        self.beat(host)

    def drain(self, host_id: str = "host-a", *, request_id: str = "", **fields: object) -> pb.Schedule:
        """Ask for a drain."""
        request = pb.DrainRequest(request_id=request_id or str(uuid.uuid4()), host_id=host_id, **fields)  # type: ignore[arg-type]
        return self.stub.Drain(request, timeout=10).schedule

    def plan(self, *moves: tuple[str, str], **fields: object) -> pb.Schedule:
        """Ask for a plan of (session, destination)."""
        wanted = [pb.PlannedMove(session_id=one, destination_host_id=to) for one, to in moves]
        request = pb.PlanRequest(request_id=str(uuid.uuid4()), moves=wanted, **fields)  # type: ignore[arg-type]
        return self.stub.Plan(request, timeout=10).schedule

    def schedule(self, schedule_id: str) -> pb.Schedule:
        """The schedule now."""
        return self.stub.GetSchedule(pb.GetScheduleRequest(schedule_id=schedule_id)).schedule

    def ended(self, schedule_id: str) -> pb.Schedule:
        """The schedule once it is closed."""
        *_, last = self.stub.WatchSchedule(pb.WatchScheduleRequest(schedule_id=schedule_id), timeout=20)
        assert isinstance(last, pb.WatchScheduleResponse)
        return last.schedule

    def steps(self, schedule_id: str) -> dict[str, pb.ScheduleStep]:
        """Its steps by session."""
        return {step.session_id: step for step in self.schedule(schedule_id).steps}

    def in_state(self, schedule_id: str, state: int) -> list[str]:
        """Sessions whose steps stand there."""
        return [session_id for session_id, step in self.steps(schedule_id).items() if step.state == state]

    def begun(self) -> list[str]:
        """Sessions in the order in which their moves were begun."""
        moves = list(self.stub.ListMoves(pb.ListMovesRequest()).moves)
        return [move.session_id for move in reversed(moves) if move.state != move_pb2.MOVE_STATE_REFUSED]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    opened = Trio(tmp_path)
    yield opened
    opened.close()


def test_a_dry_run_marks_and_moves_nothing(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    schedule = trio.drain(dry_run=True)
    assert (schedule.schedule_id, schedule.state) == ("", SCHEDULE_STATE_UNSPECIFIED)
    assert schedule.rounds == 3  # one node sends them all
    assert sorted(step.round for step in schedule.steps) == [0, 1, 2]
    assert {step.destination_host_id for step in schedule.steps} == {"host-b", "host-c"}
    assert schedule.predicted_s == pytest.approx(sum(step.predicted_s for step in schedule.steps))
    assert schedule.predicted_s > 0
    assert trio.begun() == []
    hosts = trio.stub.ListEngineHosts(pb.ListEngineHostsRequest()).hosts
    assert not any(host.status.draining for host in hosts)


def test_a_drained_host_ends_empty_and_takes_nothing(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    schedule = trio.ended(trio.drain().schedule_id)
    assert schedule.state == SCHEDULE_STATE_DONE
    assert [step.state for step in schedule.steps] == [STEP_STATE_MOVED] * 3
    assert {trio.locate(session_id).host_id for session_id in THREE} == {"host-b", "host-c"}
    trio.beat(trio.a)  # it does not say so itself
    hosts = trio.stub.ListEngineHosts(pb.ListEngineHostsRequest()).hosts
    assert [host.registration.host_id for host in hosts if host.status.draining] == ["host-a"]
    for _ in range(2):
        placed = trio.stub.PlaceSession(
            pb.PlaceSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny")
        )
        assert placed.host_id != "host-a"
    trio.restart_admission()
    hosts = trio.stub.ListEngineHosts(pb.ListEngineHostsRequest()).hosts
    assert [host.registration.host_id for host in hosts if host.status.draining] == ["host-a"]
    trio.stub.Undrain(pb.UndrainRequest(host_id="host-a"))
    hosts = trio.stub.ListEngineHosts(pb.ListEngineHostsRequest()).hosts
    assert not any(host.status.draining for host in hosts)
    asked = trio.stub.RequestMove(
        pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id="s-1", destination_host_id="host-a")
    ).move
    trio.reach(asked.move_id, move_pb2.MOVE_STATE_MOVED)


def test_a_round_opens_when_the_wires_of_the_last_one_are_over(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    gate = trio.hold_mover()
    asked = trio.drain()
    until("the first is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    (first,) = trio.in_state(asked.schedule_id, STEP_STATE_MOVING)
    on_wire = trio.get(trio.steps(asked.schedule_id)[first].move_id)
    until("its wire is told", lambda: trio.get(on_wire.move_id).stage == "wire")
    assert len(trio.in_state(asked.schedule_id, STEP_STATE_WAITING)) == 2
    assert trio.begun() == [first]
    gate.set()
    schedule = trio.ended(asked.schedule_id)
    moves = [trio.get(step.move_id) for step in schedule.steps]
    assert all(move.decided_at_s <= move.wire_at_s for move in moves)
    # In the order of their rounds: each was decided after the wire of the one before had begun.
    assert all(one.wire_at_s < other.decided_at_s for one, other in itertools.pairwise(moves))


def test_disjoint_moves_of_a_plan_go_side_by_side(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    trio.live_on(trio.b, "s-2")
    gate = trio.hold_mover()
    asked = trio.plan(("s-1", "host-b"), ("s-2", "host-a"))
    assert asked.rounds == 2  # never both ways between two nodes
    until("one is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    assert len(trio.begun()) == 1
    gate.set()
    assert trio.ended(asked.schedule_id).state == SCHEDULE_STATE_DONE
    assert (trio.locate("s-1").host_id, trio.locate("s-2").host_id) == ("host-b", "host-a")


def test_others_come_before_moves_that_have_not_begun(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    trio.live_on(trio.b, "s-9")
    gate = trio.hold_mover()
    drain = trio.drain()
    until("the first is on the wire", lambda: len(trio.in_state(drain.schedule_id, STEP_STATE_MOVING)) == 1)
    (first,) = trio.in_state(drain.schedule_id, STEP_STATE_MOVING)
    busy = trio.steps(drain.schedule_id)[first].destination_host_id
    free = "host-c" if busy == "host-b" else "host-b"
    waiting = trio.in_state(drain.schedule_id, STEP_STATE_WAITING)
    # It would be the drain's next; its player's own wish is done at once.
    asked = trio.stub.RequestMove(
        pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id=waiting[0], destination_host_id=free)
    ).move
    assert asked.state == move_pb2.MOVE_STATE_OPEN
    # Told to wait for the busy one: the place that comes free there is this caller's, not the drain's.
    request = pb.RequestMoveRequest(
        request_id=str(uuid.uuid4()), session_id="s-9", destination_host_id="host-c", patience_s=60
    )
    deferred = trio.stub.RequestMove(request).move
    assert deferred.verdict.kind == move_pb2.VERDICT_KIND_DEFER
    gate.set()
    for move_id in (asked.move_id, trio.steps(drain.schedule_id)[first].move_id):
        trio.reach(move_id, move_pb2.MOVE_STATE_MOVED)
    request.request_id = str(uuid.uuid4())
    admitted = trio.stub.RequestMove(request).move
    assert admitted.verdict.kind == move_pb2.VERDICT_KIND_ADMIT
    schedule = trio.ended(drain.schedule_id)
    states = {step.session_id: step.state for step in schedule.steps}
    assert states[waiting[0]] == STEP_STATE_GONE
    assert sorted(states.values()) == [STEP_STATE_MOVED, STEP_STATE_MOVED, STEP_STATE_GONE]


def test_a_session_that_leaves_between_look_and_question_is_gone(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.live_on(trio.a, "s-1")
    scheduled = Opener.scheduled

    def after_its_own_move(opener: Opener, request_id: str, digested: bytes, ask: Ask) -> MoveRecord | Waits:
        own = pb.RequestMoveRequest(
            request_id=str(uuid.uuid4()), session_id=ask.session_id, destination_host_id=ask.destination_host_id
        )
        trio.reach(trio.stub.RequestMove(own).move.move_id, move_pb2.MOVE_STATE_MOVED)
        return scheduled(opener, request_id, digested, ask)

    monkeypatch.setattr(Opener, "scheduled", after_its_own_move)
    schedule = trio.ended(trio.drain().schedule_id)
    assert [(step.state, step.reason) for step in schedule.steps] == [(STEP_STATE_GONE, "MOVED_BEFORE")]


def test_a_drain_goes_on_after_admission_was_restarted(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    gate = trio.hold_mover()
    asked = trio.drain()
    until("the first is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    (first,) = trio.in_state(asked.schedule_id, STEP_STATE_MOVING)
    before = trio.steps(asked.schedule_id)[first].move_id
    trio.stop_admission()
    gate.set()
    trio.start()
    schedule = trio.ended(asked.schedule_id)
    assert schedule.state == SCHEDULE_STATE_DONE
    assert [step.state for step in schedule.steps] == [STEP_STATE_MOVED] * 3
    again = {step.session_id: step for step in schedule.steps}[first]
    assert (again.attempt, again.move_id != before) == (1, True)
    assert trio.get(before).reason == "ADMISSION_RESTARTED"
    assert sorted(session_id for host in (trio.b, trio.c) for session_id in host.sessions) == list(THREE)
    assert all(held.state == LIVE for host in (trio.b, trio.c) for held in host.sessions.values())


def test_what_cannot_be_moved_stays_and_says_why(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    for host in (trio.b, trio.c):
        host.fingerprint = Fingerprint({"torch": "1.0", "cpu": "AVX2"})
    trio.register()
    schedule = trio.ended(trio.drain().schedule_id)
    assert schedule.state == SCHEDULE_STATE_DONE
    assert [step.state for step in schedule.steps] == [STEP_STATE_FAILED] * 3
    assert {step.reason for step in schedule.steps} == {"FINGERPRINT_MISMATCH"}
    assert all("cpu" in step.message for step in schedule.steps)
    assert all(trio.a.sessions[session_id].state == LIVE for session_id in THREE)
    assert trio.begun() == []


def test_memory_is_shared_out_before_anything_moves(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    trio.b.free_bytes, trio.c.free_bytes = 3 << 19, 1 << 19  # room for one of three, and for none
    for host in (trio.b, trio.c):
        trio.beat(host)
    schedule = trio.drain(dry_run=True)
    assert sorted(step.state for step in schedule.steps) == [STEP_STATE_WAITING, STEP_STATE_FAILED, STEP_STATE_FAILED]
    assert {step.reason for step in schedule.steps if step.state == STEP_STATE_FAILED} == {"NO_SLOT_MEMORY"}


def test_a_move_that_keeps_failing_is_given_up(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    trio.movers["mover-a"].error = errors.Unavailable("the link is down", reason="LINK_DOWN")
    schedule = trio.ended(trio.drain().schedule_id)
    (step,) = schedule.steps
    assert (step.state, step.reason, step.attempt) == (STEP_STATE_FAILED, "LINK_DOWN", 2)
    assert trio.begun() == ["s-1"] * 3
    assert trio.a.sessions["s-1"].state == LIVE


def test_a_session_that_is_closed_meanwhile_is_gone(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1", "s-2")
    gate = trio.hold_mover()
    asked = trio.drain()
    until("one is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    (waiting,) = trio.in_state(asked.schedule_id, STEP_STATE_WAITING)
    trio.a.close_session(waiting)
    for _ in range(3):
        trio.beat(trio.a)
    gate.set()
    schedule = trio.ended(asked.schedule_id)
    assert {step.session_id: step.state for step in schedule.steps}[waiting] == STEP_STATE_GONE


def test_a_session_that_comes_meanwhile_is_moved_too(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    gate = trio.hold_mover()
    asked = trio.drain()
    until("it is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    trio.live_on(trio.a, "s-2")
    gate.set()
    schedule = trio.ended(asked.schedule_id)
    assert {step.session_id: step.state for step in schedule.steps} == {
        "s-1": STEP_STATE_MOVED,
        "s-2": STEP_STATE_MOVED,
    }


def test_a_cancelled_schedule_begins_no_more(trio: Trio) -> None:
    trio.live_on(trio.a, *THREE)
    gate = trio.hold_mover()
    asked = trio.drain()
    until("one is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    trio.stub.CancelSchedule(pb.CancelScheduleRequest(schedule_id=asked.schedule_id))
    gate.set()
    schedule = trio.ended(asked.schedule_id)
    assert schedule.state == SCHEDULE_STATE_CANCELLED
    assert sorted(step.state for step in schedule.steps) == [STEP_STATE_MOVED, STEP_STATE_FAILED, STEP_STATE_FAILED]
    assert {step.reason for step in schedule.steps if step.state == STEP_STATE_FAILED} == {"SCHEDULE_CANCELLED"}
    assert len(trio.begun()) == 1
    again = trio.stub.CancelSchedule(pb.CancelScheduleRequest(schedule_id=asked.schedule_id)).schedule
    assert again.state == SCHEDULE_STATE_CANCELLED


def test_the_same_request_gives_the_same_schedule(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    gate = trio.hold_mover()
    request_id = str(uuid.uuid4())
    one = trio.drain(request_id=request_id)
    assert trio.drain(request_id=request_id).schedule_id == one.schedule_id
    # Another caller that wants the same host empty follows the drain that runs.
    assert trio.drain().schedule_id == one.schedule_id
    assert one.state == SCHEDULE_STATE_RUNNING
    with pytest.raises(grpc.RpcError, match="used before with other arguments"):
        trio.drain("host-b", request_id=request_id)
    gate.set()
    trio.ended(one.schedule_id)
    assert trio.drain(request_id=request_id).schedule_id == one.schedule_id
    with pytest.raises(grpc.RpcError, match="cannot be cancelled any more"):
        trio.stub.CancelSchedule(pb.CancelScheduleRequest(schedule_id=one.schedule_id))


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (pb.PlanRequest(), "moves"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id="s-1")] * 2), "planned twice"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id="S 1")]), "moves"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id="s-1")], patience_s=-1), "patience_s"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id="s-1")], patience_s=float("nan")), "patience_s"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id="s-1")], request_id="no"), "request_id"),
        (pb.PlanRequest(moves=[pb.PlannedMove(session_id=f"s-{index}") for index in range(1_001)]), "1001 moves"),
    ],
)
def test_bad_plans_are_refused_by_field(trio: Trio, request_: pb.PlanRequest, told: str) -> None:
    with pytest.raises(grpc.RpcError, match=told) as refused:
        trio.stub.Plan(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_unknown_hosts_and_schedules(trio: Trio) -> None:
    for call in (
        lambda: trio.drain("host-x"),
        lambda: trio.drain("host-x", dry_run=True),
        lambda: trio.stub.Undrain(pb.UndrainRequest(host_id="host-x")),
        lambda: trio.schedule(str(uuid.uuid4())),
        lambda: trio.stub.CancelSchedule(pb.CancelScheduleRequest(schedule_id=str(uuid.uuid4()))),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_plan_tells_what_it_knows_of_each_session(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    schedule = trio.ended(trio.plan(("s-1", "host-a"), ("s-7", "")).schedule_id)
    found = {step.session_id: (step.state, step.reason) for step in schedule.steps}
    assert found == {"s-1": (STEP_STATE_FAILED, "MOVE_TO_ITSELF"), "s-7": (STEP_STATE_FAILED, "UNKNOWN_SESSION")}


def test_patience_ends_where_nothing_can_begin(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    trio.live_on(trio.b, "s-9")
    gate = trio.hold_mover()
    theirs = trio.stub.RequestMove(
        pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id="s-9", destination_host_id="host-c")
    ).move
    until("theirs is on the wire", lambda: trio.get(theirs.move_id).stage == "wire")
    schedule = trio.ended(trio.plan(("s-1", "host-c"), patience_s=0.2).schedule_id)
    (step,) = schedule.steps
    assert (step.state, step.reason, step.move_id) == (STEP_STATE_FAILED, "RECEIVER_BUSY", "")
    assert "nothing could begin for 0.2 s" in step.message
    gate.set()
    trio.reach(theirs.move_id, move_pb2.MOVE_STATE_MOVED)
    assert trio.a.sessions["s-1"].state == LIVE


def test_a_move_that_an_operator_cancels_is_not_begun_again(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    gate = trio.hold_mover()
    asked = trio.drain()
    until("it is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    trio.stub.CancelMove(pb.CancelMoveRequest(move_id=trio.steps(asked.schedule_id)["s-1"].move_id))
    gate.set()
    (step,) = trio.ended(asked.schedule_id).steps
    assert (step.state, step.reason, step.attempt) == (STEP_STATE_FAILED, "CANCELLED", 0)
    assert trio.begun() == ["s-1"]


def test_a_cancel_outlives_admission(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1", "s-2")
    gate = trio.hold_mover()
    asked = trio.drain()
    until("one is on the wire", lambda: len(trio.in_state(asked.schedule_id, STEP_STATE_MOVING)) == 1)
    assert trio.stub.Undrain(pb.UndrainRequest(host_id="host-a")).schedule_id == asked.schedule_id
    trio.stop_admission()
    gate.set()
    trio.start()
    schedule = trio.ended(asked.schedule_id)
    assert schedule.state == SCHEDULE_STATE_CANCELLED
    assert all(step.state in (STEP_STATE_FAILED, STEP_STATE_MOVED) for step in schedule.steps)
    hosts = trio.stub.ListEngineHosts(pb.ListEngineHostsRequest()).hosts
    assert not any(host.status.draining for host in hosts)


def test_a_host_without_sessions_is_drained_at_once(trio: Trio) -> None:
    schedule = trio.ended(trio.drain().schedule_id)
    assert (schedule.state, len(schedule.steps), schedule.rounds) == (SCHEDULE_STATE_DONE, 0, 0)


def test_a_drain_waits_for_what_was_on_its_way_to_the_host(trio: Trio) -> None:
    trio.live_on(trio.b, "s-9")
    gate = trio.hold_mover()
    coming = trio.stub.RequestMove(
        pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id="s-9", destination_host_id="host-a")
    ).move
    until("it is on the wire", lambda: trio.get(coming.move_id).stage == "wire")
    asked = trio.drain()
    assert trio.schedule(asked.schedule_id).state == SCHEDULE_STATE_RUNNING
    gate.set()
    schedule = trio.ended(asked.schedule_id)
    assert [(step.session_id, step.state) for step in schedule.steps] == [("s-9", STEP_STATE_MOVED)]
    assert trio.locate("s-9").host_id != "host-a"


def test_a_drain_waits_for_a_session_that_is_being_created_there(trio: Trio) -> None:
    wake = trio.silence(trio.a, "create")
    request = pb.PlaceSessionRequest(
        request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny", host_id="host-a"
    )
    placing = trio.stub.PlaceSession.future(request, timeout=20)
    until("the host is asked", lambda: "create" in trio.a.asked)
    asked = trio.drain()
    assert trio.schedule(asked.schedule_id).state == SCHEDULE_STATE_RUNNING
    wake.set()
    session_id = placing.result().session.descriptor.session_id
    schedule = trio.ended(asked.schedule_id)
    assert [(step.session_id, step.state) for step in schedule.steps] == [(session_id, STEP_STATE_MOVED)]


def test_two_schedules_share_no_node_at_any_time(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    trio.live_on(trio.b, "s-2")
    gate = trio.hold_mover()
    one = trio.plan(("s-1", "host-c"))
    until("the first is on the wire", lambda: len(trio.in_state(one.schedule_id, STEP_STATE_MOVING)) == 1)
    other = trio.plan(("s-2", "host-a"))
    until("it was told why", lambda: trio.steps(other.schedule_id)["s-2"].reason == "YIELDS")
    assert trio.begun() == ["s-1"]
    gate.set()
    assert trio.ended(one.schedule_id).state == SCHEDULE_STATE_DONE
    assert [step.state for step in trio.ended(other.schedule_id).steps] == [STEP_STATE_MOVED]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drains_plans_callers_and_restarts_at_once(trio: Trio, seed: int) -> None:
    """Whatever happens at the same time: every schedule ends, each session has one owner, and wires share no node."""
    draw = random.Random(seed)
    ids = [f"s-{number}" for number in range(9)]
    for number, session_id in enumerate(ids):
        trio.live_on((trio.a, trio.b, trio.c)[number % 3], session_id)
    schedules = [trio.drain("host-a").schedule_id]
    schedules.append(trio.plan(*((session_id, "") for session_id in draw.sample(ids, 4))).schedule_id)
    for _ in range(3):
        asked = pb.RequestMoveRequest(
            request_id=str(uuid.uuid4()), session_id=draw.choice(ids), destination_host_id=draw.choice(("", "host-b"))
        )
        with suppress(grpc.RpcError):  # it is in a move, or there already
            trio.stub.RequestMove(asked, timeout=10)
        until("something was begun", lambda: bool(trio.begun()))
        trio.restart_admission()
    schedules.append(trio.drain("host-b").schedule_id)
    ended = [trio.ended(schedule_id) for schedule_id in schedules]
    assert {schedule.state for schedule in ended} == {SCHEDULE_STATE_DONE}
    owners = [
        (session_id, host.host_id)
        for host in trio.hosts.values()
        for session_id, held in host.sessions.items()
        if held.state == LIVE
    ]
    assert sorted(session_id for session_id, _ in owners) == ids
    assert {host_id for _, host_id in owners} == {"host-c"}
    moves = [trio.get(move.move_id) for move in trio.stub.ListMoves(pb.ListMovesRequest(page_size=1000)).moves]
    scheduled = {step.move_id for schedule in ended for step in schedule.steps}
    for one, other in itertools.combinations([move for move in moves if move.wire_at_s], 2):
        nodes = {one.source_host_id, one.destination_host_id}, {other.source_host_id, other.destination_host_id}
        if not nodes[0].isdisjoint(nodes[1]) and {one.move_id, other.move_id} <= scheduled:
            first, second = sorted((one, other), key=lambda move: move.decided_at_s)
            assert wire_end_s(trio, first) <= second.decided_at_s


def wire_end_s(trio: Trio, move: move_pb2.Move) -> float:
    """When a move's bytes had landed, or it was given up before."""
    left_s = next(line.at_s for line in move.transitions if line.to_state != move_pb2.MOVE_STATE_OPEN)
    return min(left_s, *(mover.verified_at_s.get(move.move_id, left_s) for mover in trio.movers.values()))


def test_a_destination_that_drains_is_not_waited_for(trio: Trio) -> None:
    trio.live_on(trio.a, "s-1")
    assert trio.ended(trio.drain("host-b").schedule_id).state == SCHEDULE_STATE_DONE
    (step,) = trio.ended(trio.plan(("s-1", "host-b")).schedule_id).steps
    assert (step.state, step.reason) == (STEP_STATE_FAILED, "UNREACHABLE")
    assert "draining" in step.message

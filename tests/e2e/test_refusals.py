"""Moves that must not happen: the right status and reason, and nothing changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from e2e_tools import await_hold, direct_sessions, hold, step, until

from worldline import errors, rpc
from worldline.client import Client, Session
from worldline.contract import Contract, ContractClass, Tier
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb
from worldline.v1 import move_pb2


@pytest.fixture(scope="module")
def small_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """host-b has hardly any memory."""
    options = {"host-b": {"budget_bytes": 4 << 20}, "admission": {"heartbeat_s": 0.2}}
    with Fleet(tmp_path_factory.mktemp("small"), TWO_NODES, fault_injection=True, options=options) as running:
        yield running


@pytest.fixture
def small(small_fleet: Fleet) -> Iterator[Client]:
    with Client(small_fleet.target) as opened:
        yield opened


@pytest.fixture
def session(small: Client) -> Iterator[Session]:
    placed = small.place("window-rewrite", "tiny", 1, host_id="host-a")
    yield placed
    small.close_session(placed)


def unchanged(fleet: Fleet, session: Session) -> None:
    """The session is live where it was, with its first epoch, and nothing is staged anywhere else."""
    here = {info.descriptor.session_id: info for info in direct_sessions(fleet.members["host-a"].address)}
    assert here[session.session_id].state == host_pb.SESSION_STATE_LIVE
    assert here[session.session_id].epoch == 1
    there = {info.descriptor.session_id for info in direct_sessions(fleet.members["host-b"].address)}
    assert session.session_id not in there


def test_to_itself(small_fleet: Fleet, small: Client, session: Session) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        small.request_move(session.session_id, "host-a")
    assert caught.value.reason == "MOVE_TO_ITSELF"
    unchanged(small_fleet, session)


def test_to_an_unknown_host(small_fleet: Fleet, small: Client, session: Session) -> None:
    with pytest.raises(errors.NotFound):
        small.request_move(session.session_id, "host-z")
    unchanged(small_fleet, session)


def test_of_an_unknown_session(small: Client) -> None:
    with pytest.raises(errors.NotFound):
        small.request_move("no-such-session", "host-b")


def test_to_a_full_host(small_fleet: Fleet, small: Client) -> None:
    large = small.place("window-rewrite", "small", 1, host_id="host-a")
    move = small.request_move(large.session_id, "host-b")
    assert move.state == move_pb2.MOVE_STATE_REFUSED
    failed = {clause.name for clause in move.verdict.clauses if clause.verdict == move_pb2.VERDICT_KIND_REJECT}
    assert failed == {"slot_memory"}
    unchanged(small_fleet, large)
    small.close_session(large)


def test_past_an_impossible_horizon(small_fleet: Fleet, small: Client) -> None:
    contract = Contract(ContractClass.C1, 0.001, Tier.T0)
    hasty = small.place("window-rewrite", "tiny", 1, host_id="host-a", contract=contract)
    move = small.request_move(hasty.session_id, "host-b")
    failed = {clause.name for clause in move.verdict.clauses if clause.verdict == move_pb2.VERDICT_KIND_REJECT}
    assert "deadline_gate" in failed
    unchanged(small_fleet, hasty)
    small.close_session(hasty)


def test_two_at_once(small_fleet: Fleet, small: Client, session: Session) -> None:
    first = small.request_move(session.session_id, "host-b", faults=[hold("freeze", 5.0)])
    await_hold(small, first.move_id, "freeze")
    with pytest.raises(errors.Owned) as caught:
        small.request_move(session.session_id, "host-b")
    assert caught.value.resource is not None
    small.cancel(first.move_id)
    assert small.wait(first.move_id, timeout_s=30).state == move_pb2.MOVE_STATE_ABORTED
    unchanged(small_fleet, session)


@pytest.mark.parametrize("at", ["reserve", "freeze", "verify", "commit"])
def test_cancelled(small_fleet: Fleet, small: Client, session: Session, at: str) -> None:
    asked = small.request_move(session.session_id, "host-b", faults=[hold(at, 20.0)])
    await_hold(small, asked.move_id, at)
    small.cancel(asked.move_id)
    move = small.wait(asked.move_id, timeout_s=15)
    assert (move.state, move.reason) == (move_pb2.MOVE_STATE_ABORTED, "CANCELLED")
    unchanged(small_fleet, session)
    with small.play(session) as play:
        step(play)


def test_cancelled_too_late(small: Client, session: Session) -> None:
    asked = small.request_move(session.session_id, "host-b", faults=[hold("take", 2.0)])
    await_hold(small, asked.move_id, "take")
    with pytest.raises(errors.WrongState):
        small.cancel(asked.move_id)
    assert small.wait(asked.move_id, timeout_s=30).state == move_pb2.MOVE_STATE_MOVED


def test_an_expired_deadline_aborts(small_fleet: Fleet, small: Client) -> None:
    contract = Contract(ContractClass.C1, 1.0, Tier.T0)
    hasty = small.place("window-rewrite", "tiny", 1, host_id="host-a", contract=contract)
    asked = small.request_move(hasty.session_id, "host-b", faults=[hold("verify", 20.0)])
    assert asked.verdict.kind == move_pb2.VERDICT_KIND_ADMIT
    move = small.wait(asked.move_id, timeout_s=30)
    assert move.state == move_pb2.MOVE_STATE_ABORTED
    assert move.reason in ("DEADLINE_EXCEEDED", "NO_PROGRESS", "FREEZE_EXPIRED"), move
    unchanged(small_fleet, hasty)
    small.close_session(hasty)


def test_the_same_request_twice_is_one_move(small: Client, session: Session) -> None:
    request_id = str(uuid.uuid4())
    first = small.request_move(session.session_id, "host-b", request_id=request_id)
    done = small.wait(first.move_id, timeout_s=30)
    again = small.request_move(session.session_id, "host-b", request_id=request_id)
    assert again.move_id == first.move_id
    assert small.get_move(again.move_id).source_receipt == done.source_receipt
    with pytest.raises(errors.BadRequest):
        small.request_move(session.session_id, "host-a", request_id=request_id)


def test_live_moves_are_evaluated_not_executed(small: Client, session: Session) -> None:
    answer = small.evaluate(session.session_id, "host-b", live=True)
    assert "flux" in {clause.name for clause in answer.verdict.clauses}
    request = pb.RequestMoveRequest(
        request_id=str(uuid.uuid4()), session_id=session.session_id, mode=move_pb2.MOVE_MODE_LIVE
    )
    with pytest.raises(errors.Unsupported), rpc.calling("admission"):
        small.admission.RequestMove(request, timeout=10)


@pytest.mark.slow
def test_to_a_dead_host(own_fleet: Fleet) -> None:
    with Client(own_fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
        own_fleet.kill("host-b")
        until("it is known to be silent", lambda: not all(host.ready for host in client.hosts()))
        move = client.request_move(session.session_id, "host-b")
        assert move.state == move_pb2.MOVE_STATE_REFUSED
        assert "reachable" in {
            clause.name for clause in move.verdict.clauses if clause.verdict != move_pb2.VERDICT_KIND_ADMIT
        }


@pytest.mark.slow
def test_between_mismatched_hosts(tmp_path_factory: pytest.TempPathFactory) -> None:
    options = {"host-b": {"torch_threads": 2}}
    with (
        Fleet(tmp_path_factory.mktemp("mismatch"), TWO_NODES, options=options) as fleet,
        Client(fleet.target) as client,
    ):
        session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
        move = client.request_move(session.session_id, "host-b")
        assert move.state == move_pb2.MOVE_STATE_REFUSED
        clause = next(clause for clause in move.verdict.clauses if clause.name == "fingerprint")
        assert clause.verdict == move_pb2.VERDICT_KIND_REJECT
        assert "threads" in clause.arithmetic

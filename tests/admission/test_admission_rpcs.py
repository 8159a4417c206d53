"""The RPCs: idempotency, paging, watching, refusals, and input that nobody should send."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import DEADLINE, FINGERPRINT, FakeHost, descriptor, until

from worldline import errors, rpc, wire
from worldline.manifest import Fingerprint
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import contract_pb2, engine_host_service_pb2
from worldline.v1.move_pb2 import (
    FAULT_KIND_HOLD,
    MOVE_MODE_LIVE,
    MOVE_STATE_ABORTED,
    MOVE_STATE_MOVED,
    MOVE_STATE_OPEN,
    MOVE_STATE_REFUSED,
    VERDICT_KIND_ADMIT,
    VERDICT_KIND_DEFER,
    VERDICT_KIND_REJECT,
    Fault,
    Move,
)

UNKNOWN = str(uuid.uuid4())


def failed(move: Move) -> dict[str, str]:
    return {clause.name: clause.reason for clause in move.verdict.clauses if clause.verdict != VERDICT_KIND_ADMIT}


def refusal(call: Callable[[], object]) -> errors.WorldlineError:
    with pytest.raises(errors.WorldlineError) as caught, rpc.calling("admission"):
        call()
    return caught.value


# --- idempotency


def test_the_same_request_is_the_same_move(cluster: Cluster) -> None:
    cluster.with_session()
    request = pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id=SESSION, destination_host_id="host-b")
    first = cluster.stub.RequestMove(request).move
    moved = cluster.reach(first.move_id, MOVE_STATE_MOVED)
    again = cluster.stub.RequestMove(request).move
    assert again == moved
    cluster.restart_admission()
    assert cluster.stub.RequestMove(request).move == moved
    request.patience_s = 1.0
    assert refusal(lambda: cluster.stub.RequestMove(request)).reason == "REQUEST_ID_REUSED"


def test_many_at_once_with_one_id_make_one_move(cluster: Cluster) -> None:
    cluster.with_session()
    request = pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id=SESSION, destination_host_id="host-b")
    calls = [cluster.stub.RequestMove.future(request, timeout=10) for _ in range(20)]
    assert len({call.result().move.move_id for call in calls}) == 1


def test_two_moves_of_one_session(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.hold_mover()
    asked = cluster.move()
    second = refusal(cluster.move)
    assert isinstance(second, errors.Owned)
    assert second.resource == ("move", asked.move_id)


def test_a_placement_is_made_once(cluster: Cluster) -> None:
    request = pb.PlaceSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny", seed=7)
    first, second = cluster.stub.PlaceSession(request), cluster.stub.PlaceSession(request)
    assert first == second
    assert first.host_id == "host-a"
    assert first.public_address == "public.host-a:7000"
    where = cluster.locate(first.session.descriptor.session_id)
    assert (where.host_id, where.epoch, where.reachable) == ("host-a", 1, True)
    request.seed = 8
    assert refusal(lambda: cluster.stub.PlaceSession(request)).reason == "REQUEST_ID_REUSED"


def test_a_placement_whose_answer_was_lost_is_not_made_elsewhere(cluster: Cluster) -> None:
    cluster.b.free_bytes = 1 << 31
    cluster.beat(cluster.b)
    cluster.b.fail["create"] = errors.TimedOut("slow")
    request = pb.PlaceSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny")
    assert isinstance(refusal(lambda: cluster.stub.PlaceSession(request)), errors.TimedOut)
    del cluster.b.fail["create"]
    cluster.b.free_bytes = 1
    cluster.beat(cluster.b)
    assert cluster.stub.PlaceSession(request).host_id == "host-b"


def test_a_full_host_is_passed_over(cluster: Cluster) -> None:
    cluster.a.fail["create"] = errors.Exhausted("no room")
    request = pb.PlaceSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny")
    assert cluster.stub.PlaceSession(request).host_id == "host-b"
    cluster.b.fail["create"] = errors.Exhausted("no room")
    request.request_id = str(uuid.uuid4())
    assert isinstance(refusal(lambda: cluster.stub.PlaceSession(request)), errors.Exhausted)


def test_a_placement_on_a_named_host(cluster: Cluster) -> None:
    request = pb.PlaceSessionRequest(
        request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny", host_id="host-b"
    )
    assert cluster.stub.PlaceSession(request).host_id == "host-b"


# --- verdicts


def test_a_full_destination(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.free_bytes = 10
    cluster.beat(cluster.b)
    move = cluster.move()
    assert (move.state, move.verdict.kind, failed(move)) == (
        MOVE_STATE_REFUSED,
        VERDICT_KIND_REJECT,
        {"slot_memory": "NO_SLOT_MEMORY"},
    )
    assert cluster.get(move.move_id) == move
    assert cluster.a.asked == []


def test_every_failed_clause_is_told(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.fingerprint = Fingerprint({**FINGERPRINT.fields, "torch": "2.12.1"})
    cluster.b.free_bytes, cluster.b.draining = 10, True
    cluster.register()
    move = cluster.move(transport="rdma")
    assert failed(move) == {
        "slot_memory": "NO_SLOT_MEMORY",
        "fingerprint": "FINGERPRINT_MISMATCH",
        "reachable": "NO_COMMON_TRANSPORT",
    }
    assert "draining" in move.message
    assert "2.12.1" in move.message


def test_a_busy_receiver_defers_those_who_wait(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.a.hold_session("s-2")
    cluster.beat(cluster.a)
    cluster.hold_mover()
    cluster.move()
    request = pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id="s-2", destination_host_id="host-b")
    assert failed(cluster.stub.RequestMove(request).move) == {"receiver": "RECEIVER_BUSY"}
    patient = pb.EvaluateMoveRequest(session_id="s-2", destination_host_id="host-b", patience_s=60)
    verdict = cluster.stub.EvaluateMove(patient).verdict
    assert verdict.kind == VERDICT_KIND_DEFER
    assert 0 < verdict.retry_after_s <= 1


def test_an_evaluation_changes_nothing(cluster: Cluster) -> None:
    cluster.with_session()
    answer = cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION, mode=MOVE_MODE_LIVE))
    assert (answer.verdict.kind, answer.destination_host_id) == (VERDICT_KIND_ADMIT, "host-b")
    assert len(cluster.stub.ListMoves(pb.ListMovesRequest()).moves) == 0


def test_moves_that_must_not_be(cluster: Cluster) -> None:
    cluster.with_session()
    assert refusal(lambda: cluster.move("host-a")).reason == "MOVE_TO_ITSELF"
    assert refusal(lambda: cluster.move("host-x")).reason == "UNKNOWN_HOST"
    assert refusal(lambda: cluster.move(mode=MOVE_MODE_LIVE)).reason == "LIVE_NOT_EXECUTED"
    request = pb.RequestMoveRequest(request_id=UNKNOWN, session_id="s-none")
    assert refusal(lambda: cluster.stub.RequestMove(request)).reason == "UNKNOWN_SESSION"
    request = pb.RequestMoveRequest(request_id=UNKNOWN, session_id="s-none", mode=MOVE_MODE_LIVE)
    assert isinstance(refusal(lambda: cluster.stub.RequestMove(request)), errors.Unsupported)


def test_faults_need_the_setting(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.stop_admission()
    cluster.settings = cluster.settings.model_copy(update={"fault_injection": False})
    cluster.start()
    fault = Fault(kind=FAULT_KIND_HOLD, step="commit", seconds=1)
    denied = refusal(lambda: cluster.move(faults=[fault]))
    assert isinstance(denied, errors.NotAllowed)
    assert denied.reason == "FAULT_INJECTION_OFF"


# --- listing and watching


def test_moves_are_listed_newest_first_page_by_page(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].error = errors.DataLoss("no")
    made = [cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED).move_id for _ in range(5)]
    seen, token = [], ""
    for _ in range(3):
        page = cluster.stub.ListMoves(pb.ListMovesRequest(page_size=2, page_token=token))
        seen += [move.move_id for move in page.moves]
        token = page.next_page_token
    assert token == ""
    assert seen == made[::-1]
    assert not page.moves[0].transitions
    assert len(cluster.stub.ListMoves(pb.ListMovesRequest(session_id="s-9")).moves) == 0


def test_hosts_are_listed_page_by_page(cluster: Cluster) -> None:
    page = cluster.stub.ListEngineHosts(pb.ListEngineHostsRequest(page_size=1))
    assert [(host.registration.host_id, host.ready) for host in page.hosts] == [("host-a", True)]
    assert (page.term, page.fault_injection) == (1, True)
    page = cluster.stub.ListEngineHosts(pb.ListEngineHostsRequest(page_size=1, page_token=page.next_page_token))
    assert [host.registration.host_id for host in page.hosts] == ["host-b"]
    assert page.next_page_token == ""


def test_a_watcher_sees_the_move_to_its_end(cluster: Cluster) -> None:
    cluster.with_session()
    gate = cluster.hold_mover()
    asked = cluster.move()
    seen = []
    for answer in cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=asked.move_id), timeout=20):
        seen.append(answer.move)
        gate.set()
    assert seen[0].state == MOVE_STATE_OPEN
    assert seen[-1] == cluster.get(asked.move_id)
    assert seen[-1].state == MOVE_STATE_MOVED
    (only,) = cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=asked.move_id), timeout=20)
    assert only.move == seen[-1]


def test_a_watcher_sees_what_the_move_is_held_at(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[Fault(kind=FAULT_KIND_HOLD, step="take", seconds=30)])
    call = cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=asked.move_id), timeout=20)
    assert any(answer.move.stage == "hold:take" for answer in call)
    call.cancel()


def test_watchers_are_bounded_and_let_go(cluster: Cluster) -> None:
    cluster.with_session()
    gate = cluster.hold_mover()
    asked = cluster.move()
    request = pb.WatchMoveRequest(move_id=asked.move_id)
    calls = [cluster.stub.WatchMove(request, timeout=30) for _ in range(cluster.settings.max_watchers)]
    for call in calls:
        next(call)
    assert refusal(lambda: list(cluster.stub.WatchMove(request, timeout=30))).reason == "TOO_MANY_WATCHERS"
    for call in calls:
        call.cancel()

    def watched() -> bool:
        try:
            with rpc.calling("admission"):
                next(cluster.stub.WatchMove(request, timeout=30)).move  # noqa: B018 - one answer is enough
        except errors.Exhausted:
            return False
        return True

    until("a watcher is taken again", watched)
    gate.set()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)


def test_stopping_admission_ends_its_watchers(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.hold_mover()
    asked = cluster.move()
    call = cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=asked.move_id), timeout=30)
    next(call)
    stopping = threading.Thread(target=cluster.admission.stop)
    stopping.start()
    assert isinstance(refusal(lambda: list(call)), errors.Unavailable)
    stopping.join()
    cluster.channel.close()
    cluster.start()
    cluster.reach(asked.move_id, MOVE_STATE_ABORTED)


# --- the fleet


def test_an_older_incarnation_is_refused(cluster: Cluster) -> None:
    old = cluster.a
    cluster.restart_host(old)
    assert isinstance(refusal(lambda: cluster.beat(old)), errors.StaleFence)
    stale = pb.RegisterEngineHostRequest(registration=old.registration(), status=old.status())
    assert refusal(lambda: cluster.stub.RegisterEngineHost(stale)).reason == "STALE_INCARNATION"


def test_a_fenced_incarnation_is_told_so_and_its_sessions_are_lost(cluster: Cluster) -> None:
    cluster.with_session()
    request = pb.FenceHostRequest(host_id="host-a", incarnation=1, reason="op: the rack burns")
    assert list(cluster.stub.FenceHost(request).lost_session_ids) == [SESSION]
    assert list(cluster.stub.FenceHost(request).lost_session_ids) == []
    assert cluster.beat(cluster.a).fenced
    again = pb.RegisterEngineHostRequest(registration=cluster.a.registration(), status=cluster.a.status())
    assert refusal(lambda: cluster.stub.RegisterEngineHost(again)).reason == "HOST_FENCED"
    cluster.stop_admission()
    del cluster.hosts["host-a"]
    cluster.start()
    assert cluster.beat(cluster.a).fenced
    assert isinstance(refusal(cluster.locate), errors.SessionLost)
    request.incarnation = 2
    assert refusal(lambda: cluster.stub.FenceHost(request)).reason == "UNKNOWN_INCARNATION"
    cluster.hosts["host-a"] = cluster.a


def test_admission_that_restarted_asks_hosts_to_register(cluster: Cluster) -> None:
    cluster.with_session()
    hosts = dict(cluster.hosts)
    cluster.stop_admission()
    cluster.hosts.clear()
    cluster.start()
    where = cluster.locate()
    assert (where.host_id, where.reachable) == ("host-a", False)
    assert cluster.beat(cluster.a).unknown
    cluster.hosts.update(hosts)
    cluster.register()
    assert not cluster.beat(cluster.a).unknown
    assert cluster.locate().reachable
    assert cluster.stub.HeartbeatMover(pb.HeartbeatMoverRequest(mover_id="mover-c")).unknown


def test_a_closed_session_is_forgotten(cluster: Cluster) -> None:
    cluster.with_session()
    del cluster.a.sessions[SESSION]
    for _ in range(2):
        cluster.beat(cluster.a)
        assert cluster.locate().host_id == "host-a"
    cluster.beat(cluster.a)
    assert refusal(cluster.locate).reason == "UNKNOWN_SESSION"


def test_a_second_owner_is_not_believed(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.hold_session(SESSION).epoch = 9
    cluster.beat(cluster.b)
    assert (cluster.locate().host_id, cluster.locate().epoch) == ("host-a", 1)


def test_staged_and_released_copies_are_not_adopted(cluster: Cluster) -> None:
    for number, state in enumerate(("RELEASED", "STAGED", "READY", "GONE")):
        held = cluster.a.hold_session(f"s-copy-{number}")
        held.state = engine_host_service_pb2.SessionState.Value(f"SESSION_STATE_{state}")
    cluster.beat(cluster.a)
    for number in range(4):
        assert refusal(lambda number=number: cluster.locate(f"s-copy-{number}")).reason == "UNKNOWN_SESSION"  # type: ignore[misc]


# --- hostile input

UUID = "3f8a8d0e-5b8e-4c55-9d3b-0a4a1b2c3d4e"
LONG = "a" * 100_000


def registration(**changes: object) -> pb.RegisterEngineHostRequest:
    fields: dict[str, object] = {
        "host_id": "host-x",
        "incarnation": 1,
        "cluster_address": "127.0.0.1:1",
        "public_address": "127.0.0.1:1",
        "mover_id": "mover-a",
        "fingerprint": wire.fingerprint_to(FINGERPRINT),
    }
    return pb.RegisterEngineHostRequest(registration=pb.EngineHostRegistration(**{**fields, **changes}))  # type: ignore[arg-type]


def session_info(**changes: object) -> pb.HeartbeatEngineHostRequest:
    described = wire.descriptor_to(descriptor("s-x", DEADLINE))
    info = engine_host_service_pb2.SessionInfo(**{"descriptor": described, "state": 1, "epoch": 1, **changes})  # type: ignore[arg-type]
    return pb.HeartbeatEngineHostRequest(host_id="host-a", incarnation=1, status=pb.EngineHostStatus(sessions=[info]))


def other_digest() -> object:
    described = wire.descriptor_to(descriptor("s-x", DEADLINE))
    described.seed = 99
    return described


HOSTILE = [
    ("PlaceSession", pb.PlaceSessionRequest(request_id="1", engine="e", preset="p")),
    ("PlaceSession", pb.PlaceSessionRequest(request_id=UUID, engine="", preset="p")),
    ("PlaceSession", pb.PlaceSessionRequest(request_id=UUID, engine=LONG, preset="p")),
    ("PlaceSession", pb.PlaceSessionRequest(request_id=UUID, engine="e", preset="p", host_id="../../etc")),
    (
        "PlaceSession",
        pb.PlaceSessionRequest(
            request_id=UUID,
            engine="e",
            preset="p",
            contract=contract_pb2.Contract(
                contract_class=contract_pb2.CONTRACT_CLASS_C4, tier=contract_pb2.DETERMINISM_TIER_T2
            ),
        ),
    ),
    ("LocateSession", pb.LocateSessionRequest(session_id="")),
    ("LocateSession", pb.LocateSessionRequest(session_id="S'; DROP TABLE moves; --")),
    ("RequestMove", pb.RequestMoveRequest(session_id=SESSION)),
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=LONG)),
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=SESSION, patience_s=float("nan"))),
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=SESSION, patience_s=-1)),
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=SESSION, mode=77)),  # type: ignore[arg-type]
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=SESSION, transport=LONG)),
    ("RequestMove", pb.RequestMoveRequest(request_id=UUID, session_id=SESSION, faults=[Fault()])),
    (
        "RequestMove",
        pb.RequestMoveRequest(
            request_id=UUID, session_id=SESSION, faults=[Fault(kind=FAULT_KIND_HOLD, step="nowhere", seconds=1)]
        ),
    ),
    (
        "RequestMove",
        pb.RequestMoveRequest(
            request_id=UUID, session_id=SESSION, faults=[Fault(kind=FAULT_KIND_HOLD, step="commit", seconds=1e9)]
        ),
    ),
    ("EvaluateMove", pb.EvaluateMoveRequest(session_id=SESSION, patience_s=float("inf"))),
    ("EvaluateMove", pb.EvaluateMoveRequest(session_id=SESSION, destination_host_id="HOST")),
    ("GetMove", pb.GetMoveRequest(move_id="nope")),
    ("ListMoves", pb.ListMovesRequest(page_size=1001)),
    ("ListMoves", pb.ListMovesRequest(page_token="???")),
    ("ListMoves", pb.ListMovesRequest(page_token="aG9zdHM6aG9zdC1h")),
    ("ListMoves", pb.ListMovesRequest(page_token=LONG)),
    ("ListMoves", pb.ListMovesRequest(session_id="Ü")),
    ("CancelMove", pb.CancelMoveRequest(move_id="")),
    ("ListEngineHosts", pb.ListEngineHostsRequest(page_size=1 << 31)),
    ("ListEngineHosts", pb.ListEngineHostsRequest(page_token="bW92ZXM6MQ==")),
    ("FenceHost", pb.FenceHostRequest(host_id="host-a", incarnation=1)),
    ("FenceHost", pb.FenceHostRequest(host_id="host-a", incarnation=1, reason=LONG)),
    ("RegisterEngineHost", pb.RegisterEngineHostRequest()),
    ("RegisterEngineHost", registration(incarnation=0)),
    ("RegisterEngineHost", registration(incarnation=1 << 63)),
    ("RegisterEngineHost", registration(instance_id="no hex")),
    ("RegisterEngineHost", registration(instance_id="a" * 33)),
    ("RegisterEngineHost", registration(state_id="A" * 32)),
    ("HeartbeatEngineHost", session_info(epoch=1 << 63)),
    ("HeartbeatEngineHost", session_info(state_bytes=(1 << 64) - 1)),
    ("RegisterEngineHost", registration(cluster_address="nowhere")),
    ("RegisterEngineHost", registration(public_address="x:99999")),
    ("RegisterEngineHost", registration(engines=[LONG])),
    ("RegisterEngineHost", registration(engines=["e/p"] * 5000)),
    (
        "RegisterEngineHost",
        registration(fingerprint=contract_pb2.Fingerprint(fields={"torch": "x"}, digest=FINGERPRINT.digest)),
    ),
    ("HeartbeatEngineHost", pb.HeartbeatEngineHostRequest(host_id="-")),
    ("HeartbeatEngineHost", session_info(descriptor=other_digest())),
    ("HeartbeatEngineHost", session_info(state=99)),
    ("HeartbeatEngineHost", session_info(block_s=float("nan"))),
    ("HeartbeatEngineHost", session_info(block_s=-1.0)),
    ("RegisterMover", pb.RegisterMoverRequest()),
    (
        "RegisterMover",
        pb.RegisterMoverRequest(
            registration=pb.MoverRegistration(mover_id="mover-a", address="a:1", transports=["t"] * 100)
        ),
    ),
    ("HeartbeatMover", pb.HeartbeatMoverRequest(mover_id="UPPER")),
]


def test_hostile_input_is_refused_by_field(cluster: Cluster) -> None:
    cluster.with_session()
    for method, request in HOSTILE:
        error = refusal(lambda method=method, request=request: getattr(cluster.stub, method)(request, timeout=5))  # type: ignore[misc]
        assert isinstance(error, errors.BadRequest), (method, request, error)
        assert error.violations, (method, request)
        assert len(error.message) < 2_000
    assert refusal(lambda: list(cluster.stub.WatchMove(pb.WatchMoveRequest(move_id="x")))).reason == "BAD_REQUEST"
    assert cluster.locate().host_id == "host-a"


def test_what_does_not_exist(cluster: Cluster) -> None:
    for call in (
        lambda: cluster.stub.GetMove(pb.GetMoveRequest(move_id=UNKNOWN)),
        lambda: cluster.stub.CancelMove(pb.CancelMoveRequest(move_id=UNKNOWN)),
        lambda: list(cluster.stub.WatchMove(pb.WatchMoveRequest(move_id=UNKNOWN))),
        lambda: cluster.stub.FenceHost(pb.FenceHostRequest(host_id="host-x", incarnation=1, reason="r")),
        lambda: cluster.stub.PlaceSession(pb.PlaceSessionRequest(request_id=UUID, engine="e", preset="p")),
    ):
        assert isinstance(refusal(call), errors.NotFound)


def test_random_bytes_are_no_request(cluster: Cluster) -> None:
    raw = cluster.channel.unary_unary("/worldline.v1.AdmissionService/RequestMove")
    assert refusal(lambda: raw(b"\xff" * 1000, timeout=5))
    big = cluster.channel.unary_unary("/worldline.v1.AdmissionService/RequestMove")
    assert refusal(lambda: big(b"\x0a" * (17 << 20), timeout=5))
    assert cluster.stub.ListMoves(pb.ListMovesRequest(), timeout=5) is not None


def test_a_silent_destination(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.stop_admission()
    cluster.settings = cluster.settings.model_copy(update={"silent_s": 0.05, "silent_grace_s": 30.0})
    cluster.start()

    def silent() -> bool:
        cluster.beat(cluster.a)
        for name in cluster.movers:
            cluster.stub.HeartbeatMover(pb.HeartbeatMoverRequest(mover_id=name))
        ask = pb.EvaluateMoveRequest(session_id=SESSION, destination_host_id="host-b", patience_s=5)
        verdict = cluster.stub.EvaluateMove(ask).verdict
        return verdict.kind == VERDICT_KIND_DEFER and verdict.retry_after_s == cluster.settings.heartbeat_s

    until("a silent destination defers", silent)
    move = cluster.move()
    assert failed(move) == {"reachable": "SILENT"}


def test_the_host_that_a_session_moves_to_may_be_new(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.hosts["host-c"] = FakeHost("host-c", "mover-b")
    cluster.register()
    cluster.reach(cluster.move("host-c").move_id, MOVE_STATE_MOVED)
    assert cluster.locate().host_id == "host-c"

"""What a decision asks the rules about: what hosts and movers report, and nothing that they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import STATE_BYTES, until

from admission import decision
from admission.estimators import PathEstimate
from admission.facts import MoverFacts
from admission.offers import Pins, paths_between
from admission.profile import Profile
from admission.rules import Choice, Question
from worldline import errors, rpc
from worldline.move import StageTimes
from worldline.plan import Placement, Plan
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import state_pb2
from worldline.v1.move_pb2 import (
    MOVE_STATE_MOVED,
    VERDICT_KIND_ADMIT,
    VERDICT_KIND_DEFER,
    VERDICT_KIND_REJECT,
    Clause,
)

PIPELINED, SEQUENTIAL = Placement.PIPELINED, Placement.SEQUENTIAL


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Every question that the rules are asked."""
    found: list[Question] = []
    choose: Callable[[Question], Choice] = decision.choose
    monkeypatch.setattr(decision, "choose", lambda question: (found.append(question), choose(question))[1])
    return found


def evaluate(cluster: Cluster, **fields: object) -> pb.EvaluateMoveResponse:
    return cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION, **fields))  # type: ignore[arg-type]


def failed(answer: pb.EvaluateMoveResponse) -> dict[str, Clause]:
    return {clause.name: clause for clause in answer.verdict.clauses if clause.verdict != VERDICT_KIND_ADMIT}


def test_what_nobody_told_stays_untold(cluster: Cluster, asked: list[Question]) -> None:
    cluster.with_session()
    assert evaluate(cluster).verdict.kind == VERDICT_KIND_ADMIT
    (question,) = asked
    untold = (
        "source_crc",
        "destination_crc",
        "slot_warm",
        "first_touch_s",
        "quantum_s",
        "host_link_shared",
        "benefit_s",
    )
    assert {name: getattr(question, name) for name in untold} == dict.fromkeys(untold)
    assert question.escapes.replay_s is None
    assert [path.transport for path in question.offers.paths] == ["tcp"]
    assert question.offers.paths[0].retransmit_floor_s is None


def test_a_movers_checksum_rate_is_charged(cluster: Cluster, asked: list[Question]) -> None:
    told = cluster.movers["mover-b"].registration()
    told.verify_bytes_per_s, told.verify_threads = 2e9, 3
    cluster.stub.RegisterMover(pb.RegisterMoverRequest(registration=told))
    cluster.with_session()
    evaluate(cluster)
    assert asked[-1].destination_crc is not None
    assert asked[-1].destination_crc.rate_Bps == 6e9
    cluster.stub.HeartbeatMover(pb.HeartbeatMoverRequest(mover_id="mover-b", verify_bytes_per_s=1e9))
    numbers = {clause.name: clause.numbers for clause in evaluate(cluster).verdict.clauses}
    assert numbers["verified_rate"]["crc_Bps"] == 3e9
    cluster.stub.HeartbeatMover(pb.HeartbeatMoverRequest(mover_id="mover-b"))  # told nothing new
    evaluate(cluster)
    assert asked[-1].destination_crc.rate_Bps == 3e9


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"codec": "zstd"}, "codec 'zstd' is not offered by mover-a and mover-b"),
        (
            {"placement": state_pb2.VERIFICATION_PLACEMENT_IN_PATH},
            "placement IN_PATH is not offered by mover-a and mover-b",
        ),
        ({"transport": "rdma"}, "transport 'rdma' is not offered by mover-a and mover-b"),
        ({"transport": "local"}, "transport local needs both hosts beside one mover, not mover-a and mover-b"),
    ],
)
def test_what_is_pinned_and_not_there_is_refused(cluster: Cluster, fields: dict[str, object], told: str) -> None:
    cluster.with_session()
    answer = evaluate(cluster, **fields)
    assert answer.verdict.kind == VERDICT_KIND_REJECT
    assert failed(answer)["reachable"].arithmetic == told
    assert failed(answer)["reachable"].reason == "NO_COMMON_TRANSPORT"


def test_what_is_pinned_and_there_is_in_the_plan(cluster: Cluster) -> None:
    for mover in cluster.movers.values():
        told = mover.registration()
        told.placements.extend(
            [state_pb2.VERIFICATION_PLACEMENT_PIPELINED, state_pb2.VERIFICATION_PLACEMENT_SEQUENTIAL]
        )
        told.codecs.extend(["raw", "zstd"])
        cluster.stub.RegisterMover(pb.RegisterMoverRequest(registration=told))
    cluster.with_session()
    plan = cluster.move(codec="zstd", placement=state_pb2.VERIFICATION_PLACEMENT_SEQUENTIAL).plan
    assert (plan.codec, plan.placement) == ("zstd", state_pb2.VERIFICATION_PLACEMENT_SEQUENTIAL)


@pytest.mark.parametrize(("fields", "field"), [({"codec": "lz9"}, "codec"), ({"placement": 77}, "placement")])
def test_pins_that_are_none(cluster: Cluster, fields: dict[str, object], field: str) -> None:
    cluster.with_session()
    with pytest.raises(errors.BadRequest) as caught, rpc.calling("admission"):
        evaluate(cluster, **fields)
    assert field in caught.value.violations


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("verify_bytes_per_s", -1.0),
        ("retransmit_floor_s", float("nan")),
        ("codecs", ["x" * 33]),
        ("codecs", ["z"] * 17),
    ],
)
def test_what_no_mover_is_like(cluster: Cluster, field: str, value: object) -> None:
    told = pb.MoverRegistration(mover_id="m", address="m:1", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(errors.BadRequest) as caught, rpc.calling("admission"):
        cluster.stub.RegisterMover(pb.RegisterMoverRequest(registration=told))
    assert f"registration.{field}" in caught.value.violations


def test_a_heartbeat_with_no_rate_at_all(cluster: Cluster) -> None:
    beat = pb.HeartbeatMoverRequest(mover_id="mover-b", verify_bytes_per_s=float("inf"))
    with pytest.raises(errors.BadRequest) as caught, rpc.calling("admission"):
        cluster.stub.HeartbeatMover(beat)
    assert "verify_bytes_per_s" in caught.value.violations


# --- others on the wire


@pytest.fixture
def crossing(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in which every state fills its link, and two moves may come into one host."""
    made = Cluster(tmp_path, large_region_bytes=STATE_BYTES, receiver_cap=2)
    yield made
    made.close()


def test_a_move_the_other_way_is_waited_for(crossing: Cluster) -> None:
    crossing.with_session()
    crossing.b.hold_session("s-2")
    crossing.beat(crossing.b)
    gate = crossing.hold_mover()
    move = crossing.move()
    until("its bytes are on the wire", lambda: crossing.get(move.move_id).stage == "wire")
    ask = pb.EvaluateMoveRequest(session_id="s-2", destination_host_id="host-a", patience_s=60)
    answer = crossing.stub.EvaluateMove(ask)
    assert answer.verdict.kind == VERDICT_KIND_DEFER
    assert set(failed(answer)) == {"duplex"}
    assert move.move_id in failed(answer)["duplex"].arithmetic
    gate.set()
    crossing.reach(move.move_id, MOVE_STATE_MOVED)
    assert crossing.stub.EvaluateMove(ask).verdict.kind == VERDICT_KIND_ADMIT


def test_a_second_move_into_a_port_is_judged_with_the_first(crossing: Cluster, asked: list[Question]) -> None:
    crossing.with_session()
    crossing.a.hold_session("s-2")
    crossing.beat(crossing.a)
    gate = crossing.hold_mover()
    move = crossing.move()
    until("its bytes are on the wire", lambda: crossing.get(move.move_id).stage == "wire")
    crossing.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id="s-2", destination_host_id="host-b"))
    (other,) = asked[-1].port_moves
    assert (other.move_id, other.state_bytes, other.horizon_s) == (move.move_id, STATE_BYTES, 5.0)
    assert other.setup_s + STATE_BYTES / asked[-1].bandwidth_Bps == pytest.approx(move.verdict.predicted_s)
    assert [item.state_bytes for item in asked[-1].mover_moves] == [STATE_BYTES]
    gate.set()
    crossing.reach(move.move_id, MOVE_STATE_MOVED)


# --- what is offered

EVERYTHING = MoverFacts(
    "m",
    "m:1",
    frozenset({"tcp", "local", "rdma"}),
    4,
    0.27,
    placements=frozenset({PIPELINED, SEQUENTIAL}),
    codecs=frozenset({"raw", "zstd"}),
)
PLAN = Plan("rdma", 4 << 20, 2, PIPELINED, 1, 1, 1, codec="zstd")


def profile(*plans: Plan) -> Profile:
    """A profile on which each of these plans was run once, from m-1 to m-2."""
    made = Profile(PathEstimate.prior(1e9, 0.1), [], 600.0)
    for plan in plans:
        made.keep(made.after("m-1", "m-2", plan, 1 << 30, StageTimes(wire_s=0.2, downtime_s=0.3)))
    return made


def test_only_the_default_and_what_was_measured_is_offered() -> None:
    both = (EVERYTHING, EVERYTHING)
    (only,) = paths_between(profile(), "m-1", "m-2", both, Pins())
    assert (only.transport, only.placements, only.codecs, only.verified) == ("tcp", (PIPELINED,), (None,), False)
    plain, measured = paths_between(profile(replace(PLAN, codec="raw")), "m-1", "m-2", both, Pins())
    assert (plain.transport, plain.verified) == ("tcp", False)
    assert (measured.transport, measured.codecs, measured.verified) == ("rdma", (None,), True)
    assert measured.retransmit_floor_s == 0.27


def test_what_is_pinned_is_all_that_is_offered() -> None:
    both = (EVERYTHING, EVERYTHING)
    (pinned,) = paths_between(profile(PLAN), "m-1", "m-2", both, Pins("rdma", SEQUENTIAL, "raw"))
    assert (pinned.transport, pinned.placements, pinned.codecs) == ("rdma", (SEQUENTIAL,), (None,))
    lacking = paths_between(profile(), "m-1", "m-2", (EVERYTHING,), Pins(codec="zstd", placement=Placement.IN_PATH))
    assert lacking[0].refusal == "placement IN_PATH is not offered by m"


def test_within_a_node_bytes_stay_in_it() -> None:
    (path,) = paths_between(profile(), "m-1", "m-1", (EVERYTHING,), Pins())
    assert (path.transport, path.retransmit_floor_s) == ("local", 0.0)
    tcp_only = replace(EVERYTHING, transports=frozenset({"tcp"}))
    assert paths_between(profile(), "m-1", "m-1", (tcp_only,), Pins())[0].transport == "tcp"
    assert paths_between(profile(), "m-1", "m-2", (), Pins())[0].transport == "tcp"


# --- many destinations


def test_of_many_hosts_the_likeliest_is_judged(cluster: Cluster, asked: list[Question]) -> None:
    cluster.with_session()
    for number in range(60):
        told = cluster.b.registration()
        told.host_id = f"pod-{number:02d}"
        status = cluster.b.status()
        # Every third has no room; the last of the others has most of all.
        status.free_bytes = 10 if number % 3 == 0 else (1 << 30) + number
        cluster.stub.RegisterEngineHost(pb.RegisterEngineHostRequest(registration=told, status=status))
    answer = evaluate(cluster)
    assert answer.verdict.kind == VERDICT_KIND_ADMIT
    assert answer.destination_host_id == "pod-59"
    assert len(asked) == 1


def test_of_many_hosts_without_room_a_few_say_why(cluster: Cluster, asked: list[Question]) -> None:
    cluster.with_session()
    cluster.b.free_bytes = 10
    cluster.beat(cluster.b)
    for number in range(60):
        told = cluster.b.registration()
        told.host_id = f"pod-{number:02d}"
        cluster.stub.RegisterEngineHost(pb.RegisterEngineHostRequest(registration=told, status=cluster.b.status()))
    answer = evaluate(cluster)
    assert failed(answer)["slot_memory"].reason == "NO_SLOT_MEMORY"
    assert len(asked) == 4

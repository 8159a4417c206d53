"""Moves from end to end against fake hosts and movers over real gRPC: the path, every way out of it, and silence."""

from __future__ import annotations

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import FROZEN, GONE, LIVE, READY, RELEASED, grant_of, until

from worldline import errors, rpc
from worldline.contract import Contract, ContractClass, Tier
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.move_pb2 import (
    FAULT_KIND_HOLD,
    MOVE_STATE_ABORT,
    MOVE_STATE_ABORTED,
    MOVE_STATE_COMMIT,
    MOVE_STATE_DONE,
    MOVE_STATE_DROPPING,
    MOVE_STATE_GRANTED,
    MOVE_STATE_LOST,
    MOVE_STATE_MOVED,
    MOVE_STATE_OPEN,
    Fault,
    MoveState,
)


def hold(step: str, seconds: float = 30.0) -> Fault:
    return Fault(kind=FAULT_KIND_HOLD, step=step, seconds=seconds, times=1)


def test_a_move_goes_all_the_way(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move()
    assert asked.state == MOVE_STATE_OPEN
    moved = cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    assert [MoveState.Name(line.to_state).removeprefix("MOVE_STATE_") for line in moved.transitions] == [
        "OPEN",
        "COMMIT",
        "GRANTED",
        "DONE",
        "DONE",
        "MOVED",
    ]
    assert cluster.a.sessions[SESSION].state == GONE
    assert cluster.b.sessions[SESSION].state == LIVE
    assert cluster.a.moved_to == "public.host-b:7000"
    assert moved.source_receipt.chunk_crcs == moved.destination_receipt.chunk_crcs
    assert moved.stages.downtime_s > 0
    assert moved.stages.wire_s == pytest.approx(0.02)
    where = cluster.locate()
    assert (where.host_id, where.epoch, where.move_id) == ("host-b", 2, "")


def test_there_and_back_again(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.reach(cluster.move("host-b").move_id, MOVE_STATE_MOVED)
    cluster.reach(cluster.move("host-a").move_id, MOVE_STATE_MOVED)
    assert cluster.locate().epoch == 3
    assert cluster.a.sessions[SESSION].state == LIVE


def test_admission_picks_a_destination(cluster: Cluster) -> None:
    cluster.with_session()
    moved = cluster.reach(cluster.move("").move_id, MOVE_STATE_MOVED)
    assert moved.destination_host_id == "host-b"


def test_the_mover_gets_the_plan_and_the_fence(cluster: Cluster) -> None:
    cluster.with_session()
    moved = cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)
    (request,) = cluster.movers["mover-a"].requests
    assert request.plan == moved.plan
    assert (request.plan.transport, request.plan.streams, request.plan.chunk_bytes) == ("tcp", 2, 256 << 10)
    assert (request.plan.deadline_s, request.plan.max_freeze_s) == (5.0, 6.0)
    assert (request.fence.incarnation, request.fence.epoch, request.fence.term) == (1, 1, 1)
    assert request.destination_mover_address == cluster.movers["mover-b"].address


def test_hosts_beside_one_mover_use_local_memory(cluster: Cluster) -> None:
    cluster.b.mover_id = "mover-a"
    cluster.register()
    cluster.with_session()
    assert cluster.move().plan.transport == "local"


def test_a_failing_mover_aborts(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].error = errors.DataLoss("chunk 3 differs", reason="CHUNK_MISMATCH")
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert (aborted.reason, aborted.message) == ("CHUNK_MISMATCH", "chunk 3 differs")
    assert cluster.a.sessions[SESSION].state == LIVE
    assert SESSION not in cluster.b.sessions
    assert cluster.a.asked == ["resume"]
    assert cluster.b.asked == ["drop"]
    cluster.movers["mover-a"].error = None
    cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)


def damage_crc(last: mover_pb.MoveResponse) -> None:
    last.destination_receipt.chunk_crcs[1] ^= 1


def damage_epoch(last: mover_pb.MoveResponse) -> None:
    last.source_receipt.epoch += 1
    last.destination_receipt.epoch += 1


def damage_host(last: mover_pb.MoveResponse) -> None:
    last.destination_receipt.host_id = "host-c"


def lose_receipt(last: mover_pb.MoveResponse) -> None:
    last.ClearField("destination_receipt")


def double_receipt(last: mover_pb.MoveResponse) -> None:
    last.destination_receipt.CopyFrom(last.source_receipt)


def damage_manifest(last: mover_pb.MoveResponse) -> None:
    last.manifest.block_index += 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_crc, "CHUNK_MISMATCH"),
        (damage_epoch, "RECEIPT_MISMATCH"),
        (damage_host, "RECEIPT_MISMATCH"),
        (lose_receipt, "RECEIPT_MISSING"),
        (double_receipt, "RECEIPT_MISMATCH"),
        (damage_manifest, "WRONG_DIGEST"),
    ],
)
def test_receipts_that_do_not_match_never_commit(cluster: Cluster, damage: object, reason: str) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].corrupt = damage  # type: ignore[assignment]
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == reason
    assert "release" not in cluster.a.asked
    assert cluster.a.sessions[SESSION].state == LIVE


def test_a_resumed_source_aborts(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("release")])
    cluster.held_at(asked.move_id, "release")
    cluster.a.sessions[SESSION].state = LIVE  # its own timer
    aborted_early = cluster.get(asked.move_id)
    assert aborted_early.state == MOVE_STATE_COMMIT
    cluster.restart_admission()
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "SOURCE_RESUMED"
    assert SESSION not in cluster.b.sessions


def test_bytes_that_differ_at_the_commit_reinstate_the_source(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.fail["commit"] = errors.DataLoss("chunk 0 in the shadow slot after its receipt", reason="CHUNK_MISMATCH")
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "CHUNK_MISMATCH"
    assert cluster.a.sessions[SESSION].state == LIVE
    assert cluster.a.asked == ["release", "reinstate"]


def test_any_other_refusal_of_the_commit_drops_the_copy_before_the_source_is_reinstated(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.fail["commit"] = errors.Internal("the engine could not load it")
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "INTERNAL"
    assert cluster.b.asked[:2] == ["commit", "drop"]
    assert cluster.a.sessions[SESSION].state == LIVE


def test_a_refused_release_reinstates(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.a.fail["release"] = errors.WrongState("not frozen")
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "WRONG_STATE"
    assert "commit" not in cluster.b.asked


def test_a_cancelled_move_aborts(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.hold_mover()
    asked = cluster.move()
    until("frozen", lambda: cluster.a.sessions[SESSION].state == FROZEN)
    cluster.stub.CancelMove(pb.CancelMoveRequest(move_id=asked.move_id))
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "CANCELLED"
    assert cluster.a.sessions[SESSION].state == LIVE
    until("the mover's call was broken off", lambda: cluster.movers["mover-a"].broken_off == 1)
    again = cluster.stub.CancelMove(pb.CancelMoveRequest(move_id=asked.move_id)).move
    assert again.state == MOVE_STATE_ABORTED


@pytest.mark.parametrize("step", ["release", "take", "free"])
def test_cancelling_is_too_late_once_the_source_is_asked_to_give(cluster: Cluster, step: str) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold(step)])
    cluster.held_at(asked.move_id, step)
    with pytest.raises(errors.WrongState) as refusal, rpc.calling("admission"):
        cluster.stub.CancelMove(pb.CancelMoveRequest(move_id=asked.move_id))
    assert refusal.value.reason == "TOO_LATE_TO_CANCEL"


def test_the_deadline_ends_a_move_before_its_commit(cluster: Cluster) -> None:
    cluster.a.hold_session(SESSION, Contract(ContractClass.C1, 0.2, Tier.T0))
    cluster.beat(cluster.a)
    cluster.hold_mover()
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "DEADLINE_EXCEEDED"
    assert cluster.a.sessions[SESSION].state == LIVE


def test_a_destination_that_dies_before_done_lets_the_source_play_on(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("take")])
    cluster.held_at(asked.move_id, "take")
    assert cluster.a.sessions[SESSION].state == RELEASED
    cluster.restart_host(cluster.b)
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "DESTINATION_DIED"
    assert cluster.a.sessions[SESSION].state == LIVE
    assert cluster.locate().host_id == "host-a"


def test_a_source_that_dies_before_its_grant_loses_the_session(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("release")])
    cluster.held_at(asked.move_id, "release")
    cluster.restart_host(cluster.a)
    lost = cluster.reach(asked.move_id, MOVE_STATE_LOST)
    assert lost.reason == "SESSION_LOST"
    assert SESSION not in cluster.b.sessions
    with pytest.raises(errors.SessionLost), rpc.calling("admission"):
        cluster.locate()
    with pytest.raises(errors.SessionLost), rpc.calling("admission"):
        cluster.move()


@pytest.mark.parametrize("step", ["granted", "take", "done", "free"])
def test_a_source_that_dies_after_its_grant_loses_nothing(cluster: Cluster, step: str) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold(step)])
    cluster.held_at(asked.move_id, step)
    cluster.restart_host(cluster.a)
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    assert cluster.b.sessions[SESSION].state == LIVE
    assert cluster.locate().host_id == "host-b"


def test_a_destination_that_dies_after_done_loses_the_session(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("free")])
    cluster.held_at(asked.move_id, "free")
    cluster.restart_host(cluster.b)
    lost = cluster.reach(asked.move_id, MOVE_STATE_LOST)
    assert lost.reason == "SESSION_LOST"
    assert cluster.a.sessions[SESSION].state == GONE


@pytest.mark.parametrize(
    ("side", "verb", "state"),
    [
        ("a", "release", MOVE_STATE_COMMIT),
        ("b", "commit", MOVE_STATE_GRANTED),
        ("b", "activate", MOVE_STATE_DONE),
        ("a", "free", MOVE_STATE_DONE),
    ],
)
def test_a_silent_host_stalls_the_move_until_it_wakes(cluster: Cluster, side: str, verb: str, state: int) -> None:
    cluster.with_session()
    wake = cluster.silence(getattr(cluster, side), verb)
    asked = cluster.move()
    until("stalled", lambda: cluster.get(asked.move_id).stalled)
    assert cluster.get(asked.move_id).state == state
    wake.set()
    moved = cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    assert not moved.stalled


@pytest.mark.parametrize(
    ("side", "verb", "state"), [("a", "resume", MOVE_STATE_ABORT), ("b", "drop", MOVE_STATE_DROPPING)]
)
def test_a_silent_host_stalls_the_abort_until_it_wakes(cluster: Cluster, side: str, verb: str, state: int) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].error = errors.Unavailable("the peer is gone", reason="PEER_GONE")
    wake = cluster.silence(getattr(cluster, side), verb)
    asked = cluster.move()
    until("stalled", lambda: cluster.get(asked.move_id).stalled)
    assert cluster.get(asked.move_id).state == state
    wake.set()
    cluster.reach(asked.move_id, MOVE_STATE_ABORTED)


def test_a_silent_destination_that_is_fenced_lets_the_source_play_on(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.silence(cluster.b, "commit")
    asked = cluster.move()
    until("stalled", lambda: cluster.get(asked.move_id).stalled)
    answer = cluster.stub.FenceHost(pb.FenceHostRequest(host_id="host-b", incarnation=1, reason="op: burnt down"))
    assert list(answer.move_ids) == [asked.move_id]
    cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert cluster.a.sessions[SESSION].state == LIVE
    assert cluster.beat(cluster.b).fenced


def test_an_outage_of_a_host_is_waited_for(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.fail["commit"] = errors.Unavailable("draining its queue")
    asked = cluster.move()
    until("asked more than once", lambda: cluster.b.asked.count("commit") > 2)
    assert cluster.get(asked.move_id).state == MOVE_STATE_GRANTED
    del cluster.b.fail["commit"]
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)


@pytest.mark.parametrize("step", ["commit", "release", "granted", "take", "done", "free"])
def test_admission_goes_on_after_a_restart_at_each_step(cluster: Cluster, step: str) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold(step)])
    cluster.held_at(asked.move_id, step)
    cluster.restart_admission()
    closed = cluster.reach(asked.move_id, MOVE_STATE_MOVED, MOVE_STATE_ABORTED)
    if step == "commit":
        assert (closed.state, closed.reason) == (MOVE_STATE_ABORTED, "ADMISSION_RESTARTED")
        assert cluster.a.sessions[SESSION].state == LIVE
    else:
        assert closed.state == MOVE_STATE_MOVED
        assert cluster.b.sessions[SESSION].state == LIVE
    assert "admission restarted" in [line.event for line in closed.transitions]


def test_a_host_that_died_while_admission_was_away(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("take")])
    cluster.held_at(asked.move_id, "take")
    cluster.stop_admission()
    dead = cluster.b
    dead.stop()
    cluster.hosts["host-b"] = type(dead)("host-b", "mover-b", 2)
    cluster.start()
    cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert cluster.a.sessions[SESSION].state == LIVE


def test_the_grant_survives_a_restart(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.silence(cluster.b, "commit")
    asked = cluster.move()
    cluster.reach(asked.move_id, MOVE_STATE_GRANTED)
    until("asked to commit", lambda: "commit" in cluster.b.asked)
    cluster.restart_admission()
    record = cluster.admission.journal.move(asked.move_id)
    assert record is not None
    assert record.grant == grant_of(asked.move_id)
    cluster.b.silent.pop("commit").set()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)


def test_a_destination_holds_what_it_took_until_it_may_play(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("free")])
    cluster.held_at(asked.move_id, "free")
    assert cluster.b.sessions[SESSION].state == READY
    assert cluster.a.sessions[SESSION].state == RELEASED
    assert cluster.locate().host_id == "host-b"


def test_the_path_is_measured(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)
    rows = {row.quantity: row for row in cluster.admission.journal.estimates()}
    assert {(row.source_mover, row.destination_mover) for row in rows.values()} == {("mover-a", "mover-b")}
    assert {row.idiom for row in rows.values()} == {"tcp/pipelined/raw"}
    assert rows["pace_s_per_byte"].mean == 1 / cluster.settings.bandwidth_Bps
    assert rows["setup_s"].weight == 1
    assert 0 < rows["setup_s"].mean < cluster.settings.setup_s


def test_a_move_that_met_faults_measures_nothing(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.reach(cluster.move(faults=[hold("release", 0.01)]).move_id, MOVE_STATE_MOVED)
    assert cluster.admission.journal.estimates() == []

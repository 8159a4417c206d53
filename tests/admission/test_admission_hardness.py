"""What a fleet does to admission when it is not well: twins, closed sessions, stopped hosts, stalls, dead hosts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import LIVE, STATE_BYTES, FakeHost, until

from admission import active, decision
from admission import fleet as fleet_module
from admission.effects import Effects
from admission.fleet import Fleet
from admission.journal import Journal
from admission.keys import Keys
from worldline import errors, rpc
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.move_pb2 import (
    FAULT_KIND_HOLD,
    MOVE_STATE_ABORT,
    MOVE_STATE_ABORTED,
    MOVE_STATE_COMMIT,
    MOVE_STATE_DROPPING,
    MOVE_STATE_LOST,
    MOVE_STATE_MOVED,
    MOVE_STATE_OPEN,
    VERDICT_KIND_ADMIT,
    VERDICT_KIND_DEFER,
    VERDICT_KIND_REJECT,
    Clause,
    Fault,
    Verdict,
)


def refusal(call: Callable[[], object]) -> errors.WorldlineError:
    with pytest.raises(errors.WorldlineError) as caught, rpc.calling("admission"):
        call()
    return caught.value


def hold(step: str) -> Fault:
    return Fault(kind=FAULT_KIND_HOLD, step=step, seconds=30.0, times=1)


def join(host: FakeHost) -> pb.RegisterEngineHostRequest:
    return pb.RegisterEngineHostRequest(registration=host.registration(), status=host.status())


def verdict(cluster: Cluster, session_id: str, destination: str = "host-b", patience_s: float = 0.0) -> Verdict:
    ask = pb.EvaluateMoveRequest(session_id=session_id, destination_host_id=destination, patience_s=patience_s)
    return cluster.stub.EvaluateMove(ask).verdict


def clause(verdict: Verdict, name: str) -> Clause:
    (found,) = [clause for clause in verdict.clauses if clause.name == name]
    return found


def placement(**fields: object) -> pb.PlaceSessionRequest:
    return pb.PlaceSessionRequest(
        request_id=str(uuid.uuid4()),
        engine="window-rewrite",
        preset="tiny",
        **fields,  # type: ignore[arg-type]
    )


# --- two processes that are the same incarnation


@pytest.fixture
def twin() -> Iterator[FakeHost]:
    opened = FakeHost("host-a", "mover-a")
    yield opened
    opened.stop()


@pytest.mark.parametrize("instance_id", ["b" * 32, ""])
def test_a_second_process_is_not_taken_for_the_first(cluster: Cluster, twin: FakeHost, instance_id: str) -> None:
    cluster.with_session()
    twin.instance_id = instance_id
    for _ in range(2):
        taken = refusal(lambda: cluster.stub.RegisterEngineHost(join(twin)))
        assert isinstance(taken, errors.Owned)
        assert taken.reason == "HOST_ID_TAKEN"
        assert twin.address in taken.message
        assert cluster.a.address in taken.message
        assert refusal(lambda: cluster.beat(twin)).reason == "HOST_ID_TAKEN"
        # What was journaled of the first counts after a restart too, before it has registered again.
        hosts = dict(cluster.hosts)
        cluster.stop_admission()
        cluster.hosts.clear()
        cluster.start()
        cluster.hosts.update(hosts)
    cluster.register()
    assert not cluster.beat(cluster.a).unknown
    cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)
    assert twin.asked == []


def test_hosts_that_tell_no_instance_are_one_process(cluster: Cluster, twin: FakeHost) -> None:
    cluster.hosts["host-c"] = FakeHost("host-c", "mover-a")
    cluster.hosts["host-c"].instance_id = ""
    cluster.register()
    cluster.register()
    assert not cluster.beat(cluster.hosts["host-c"]).unknown


def test_the_next_incarnation_may_be_any_process(cluster: Cluster, twin: FakeHost) -> None:
    twin.incarnation = 2
    cluster.stub.RegisterEngineHost(join(twin))
    assert not cluster.beat(twin).unknown
    assert isinstance(refusal(lambda: cluster.beat(cluster.a)), errors.StaleFence)


# --- two hosts of one id, from two state directories


OTHER = "e" * 32


@pytest.mark.parametrize("state_id", [OTHER, ""])
def test_a_higher_incarnation_of_another_directory_is_no_restart(
    cluster: Cluster, twin: FakeHost, state_id: str
) -> None:
    cluster.with_session()
    twin.incarnation, twin.state_id = 7, state_id
    for _ in range(2):
        served = refusal(lambda: cluster.stub.RegisterEngineHost(join(twin)))
        assert isinstance(served, errors.Owned)
        assert served.reason == "HOST_ID_SERVED"
        assert served.retry_after_s is not None
        assert 0 < served.retry_after_s <= cluster.settings.silent_s
        assert twin.address in served.message
        assert cluster.a.address in served.message
        # Its heartbeats change nothing either, and the first plays and moves on.
        assert cluster.beat(twin).unknown
        assert not cluster.beat(cluster.a).unknown
        # Which directory it was is journaled: the twin is not quicker than the first after a restart.
        hosts = dict(cluster.hosts)
        cluster.stop_admission()
        cluster.hosts.clear()
        cluster.start()
        cluster.hosts.update(hosts)
        assert refusal(lambda: cluster.stub.RegisterEngineHost(join(twin))).reason == "HOST_ID_SERVED"
        cluster.register()
    cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)
    assert twin.asked == []


def test_another_directory_takes_over_from_a_fenced_host(cluster: Cluster, twin: FakeHost) -> None:
    cluster.with_session()
    twin.incarnation, twin.state_id = 7, OTHER
    assert refusal(lambda: cluster.stub.RegisterEngineHost(join(twin))).reason == "HOST_ID_SERVED"
    fence = pb.FenceHostRequest(host_id="host-a", incarnation=1, reason="its machine is gone")
    assert list(cluster.stub.FenceHost(fence).lost_session_ids) == [SESSION]
    cluster.stub.RegisterEngineHost(join(twin))
    assert not cluster.beat(twin).unknown
    assert isinstance(refusal(lambda: cluster.beat(cluster.a)), errors.StaleFence)
    # From now on the first is the one that comes from another directory, whatever its number.
    cluster.a.incarnation = 8
    assert refusal(lambda: cluster.stub.RegisterEngineHost(join(cluster.a))).reason == "HOST_ID_SERVED"


def test_another_directory_takes_over_from_a_silent_host(journal: Journal, twin: FakeHost) -> None:
    now_s = [1000.0]
    fleet = Fleet(journal, 60.0, 30.0, lambda: now_s[0])
    twin.hold_session(SESSION)
    fleet.register_host(join(twin))
    now_s[0] += 10.0
    beat = pb.HeartbeatEngineHostRequest(
        host_id="host-a", incarnation=1, status=twin.status(), instance_id=twin.instance_id
    )
    assert fleet.heartbeat_host(beat) == (False, False)
    moved_in = registration(twin, "host-a", incarnation=2, state_id=OTHER, instance_id="b" * 32)
    now_s[0] += 30.0
    with pytest.raises(errors.Owned) as caught:
        fleet.register_host(moved_in)
    assert caught.value.retry_after_s == 0.0
    # Nobody was heard while no admission listened: a restart begins the time anew.
    fleet = Fleet(journal, 60.0, 30.0, lambda: now_s[0])
    now_s[0] += 29.0
    with pytest.raises(errors.Owned) as caught:
        fleet.register_host(moved_in)
    assert caught.value.retry_after_s == 1.0
    assert fleet.host("host-a").facts.incarnation == 1
    now_s[0] += 1.5
    assert fleet.register_host(moved_in)[1] == [SESSION]
    assert fleet.host("host-a").facts.incarnation == 2


# --- a session that is closed during its move


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("step", ["open", "commit", "release"])
def test_a_session_closed_during_its_move_is_closed_not_lost(cluster: Cluster, step: str, restart: bool) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold(step)]) if step != "open" else None
    if asked is None:
        gate = cluster.hold_mover()
        asked = cluster.move()
        until("staged", lambda: SESSION in cluster.b.sessions)
        cluster.a.close_session(SESSION)
        cluster.movers["mover-a"].error = errors.NotFound("no such session")
        if not restart:
            gate.set()
    else:
        cluster.held_at(asked.move_id, step)
        cluster.a.close_session(SESSION)
        if not restart:
            cluster.stub.FenceHost(pb.FenceHostRequest(host_id="host-b", incarnation=1, reason="go on"))
    if restart:
        cluster.restart_admission()
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED, MOVE_STATE_LOST)
    assert (aborted.state, aborted.reason) == (MOVE_STATE_ABORTED, "SESSION_CLOSED")
    assert SESSION in aborted.message
    assert refusal(cluster.locate).reason == "UNKNOWN_SESSION"
    if restart or step == "open":
        assert SESSION not in cluster.b.sessions
    assert cluster.admission.journal.leases() == []


def test_a_closed_session_stays_closed_while_its_copy_waits_to_be_dropped(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].error = errors.NotFound("no such session")
    wake = cluster.silence(cluster.b, "drop")
    gate = cluster.hold_mover()
    asked = cluster.move()
    until("staged", lambda: SESSION in cluster.b.sessions)
    cluster.a.close_session(SESSION)
    gate.set()
    cluster.reach(asked.move_id, MOVE_STATE_DROPPING)
    cluster.restart_admission()
    cluster.restart_host(cluster.a)
    wake.set()
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED, MOVE_STATE_LOST)
    assert (aborted.state, aborted.reason) == (MOVE_STATE_ABORTED, "SESSION_CLOSED")
    assert refusal(cluster.locate).reason == "UNKNOWN_SESSION"


def test_a_source_that_never_closed_it_has_lost_it(cluster: Cluster) -> None:
    cluster.with_session()
    gate = cluster.hold_mover()
    asked = cluster.move()
    until("staged", lambda: SESSION in cluster.b.sessions)
    del cluster.a.sessions[SESSION]
    cluster.movers["mover-a"].error = errors.NotFound("no such session")
    gate.set()
    assert cluster.reach(asked.move_id, MOVE_STATE_LOST).reason == "SESSION_LOST"
    assert isinstance(refusal(cluster.locate), errors.SessionLost)


# --- placing


def test_hosts_that_hang_do_not_take_admissions_threads(cluster: Cluster) -> None:
    wake = cluster.silence(cluster.a, "create")
    most = cluster.settings.rpc_threads // 4
    calls = [cluster.stub.PlaceSession.future(placement(host_id="host-a"), timeout=30) for _ in range(most)]
    until("all are being placed", lambda: cluster.a.asked.count("create") == most)
    for _ in range(2 * cluster.settings.rpc_threads):
        full = refusal(lambda: cluster.stub.PlaceSession(placement(), timeout=5))
        assert isinstance(full, errors.Exhausted)
        assert (full.reason, full.retry_after_s) == ("TOO_MANY_PLACEMENTS", 1.0)
    assert not cluster.beat(cluster.a).unknown
    wake.set()
    assert len({call.result().session.descriptor.session_id for call in calls}) == most
    assert cluster.stub.PlaceSession(placement(), timeout=5).host_id == "host-b"  # it has more room now


def test_waiting_for_a_key_ends() -> None:
    keys = Keys()
    with keys.hold("r-1", 0.0):
        with keys.hold("r-2", 0.0):
            pass
        with pytest.raises(errors.Owned) as caught:
            keys.hold("r-1", 0.01).__enter__()
    assert (caught.value.reason, caught.value.retry_after_s) == ("REQUEST_IN_PROGRESS", 1.0)
    with keys.hold("r-1", 0.0):
        pass


def test_a_repeated_placement_after_a_move_spoils_nothing(cluster: Cluster) -> None:
    request = placement(host_id="host-a")
    session_id = cluster.stub.PlaceSession(request).session.descriptor.session_id
    move = pb.RequestMoveRequest(request_id=str(uuid.uuid4()), session_id=session_id, destination_host_id="host-b")
    cluster.reach(cluster.stub.RequestMove(move).move.move_id, MOVE_STATE_MOVED)
    cluster.a.sessions[session_id].state_bytes = 0  # a tombstone's
    again = cluster.stub.PlaceSession(request)
    assert (again.session.descriptor.session_id, again.host_id) == (session_id, "host-b")
    move.request_id, move.destination_host_id = str(uuid.uuid4()), "host-a"
    moved = cluster.reach(cluster.stub.RequestMove(move).move.move_id, MOVE_STATE_MOVED)
    assert moved.total_bytes == STATE_BYTES


@pytest.mark.parametrize("noticed", [False, True])
def test_a_repeated_placement_of_a_closed_session_does_not_revive_it(cluster: Cluster, noticed: bool) -> None:
    request = placement(host_id="host-a")
    session_id = cluster.stub.PlaceSession(request).session.descriptor.session_id
    cluster.a.close_session(session_id)
    for _ in range(3 if noticed else 0):
        cluster.beat(cluster.a)
    closed = refusal(lambda: cluster.stub.PlaceSession(request))
    assert isinstance(closed, errors.NotFound)
    assert closed.reason == "SESSION_CLOSED"
    for _ in range(0 if noticed else 3):
        cluster.beat(cluster.a)
    assert refusal(lambda: cluster.locate(session_id)).reason == "UNKNOWN_SESSION"


# --- credits of a stalled move


def test_a_move_that_is_given_up_frees_its_receiver_and_keeps_its_bytes(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.a.hold_session("s-2")
    cluster.beat(cluster.a)
    cluster.movers["mover-a"].error = errors.DataLoss("no")
    wake = cluster.silence(cluster.a, "resume")
    asked = cluster.move()
    until("stalled", lambda: cluster.get(asked.move_id).stalled)
    assert cluster.get(asked.move_id).state == MOVE_STATE_ABORT
    other = verdict(cluster, "s-2")
    assert clause(other, "receiver").verdict == VERDICT_KIND_ADMIT
    (lease,) = cluster.admission.journal.leases()
    assert (lease.move_id, lease.receives) == (asked.move_id, False)
    wake.set()
    cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert cluster.admission.journal.leases() == []


def test_who_waits_for_a_stalled_move_is_told_so(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.a.hold_session("s-2")
    cluster.beat(cluster.a)
    wake = cluster.silence(cluster.a, "release")
    asked = cluster.move()
    until("stalled", lambda: cluster.get(asked.move_id).stalled)
    assert cluster.get(asked.move_id).state == MOVE_STATE_COMMIT
    patient = verdict(cluster, "s-2", patience_s=60)
    assert patient.kind == VERDICT_KIND_DEFER
    assert patient.retry_after_s >= cluster.settings.stall_s
    told = clause(patient, "receiver")
    assert told.reason == "RECEIVER_STALLED"
    assert f"move {asked.move_id} is stalled" in told.arithmetic
    wake.set()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)


def test_a_mover_takes_in_no_more_than_it_says(cluster: Cluster) -> None:
    cluster.movers["mover-b"].max_receives = 1
    cluster.hosts["host-c"] = FakeHost("host-c", "mover-b")
    cluster.restart_admission()
    cluster.with_session()
    cluster.a.hold_session("s-2")
    cluster.beat(cluster.a)
    gate = cluster.hold_mover()
    asked = cluster.move()
    other = verdict(cluster, "s-2", "host-c")
    assert (other.kind, clause(other, "receiver").reason) == (VERDICT_KIND_REJECT, "RECEIVER_BUSY")
    assert "its mover" in clause(other, "receiver").arithmetic
    gate.set()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    assert verdict(cluster, "s-2", "host-c").kind == VERDICT_KIND_ADMIT


# --- a destination that has the id already


def test_an_id_that_the_destination_has_is_named_in_the_verdict(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.hold_session(SESSION)
    cluster.beat(cluster.b)
    # One status alone may have been written before the session moved away.
    assert verdict(cluster, SESSION).kind == VERDICT_KIND_ADMIT
    cluster.beat(cluster.b)
    refused = verdict(cluster, SESSION)
    assert (refused.kind, clause(refused, "session_id").reason) == (VERDICT_KIND_REJECT, "SESSION_ID_TAKEN")
    cluster.b.close_session(SESSION)
    cluster.beat(cluster.b)
    assert verdict(cluster, SESSION).kind == VERDICT_KIND_ADMIT


def test_a_move_in_flight_is_no_claim_to_its_id(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("free")])
    cluster.held_at(asked.move_id, "free")
    cluster.b.sessions[SESSION].state = LIVE
    for _ in range(3):
        cluster.beat(cluster.b)
    cluster.restart_admission()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    assert verdict(cluster, SESSION, "host-a").kind == VERDICT_KIND_ADMIT


# --- hosts that are gone


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "fleet.db", keep=100)
    yield opened
    opened.close()


def registration(host: FakeHost, host_id: str, **changes: object) -> pb.RegisterEngineHostRequest:
    message = host.registration()
    message.host_id = host_id
    for name, value in changes.items():
        setattr(message, name, value)
    return pb.RegisterEngineHostRequest(registration=message, status=pb.EngineHostStatus())


def test_silent_hosts_without_sessions_are_forgotten(journal: Journal, twin: FakeHost) -> None:
    now_s = [1000.0]
    fleet = Fleet(journal, 60.0, 30.0, lambda: now_s[0])
    twin.hold_session(SESSION)
    fleet.register_host(join(twin))
    fleet.register_host(registration(twin, "pod-1"))
    fleet.register_host(registration(twin, "pod-2"))
    fleet.fence_host("pod-2", 1, "op")
    now_s[0] += 61.0
    fleet.register_host(registration(twin, "pod-3"))
    # One has a session, one must be told that it was fenced.
    assert [host.host_id for host in fleet.hosts()] == ["host-a", "pod-2", "pod-3"]
    assert sorted(row.host_id for row in journal.hosts()) == ["host-a", "pod-2", "pod-3"]
    # After a restart everybody has the whole time to come back.
    fleet = Fleet(journal, 60.0, 30.0, lambda: now_s[0])
    now_s[0] += 59.0
    fleet.register_host(registration(twin, "pod-4"))
    assert len(fleet.hosts()) == 4


def test_a_host_of_an_open_move_is_not_forgotten(cluster: Cluster) -> None:
    cluster.with_session()
    asked = cluster.move(faults=[hold("free")])
    cluster.held_at(asked.move_id, "free")
    assert cluster.admission.journal.forget_hosts(["host-a", "host-b"]) == []


def test_a_full_fleet_says_so(journal: Journal, twin: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_HOSTS", 2)
    fleet = Fleet(journal, 60.0, 30.0)
    for name in ("pod-1", "pod-2"):
        fleet.register_host(registration(twin, name))
    with pytest.raises(errors.Exhausted) as caught:
        fleet.register_host(registration(twin, "pod-3"))
    assert caught.value.reason == "FLEET_FULL"
    fleet.register_host(registration(twin, "pod-1", incarnation=2))


def test_dead_hosts_are_not_looked_at(cluster: Cluster, twin: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.with_session()
    for number in range(50):
        cluster.admission.journal.register_host(
            f"pod-{number}", 1, registration(twin, f"pod-{number}").registration.SerializeToString()
        )
    cluster.restart_admission()
    looked_at = []
    choose = decision.choose
    monkeypatch.setattr(decision, "choose", lambda question: (looked_at.append(question), choose(question))[1])
    cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION))
    assert len(looked_at) == 1
    cluster.stub.FenceHost(pb.FenceHostRequest(host_id="host-b", incarnation=1, reason="op"))
    looked_at.clear()
    answer = cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION))
    assert answer.verdict.kind == VERDICT_KIND_REJECT
    assert 0 < len(looked_at) < 10


# --- answers that make no sense


def test_an_unknown_state_is_no_answer(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.movers["mover-a"].error = errors.DataLoss("no")
    for host in cluster.hosts.values():
        host.odd_states = [77, 78]
    aborted = cluster.reach(cluster.move().move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "DATA_LOSS"
    assert (cluster.a.asked, cluster.b.asked) == (["resume"] * 3, ["drop"] * 3)


def test_a_moves_thread_outlives_what_nobody_expected(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.with_session()
    perform, failures = Effects.perform, [ValueError("a bug"), KeyError("another")]

    def fails(effects: Effects, *arguments: object) -> object:
        if failures:
            raise failures.pop()
        return perform(effects, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Effects, "perform", fails)
    cluster.reach(cluster.move().move_id, MOVE_STATE_MOVED)


def test_a_bug_while_the_mover_works_gives_the_move_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(active.wire, "stages_from", fails)
    cluster.with_session()
    asked = cluster.move()
    assert asked.state == MOVE_STATE_OPEN
    until("given up", lambda: cluster.a.asked.count("resume") > 0)
    monkeypatch.undo()
    aborted = cluster.reach(asked.move_id, MOVE_STATE_ABORTED)
    assert aborted.reason == "INTERNAL"
    assert "ValueError: a bug" in aborted.message
    assert len(cluster.movers["mover-a"].requests) == 1

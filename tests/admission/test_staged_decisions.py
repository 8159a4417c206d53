"""State on devices: when the destination's device reads the source's, and when and why a plan is staged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from admission_cluster import SESSION, Cluster
from hypothesis import given
from hypothesis import strategies as st

from admission.carriage import SOUND, is_staged, staged_because
from admission.decision import Decider
from admission.facts import MAX_PEERS, HostFacts, SessionFacts
from admission.rules import Choice
from worldline import rpc
from worldline.errors import BadRequest
from worldline.manifest import Fingerprint
from worldline.plan import Placement, Plan
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import move_pb2, state_pb2

DEVICE = state_pb2.VERIFICATION_PLACEMENT_DEVICE
MOVER = ("tcp", "local")


def facts(host_id: str, mover_id: str, device_id: str, **peers: str) -> HostFacts:
    return HostFacts(
        host_id, 1, "a:1", "a:1", mover_id, Fingerprint({"device": "cuda"}), frozenset(), 1, "", device_id, peers
    )


def test_why_a_move_is_staged() -> None:
    source = facts("a", "m-1", "gpu0")
    assert staged_because(source, facts("b", "m-1", "gpu1", gpu0=SOUND)) == ""
    broken = staged_because(source, facts("b", "m-1", "gpu1", gpu0="copies from device 0 arrive wrong"))
    assert broken.startswith("PEER_ACCESS_UNSOUND: ")
    assert "copies from device 0 arrive wrong" in broken
    assert staged_because(source, facts("b", "m-1", "gpu1")).startswith(
        "DEVICE_UNREACHABLE: b does not see device gpu0"
    )
    assert staged_because(source, facts("b", "m-2", "gpu1", gpu0=SOUND)).startswith("OTHER_NODE: ")
    assert staged_because(replace(source, device_id=""), facts("b", "m-2", "")) == "", "movers map its memory"


@given(st.sampled_from(["local", "tcp", "rdma"]), st.sampled_from(Placement), st.sampled_from(["raw", "zstd", "ans"]))
def test_only_device_placement_is_staged(transport: str, placement: Placement, codec: str) -> None:
    straight = (transport, codec) == ("local", "raw")
    assert is_staged(transport, placement, codec, "") is (placement is Placement.DEVICE and not straight)
    assert is_staged(transport, placement, codec, "PEER_ACCESS_UNSOUND: x") is (placement is Placement.DEVICE)


@pytest.fixture
def devices(cluster: Cluster) -> Cluster:
    """Two hosts on devices of one kind, each beside its own mover, that see each other's."""
    for mover in cluster.movers.values():
        told = mover.registration()
        told.transports[:] = MOVER
        told.placements[:] = [state_pb2.VERIFICATION_PLACEMENT_PIPELINED, DEVICE]
        told.codecs[:] = ["raw", "zstd"]
        cluster.stub.RegisterMover(pb.RegisterMoverRequest(registration=told))
    for host in cluster.hosts.values():
        host.fingerprint = Fingerprint({**host.fingerprint.fields, "device": "cuda"})
    tell(cluster)
    cluster.with_session()
    return cluster


def tell(cluster: Cluster, *, together: bool = False, verdict: str = SOUND, codecs: tuple[str, ...] = ()) -> None:
    """Both hosts register anew."""
    for host, other in ((cluster.a, cluster.b), (cluster.b, cluster.a)):
        told = host.registration()
        told.device_id = f"gpu-{host.host_id}"
        told.mover_id = "mover-a" if together else host.mover_id
        told.codecs[:] = codecs
        if verdict:
            told.peers.add(device_id=f"gpu-{other.host_id}", verdict=verdict)
        cluster.stub.RegisterEngineHost(pb.RegisterEngineHostRequest(registration=told, status=host.status()))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans of all decisions."""
    found: list[Plan] = []
    planned = Decider._plan

    def plan(self: Decider, facts: SessionFacts, choice: Choice, because: str) -> Plan:
        found.append(planned(self, facts, choice, because))
        return found[-1]

    monkeypatch.setattr(Decider, "_plan", plan)
    return found


def evaluate(cluster: Cluster, **fields: object) -> pb.EvaluateMoveResponse:
    request = pb.EvaluateMoveRequest(session_id=SESSION, destination_host_id="host-b", **fields)  # type: ignore[arg-type]
    with rpc.calling("admission"):
        return cluster.stub.EvaluateMove(request)


def reached(answer: pb.EvaluateMoveResponse) -> move_pb2.Clause:
    return next(clause for clause in answer.verdict.clauses if clause.name == "reachable")


def test_a_sound_pair_of_a_node_is_not_staged(devices: Cluster, plans: list[Plan]) -> None:
    tell(devices, together=True)
    answer = evaluate(devices)
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, answer
    plan = plans[-1]
    assert (plan.transport, plan.placement, plan.staged, plan.codec) == ("local", Placement.DEVICE, False, "raw")
    assert "staged" not in reached(answer).arithmetic


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [("copies to device 1 arrive wrong, or are read wrong", "PEER_ACCESS_UNSOUND"), ("", "DEVICE_UNREACHABLE")],
)
def test_an_unsound_pair_of_a_node_is_staged_and_says_why(
    devices: Cluster, verdict: str, reason: str, plans: list[Plan]
) -> None:
    tell(devices, together=True, verdict=verdict)
    answer = evaluate(devices)
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, answer
    assert (plans[-1].transport, plans[-1].placement, plans[-1].staged) == ("local", Placement.DEVICE, True)
    assert f"staged through host memory ({reason}: " in reached(answer).arithmetic
    assert verdict in reached(answer).arithmetic


def test_another_node_is_reached_staged_over_tcp(devices: Cluster, plans: list[Plan]) -> None:
    answer = evaluate(devices)
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, answer
    assert (plans[-1].transport, plans[-1].placement, plans[-1].staged) == ("tcp", Placement.DEVICE, True)
    assert "(OTHER_NODE: " in reached(answer).arithmetic


@pytest.mark.parametrize(
    ("together", "transport", "name"), [(True, "", ""), (True, "tcp", "ASKED"), (False, "", "OTHER_NODE")]
)
def test_the_log_names_why(
    devices: Cluster, capsys: pytest.CaptureFixture[str], together: bool, transport: str, name: str
) -> None:
    tell(devices, together=together)
    evaluate(devices, transport=transport)
    (decided,) = [line for line in capsys.readouterr().out.splitlines() if "decided" in line]
    assert f"staged={name}" in decided.split()


def test_a_mover_cannot_check_what_it_cannot_map(devices: Cluster) -> None:
    answer = evaluate(devices, placement=state_pb2.VERIFICATION_PLACEMENT_PIPELINED)
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_REJECT
    assert "cannot be mapped by movers" in reached(answer).arithmetic


def test_a_codec_of_devices_needs_both(devices: Cluster, plans: list[Plan]) -> None:
    lacking = evaluate(devices, codec="ans")
    assert lacking.verdict.kind == move_pb2.VERDICT_KIND_REJECT
    assert "codec 'ans' is not on the devices of both hosts" in reached(lacking).arithmetic
    tell(devices, codecs=("ans", "of-tomorrow"))
    answer = evaluate(devices, codec="ans")
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_ADMIT, answer
    assert (plans[-1].codec, plans[-1].staged) == ("ans", True)
    tell(devices, together=True, codecs=("ans",))
    evaluate(devices, codec="ans")
    assert plans[-1].staged, "asked for by name, also where devices read each other"
    evaluate(devices)
    assert not plans[-1].staged


def test_state_in_host_memory_has_no_codec_of_devices(cluster: Cluster) -> None:
    cluster.with_session()
    answer = evaluate(cluster, codec="ans")
    assert answer.verdict.kind == move_pb2.VERDICT_KIND_REJECT
    with pytest.raises(BadRequest, match="at work on devices"):
        evaluate(cluster, codec="ans", placement=state_pb2.VERIFICATION_PLACEMENT_PIPELINED)


def test_lies_about_peers_are_refused(cluster: Cluster) -> None:
    for change in (
        {"device_id": "x" * 300},
        {"peers": [pb.PeerAccess(device_id="g", verdict="x" * 300)]},
        {"peers": [pb.PeerAccess(device_id=str(number), verdict="sound") for number in range(MAX_PEERS + 1)]},
    ):
        told = cluster.a.registration()
        told.MergeFrom(pb.EngineHostRegistration(**change))  # type: ignore[arg-type]
        with pytest.raises(BadRequest), rpc.calling("admission"):
            cluster.stub.RegisterEngineHost(pb.RegisterEngineHostRequest(registration=told, status=cluster.a.status()))


def test_a_move_that_movers_cannot_carry_never_begins(devices: Cluster) -> None:
    move = devices.move(transport="tcp", placement=state_pb2.VERIFICATION_PLACEMENT_PIPELINED)
    assert move.verdict.kind == move_pb2.VERDICT_KIND_REJECT
    assert not devices.movers["mover-a"].requests

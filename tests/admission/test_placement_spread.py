"""Placing new sessions: prewarmed and movable first, quiet receivers, room in proportion to the way out."""

from __future__ import annotations

import uuid

import pytest
from admission_cluster import Cluster
from admission_fakes import FakeHost, until
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.placement import Arrivals
from admission.spread import Candidate, ordered
from worldline.manifest import Fingerprint
from worldline.v1 import admission_service_pb2 as pb

GIB = 1 << 30


def best(*candidates: Candidate) -> str:
    return ordered(candidates)[0].host_id


def test_what_comes_before_what() -> None:
    plain = Candidate("plain", 10 * GIB, 0, 1e9, 0)
    assert best(plain, Candidate("warm", GIB, GIB, 1e9, 3)) == "warm"
    assert best(plain, Candidate("stuck", 90 * GIB, 0, 0.0, 0)) == "plain"
    assert best(plain, Candidate("busy", 90 * GIB, 0, 1e9, 1)) == "plain"
    assert best(plain, Candidate("roomy", 11 * GIB, 0, 1e9, 0)) == "roomy"
    # Twice the room behind a tenth of the bandwidth is less.
    assert best(plain, Candidate("slow", 20 * GIB, 0, 1e8, 0)) == "plain"
    assert best(Candidate("b", GIB, 0, 0.0, 0), Candidate("a", GIB, 0, 0.0, 0)) == "a"


candidates = st.builds(
    Candidate,
    st.text("abc", min_size=1, max_size=3),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 30),
    st.floats(0, 1e12),
    st.integers(0, 5),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(candidates, max_size=8, unique_by=lambda item: item.host_id), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_who_is_asked_first(found: list[Candidate], random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ordered(found) == ordered(shuffled)
    assert sorted(ordered(found), key=lambda item: item.host_id) == sorted(found, key=lambda item: item.host_id)


def test_sessions_count_before_their_host_has_told_of_them() -> None:
    arrivals = Arrivals()
    with arrivals.creating("host-a"):
        assert arrivals.being_created("host-a") == 1
    arrivals.created("host-a", 10.0, 100)
    arrivals.created("host-a", 20.0, 50)
    assert arrivals.being_created("host-a") == 0
    assert arrivals.unseen_bytes("host-a", 5.0) == 150
    assert arrivals.unseen_bytes("host-a", 15.0) == 50
    assert arrivals.unseen_bytes("host-a", 25.0) == 0
    assert arrivals.unseen_bytes("host-b", 0.0) == 0


def place(cluster: Cluster) -> str:
    request = pb.PlaceSessionRequest(request_id=str(uuid.uuid4()), engine="window-rewrite", preset="tiny")
    return cluster.stub.PlaceSession(request, timeout=10).host_id


def test_a_burst_is_spread_before_any_heartbeat(cluster: Cluster) -> None:
    assert [place(cluster) for _ in range(6)].count("host-a") == 3


def test_a_host_whose_sessions_could_not_leave_comes_last(cluster: Cluster) -> None:
    third = cluster.hosts["host-c"] = FakeHost("host-c", "mover-a", free_bytes=1 << 40)
    third.fingerprint = Fingerprint({"torch": "1.0", "cpu": "AVX2"})
    cluster.register()
    assert place(cluster) != "host-c"
    for host in (cluster.a, cluster.b):
        host.draining = True
        cluster.beat(host)
    assert place(cluster) == "host-c"


def test_a_host_that_a_move_comes_into_is_spared(cluster: Cluster) -> None:
    cluster.with_session()
    cluster.b.free_bytes = 1 << 34
    cluster.beat(cluster.b)
    assert place(cluster) == "host-b"
    gate = cluster.hold_mover()
    asked = cluster.move()
    until("on the wire", lambda: cluster.get(asked.move_id).stage == "wire")
    assert place(cluster) == "host-a"
    gate.set()


@pytest.mark.parametrize("warm", ["host-a", "host-b"])
def test_a_prewarmed_host_comes_first(cluster: Cluster, warm: str) -> None:
    for host in cluster.hosts.values():
        status = host.status()
        status.warm_bytes = (1 << 20) if host.host_id == warm else 0
        cluster.stub.HeartbeatEngineHost(
            pb.HeartbeatEngineHostRequest(
                host_id=host.host_id, incarnation=host.incarnation, status=status, instance_id=host.instance_id
            )
        )
    assert [place(cluster) for _ in range(3)] == [warm] * 3

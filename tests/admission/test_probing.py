"""Admission's prober: which paths it looks at, when it holds back, and what it learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import until

from admission.estimators import BANDWIDTH_SAMPLE_BYTES, PathEstimate, PathKey
from admission.probing import Prober
from admission.profile import Profile
from admission.settings import AdmissionSettings
from worldline import errors, rpc
from worldline.move import StageTimes
from worldline.plan import Placement, Plan
from worldline.settings import load
from worldline.v1 import mover_service_pb2 as mover_pb
from worldline.v1.move_pb2 import MOVE_STATE_MOVED

KEY = PathKey("mover-a", "mover-b", "tcp/pipelined/raw")
IDLE_S = 300.0


class Lab:
    """A prober over a cluster of fakes; its profile's clock is the test's."""

    def __init__(self, cluster: Cluster) -> None:
        self.now_s = 0.0
        self.profile = Profile(PathEstimate.prior(1e9, 0.1), [], 600.0, lambda: self.now_s)
        leader = cluster.admission._leader
        assert leader is not None
        self.channels = rpc.Channels(cluster.settings)
        settings = load(AdmissionSettings, probe_idle_s=IDLE_S, silent_s=30.0)
        self.store = cluster.admission.journal
        self.prober = Prober(self.profile, self.store, leader._fleet, leader._coordinator, settings, self.channels)
        self.asked: list[mover_pb.ProbeRequest] = []
        self.answer: mover_pb.ProbeResponse | errors.WorldlineError = mover_pb.ProbeResponse(
            wire_s=0.015, verify_s=0.005
        )
        for mover in cluster.movers.values():
            mover.on_probe = self.probe

    def probe(self, request: mover_pb.ProbeRequest) -> mover_pb.ProbeResponse:
        self.asked.append(request)
        if isinstance(self.answer, errors.WorldlineError):
            raise self.answer
        return self.answer

    def move(self, placement: Placement = Placement.PIPELINED, codec: str = "raw") -> None:
        """A large move was completed on the path."""
        plan = Plan("tcp", 4 << 20, 2, placement, 1.0, 1.0, 1.0, codec)
        stages = StageTimes(wire_s=1.0, downtime_s=1.1)
        self.profile.keep(self.profile.after("mover-a", "mover-b", plan, 1 << 30, stages))


@pytest.fixture
def lab(cluster: Cluster) -> Iterator[Lab]:
    made = Lab(cluster)
    yield made
    made.channels.close()


def test_an_idle_path_is_measured_and_kept(lab: Lab, cluster: Cluster) -> None:
    assert lab.prober.look() == []
    lab.move()
    assert lab.prober.look() == []  # it was just seen
    lab.now_s = IDLE_S
    assert lab.prober.look() == [KEY]
    assert lab.prober.look() == []  # and now again
    (asked,) = lab.asked
    assert (asked.plan.transport, asked.size_bytes) == ("tcp", BANDWIDTH_SAMPLE_BYTES)
    assert asked.destination_mover_address == cluster.movers["mover-b"].address
    kept = {row.quantity: row for row in lab.store.estimates()}["pace_s_per_byte"]
    assert 0.02 / BANDWIDTH_SAMPLE_BYTES < kept.mean < 1.0 / (1 << 30)
    assert kept.sampled_at_s == IDLE_S


def test_movers_in_a_move_are_left_alone(lab: Lab, cluster: Cluster) -> None:
    lab.move()
    lab.now_s = IDLE_S
    cluster.with_session()
    gate = cluster.hold_mover()
    asked = cluster.move()
    until("on the wire", lambda: cluster.get(asked.move_id).stage == "wire")
    assert lab.prober.look() == []
    assert lab.asked == []
    gate.set()
    cluster.reach(asked.move_id, MOVE_STATE_MOVED)
    until("the move's thread is over", lambda: lab.prober.look() == [KEY])
    assert cluster.locate(SESSION).host_id == "host-b"


def test_a_move_that_begins_meanwhile_spoils_the_probe(lab: Lab, cluster: Cluster) -> None:
    lab.move()
    lab.now_s = IDLE_S
    cluster.with_session()
    gate = cluster.hold_mover()
    probe = lab.probe

    def busy(request: mover_pb.ProbeRequest) -> mover_pb.ProbeResponse:
        cluster.move()
        return probe(request)

    for mover in cluster.movers.values():
        mover.on_probe = busy
    assert lab.prober.look() == []
    assert len(lab.asked) == 1
    assert lab.profile.idle(IDLE_S) == [KEY]
    gate.set()


@pytest.mark.parametrize(
    "answer",
    [
        errors.Unavailable("no path"),
        errors.DataLoss("the probe's bytes changed on their way", reason="PROBE_DIFFERS"),
        mover_pb.ProbeResponse(),
        mover_pb.ProbeResponse(wire_s=float("nan")),
    ],
)
def test_a_probe_that_fails_teaches_nothing(lab: Lab, answer: mover_pb.ProbeResponse | errors.WorldlineError) -> None:
    lab.move()
    lab.now_s = IDLE_S
    lab.answer = answer
    assert lab.prober.look() == []
    assert lab.store.estimates() == []
    assert lab.profile.idle(IDLE_S) == [KEY]


def test_what_a_probe_cannot_measure_is_not_asked(lab: Lab) -> None:
    lab.move(Placement.DEVICE)
    lab.now_s = IDLE_S
    assert lab.prober.look() == []
    assert lab.asked == []


def test_a_stopped_prober_asks_nothing(lab: Lab) -> None:
    lab.move()
    lab.now_s = IDLE_S
    lab.prober.stop()
    assert lab.prober.look() == []
    assert lab.asked == []

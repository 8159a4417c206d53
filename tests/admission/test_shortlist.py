"""Admission picks among many hosts: the fit one is found wherever it is, and a large fleet is not judged whole."""

from __future__ import annotations

import hashlib

import pytest
from admission_cluster import SESSION, Cluster

from admission import decision
from admission.shortlist import GLANCES
from worldline import wire
from worldline.manifest import Fingerprint
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.move_pb2 import VERDICT_KIND_ADMIT

MANY = 3 * GLANCES


def crowd(cluster: Cluster, *, fit: bool) -> None:
    """As many hosts again and again, beside the destination's mover."""
    for number in range(MANY):
        told = cluster.b.registration()
        told.host_id, told.instance_id = f"crowd-{number:04}", hashlib.md5(b"%d" % number).hexdigest()
        if not fit:
            told.fingerprint.CopyFrom(wire.fingerprint_to(Fingerprint({"cpu": f"another, {number}"})))
        status = pb.EngineHostStatus(free_bytes=1 << 30)
        cluster.stub.RegisterEngineHost(pb.RegisterEngineHostRequest(registration=told, status=status))


def evaluate(cluster: Cluster) -> pb.EvaluateMoveResponse:
    return cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION))


def test_one_fit_host_among_many_is_found(cluster: Cluster) -> None:
    cluster.with_session()
    crowd(cluster, fit=False)
    for _ in range(20):  # it begins anywhere
        answer = evaluate(cluster)
        assert (answer.destination_host_id, answer.verdict.kind) == ("host-b", VERDICT_KIND_ADMIT)


def test_a_large_fleet_is_not_judged_whole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.with_session()
    crowd(cluster, fit=True)
    judged = []
    choose = decision.choose
    monkeypatch.setattr(decision, "choose", lambda question: (judged.append(question), choose(question))[1])
    assert evaluate(cluster).verdict.kind == VERDICT_KIND_ADMIT
    assert len(judged) < GLANCES

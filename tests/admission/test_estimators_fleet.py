"""D of a session as the fleet knows it: by the engine's own counters in the heartbeats of its host."""

from __future__ import annotations

import pytest
from admission_cluster import SESSION, Cluster
from admission_fakes import STATE_BYTES

from worldline.v1 import admission_service_pb2 as pb


def beat(cluster: Cluster, next_block: int, dirty_bytes: int, block_s: float = 0.1) -> None:
    status = cluster.a.status()
    (session,) = status.sessions
    session.next_block, session.dirty_bytes_per_block, session.block_s = next_block, dirty_bytes, block_s
    cluster.stub.HeartbeatEngineHost(
        pb.HeartbeatEngineHostRequest(
            host_id="host-a",
            incarnation=cluster.a.incarnation,
            status=status,
            instance_id=cluster.a.instance_id,
        )
    )


def dirty_Bps(cluster: Cluster) -> float:
    """D as the flux clause of a live move is told."""
    request = pb.EvaluateMoveRequest(session_id=SESSION, destination_host_id="host-b", mode=2)
    clauses = cluster.stub.EvaluateMove(request).verdict.clauses
    return next(clause for clause in clauses if clause.name == "flux").numbers["dirty_rate_Bps"]


def test_the_dirty_rate_is_smoothed_over_blocks_and_not_over_heartbeats(cluster: Cluster) -> None:
    cluster.with_session()
    before_Bps = STATE_BYTES / 2 / 0.1
    beat(cluster, 3, STATE_BYTES // 2)
    assert dirty_Bps(cluster) == pytest.approx(before_Bps)
    beat(cluster, 4, STATE_BYTES)
    once_Bps = before_Bps + (2 * before_Bps - before_Bps) / 8
    assert dirty_Bps(cluster) == pytest.approx(once_Bps)
    for _ in range(5):
        beat(cluster, 4, STATE_BYTES)
    assert dirty_Bps(cluster) == pytest.approx(once_Bps)
    for block in range(5, 60):
        beat(cluster, block, STATE_BYTES)
    assert dirty_Bps(cluster) == pytest.approx(2 * before_Bps, rel=0.01)

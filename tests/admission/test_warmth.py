"""What hosts say of warm and cold presets reaches the rules, and decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admission_cluster import SESSION, Cluster

from admission.facts import status_from
from worldline.errors import BadRequest
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1.move_pb2 import VERDICT_KIND_ADMIT, VERDICT_KIND_REJECT

PRESET = "window-rewrite/tiny"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def tell(cluster: Cluster, host_id: str, **fields: object) -> None:
    """A heartbeat that says how warm the preset is."""
    host = cluster.hosts[host_id]
    status = host.status()
    status.presets.add(preset=PRESET, **fields)  # type: ignore[arg-type]
    cluster.stub.HeartbeatEngineHost(
        pb.HeartbeatEngineHostRequest(
            host_id=host_id, incarnation=host.incarnation, status=status, instance_id=host.instance_id
        )
    )


def prewarm_clause(cluster: Cluster) -> tuple[int, str, str]:
    answer = cluster.stub.EvaluateMove(pb.EvaluateMoveRequest(session_id=SESSION, destination_host_id="host-b"))
    (clause,) = (clause for clause in answer.verdict.clauses if clause.name == "prewarm")
    return clause.verdict, clause.reason, clause.arithmetic


def test_warm_cold_and_untold(cluster: Cluster) -> None:
    cluster.with_session()
    assert prewarm_clause(cluster)[0] == VERDICT_KIND_ADMIT
    tell(cluster, "host-b", warm=False)
    assert "not told" in prewarm_clause(cluster)[2]  # cold, but nobody has measured what that costs
    tell(cluster, "host-a", warm=True, first_touch_s=4_000.0)
    verdict, reason, arithmetic = prewarm_clause(cluster)
    assert (verdict, reason) == (VERDICT_KIND_REJECT, "FIRST_TOUCH_COLD")
    assert "4000.000 s" in arithmetic
    tell(cluster, "host-b", warm=False, first_touch_s=0.001)  # its own measurement counts first
    assert "a first touch of 0.001 s" in prewarm_clause(cluster)[2]
    tell(cluster, "host-b", warm=True, slots=1)
    assert prewarm_clause(cluster)[2] == "warm: no first touch"


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(BadRequest, match="first_touch_s"):
        status_from(pb.EngineHostStatus(presets=[pb.PresetWarmth(preset=PRESET, first_touch_s=seconds)]))


def test_more_presets_than_a_host_may_serve_are_refused() -> None:
    with pytest.raises(BadRequest, match="presets"):
        status_from(pb.EngineHostStatus(presets=[pb.PresetWarmth(preset="a/b")] * 1_025))

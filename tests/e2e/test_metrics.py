"""Metrics reach an OTLP receiver, with what the conventions name and no session's id in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from e2e_tools import step, until
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as otlp_grpc

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2


class Receiver(otlp_grpc.MetricsServiceServicer):
    """Keeps the attributes of every point by the metric's name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.points: dict[str, list[dict[str, str]]] = {}

    def Export(
        self, request: otlp.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportMetricsServiceResponse:
        found = [
            metric for item in request.resource_metrics for scope in item.scope_metrics for metric in scope.metrics
        ]
        with self.lock:
            for metric in found:
                for point in (*metric.sum.data_points, *metric.histogram.data_points):
                    attributes = {item.key: item.value.string_value for item in point.attributes}
                    self.points.setdefault(metric.name, []).append(attributes)
        return otlp.ExportMetricsServiceResponse()

    def names(self) -> set[str]:
        with self.lock:
            return set(self.points)


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    server = grpc.server(ThreadPoolExecutor(4))
    made = Receiver()
    otlp_grpc.add_MetricsServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_moves_and_verdicts_are_counted(receiver: tuple[Receiver, str], tmp_path: Path) -> None:
    collected, endpoint = receiver
    options = {"admission": {"metrics_endpoint": endpoint}}
    with Fleet(tmp_path, TWO_NODES, options=options) as fleet, Client(fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
        with client.play(session) as play:
            step(play)
            moved = client.move(session.session_id, "host-b", timeout_s=60)
            step(play)
        assert moved.state == move_pb2.MOVE_STATE_MOVED
    # The fleet has ended, and told the rest.
    expected = {
        "worldline.move.duration",
        "worldline.move.downtime",
        "worldline.move.io",
        "worldline.admission.verdicts",
    }
    until("all metrics", lambda: expected <= collected.names())
    assert collected.points["worldline.admission.verdicts"][0]["worldline.admission.verdict"] == "ADMIT"
    assert collected.points["worldline.move.io"][0]["worldline.transport.selected"] == "tcp"
    told = {value for points in collected.points.values() for point in points for value in point.values()}
    assert session.session_id not in told

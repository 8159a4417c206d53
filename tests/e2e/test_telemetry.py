"""What an operator's receiver is told by OTLP: one trace a move through all three services, and metrics without ids."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from e2e_tools import all_ready, step, until
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2

STAGES = {"reserve", "freeze", "wire", "verify", "release", "commit", "free"}


class Spans(traces_grpc.TraceServiceServicer):
    """Keeps (trace id, service, span name, attributes)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans: list[tuple[str, str, str, dict[str, str]]] = []

    def Export(
        self, request: traces.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> traces.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = next(
                item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
            )
            with self.lock:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        attributes = {item.key: item.value.string_value for item in span.attributes}
                        self.spans.append((span.trace_id.hex(), service, span.name, attributes))
        return traces.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[tuple[str, str, dict[str, str]]]:
        with self.lock:
            return [(service, name, attributes) for trace, service, name, attributes in self.spans if trace == trace_id]


class Points(metrics_grpc.MetricsServiceServicer):
    """Keeps the attributes of every point by the metric's name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.points: dict[str, list[dict[str, str]]] = {}

    def Export(
        self, request: metrics.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics.ExportMetricsServiceResponse:
        found = [
            metric for item in request.resource_metrics for scope in item.scope_metrics for metric in scope.metrics
        ]
        with self.lock:
            for metric in found:
                for point in (*metric.sum.data_points, *metric.histogram.data_points):
                    attributes = {item.key: item.value.string_value for item in point.attributes}
                    self.points.setdefault(metric.name, []).append(attributes)
        return metrics.ExportMetricsServiceResponse()

    def names(self) -> set[str]:
        with self.lock:
            return set(self.points)


class Observed:
    """A fleet, and what its receiver was told."""

    def __init__(self, fleet: Fleet, spans: Spans, points: Points) -> None:
        self.fleet, self.spans, self.points = fleet, spans, points


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    server = grpc.server(ThreadPoolExecutor(8))
    spans, points = Spans(), Points()
    traces_grpc.add_TraceServiceServicer_to_server(spans, server)
    metrics_grpc.add_MetricsServiceServicer_to_server(points, server)
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    options = {"admission": {"metrics_endpoint": endpoint}}
    with Fleet(tmp_path_factory.mktemp("observed"), TWO_NODES, options=options, otlp_endpoint=endpoint) as fleet:
        yield Observed(fleet, spans, points)
    server.stop(0).wait()


def test_one_trace_a_move(observed: Observed) -> None:
    fleet, collected = observed.fleet, observed.spans
    with Client(fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
        with client.play(session) as play:
            step(play)
            move = client.move(session.session_id, "host-b", timeout_s=60)
            step(play)
            coded = client.wait(client.request_move(session.session_id, "host-a", codec="zstd").move_id, timeout_s=60)
        assert move.state == coded.state == move_pb2.MOVE_STATE_MOVED
        assert len(move.trace_id) == 32

        def names() -> set[str]:
            return {name for _, name, _ in collected.of(move.trace_id)}

        wanted = STAGES | {"admission.decide", "mover.move"}
        until(f"spans {wanted} are exported", lambda: wanted <= names())
        services = {"worldline-admission", "worldline-mover", "worldline-enginehost"}
        until(
            f"{services} have exported",
            lambda: services <= {service for service, _, _ in collected.of(move.trace_id)},
        )
        moves = {
            attributes["worldline.move.id"]
            for _, _, attributes in collected.of(move.trace_id)
            if "worldline.move.id" in attributes
        }
        assert moves == {move.move_id}
        heartbeats = [name for _, _, name, _ in collected.spans if "Heartbeat" in name or "Check" in name]
        assert heartbeats == []
        logs = fleet.directory.glob("*.log")
        assert any(move.trace_id in path.read_text() for path in logs)

        told = {f"worldline.codec.{name}_pieces" for name in ("coded", "zero", "raw", "late")}
        told |= {"worldline.chunk.tail_bytes", "worldline.codec.ratio"}
        until(
            "the coded move's wire says which pieces went raw, and why",
            lambda: any(told <= set(keys) for _, name, keys in collected.of(coded.trace_id) if name == "wire"),
        )


def test_moves_and_verdicts_are_counted(observed: Observed) -> None:
    fleet, collected = observed.fleet, observed.points
    with Client(fleet.target) as client:
        session = client.place("window-rewrite", "tiny", 1, host_id="host-a")
        with client.play(session) as play:
            step(play)
            moved = client.move(session.session_id, "host-b", timeout_s=60)
            step(play)
        assert moved.state == move_pb2.MOVE_STATE_MOVED
        # An admission that ends tells the rest.
        fleet.signal("admission", signal.SIGTERM)
        until("admission has ended", lambda: not fleet.members["admission"].running)
        expected = {
            "worldline.move.duration",
            "worldline.move.downtime",
            "worldline.move.io",
            "worldline.admission.verdicts",
        }
        until("all metrics", lambda: expected <= collected.names())
        fleet.restart("admission")
        until("the fleet is whole again", lambda: all_ready(client))
    assert collected.points["worldline.admission.verdicts"][0]["worldline.admission.verdict"] == "ADMIT"
    assert collected.points["worldline.move.io"][0]["worldline.transport.selected"] == "tcp"
    told = {value for points in collected.points.values() for point in points for value in point.values()}
    assert session.session_id not in told

"""One trace a move, through all three services, from outside: an OTLP receiver that only counts spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from e2e_tools import step, until
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from worldline.client import Client
from worldline.fleet import TWO_NODES, Fleet
from worldline.v1 import move_pb2

STAGES = {"reserve", "freeze", "wire", "verify", "release", "commit", "free"}


class Receiver(otlp_grpc.TraceServiceServicer):
    """Keeps (trace id, service, span name, attributes)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spans: list[tuple[str, str, str, dict[str, str]]] = []

    def Export(
        self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = next(
                item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
            )
            with self.lock:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        attributes = {item.key: item.value.string_value for item in span.attributes}
                        self.spans.append((span.trace_id.hex(), service, span.name, attributes))
        return otlp.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[tuple[str, str, dict[str, str]]]:
        with self.lock:
            return [(service, name, attributes) for trace, service, name, attributes in self.spans if trace == trace_id]


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    server = grpc.server(ThreadPoolExecutor(8))
    made = Receiver()
    otlp_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_one_trace_a_move(receiver: tuple[Receiver, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    collected, endpoint = receiver
    with (
        Fleet(tmp_path_factory.mktemp("traced"), TWO_NODES, otlp_endpoint=endpoint) as fleet,
        Client(fleet.target) as client,
    ):
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

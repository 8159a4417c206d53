"""The stand-in takes what the real exporter sends and answers in the shape of Jaeger's query API."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otlp_stand_in import Receiver, Store, query_server


@pytest.fixture
def stand_in() -> Iterator[tuple[str, str]]:
    """OTLP address and query URL of a stand-in on free ports."""
    store = Store()
    receiver = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(Receiver(store), receiver)  # type: ignore[no-untyped-call]
    port = receiver.add_insecure_port("127.0.0.1:0")
    receiver.start()
    query = query_server(store, 0)
    thread = threading.Thread(target=query.serve_forever)
    thread.start()
    yield f"127.0.0.1:{port}", f"http://127.0.0.1:{query.server_port}"
    query.shutdown()
    thread.join()
    query.server_close()
    receiver.stop(None).wait()


def _provider(service: str, address: str) -> TracerProvider:
    provider = TracerProvider(resource=Resource({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=address, insecure=True)))
    return provider


def test_one_trace_over_two_services(stand_in: tuple[str, str]) -> None:
    address, url = stand_in
    first, second = _provider("first", address), _provider("second", address)
    with first.get_tracer("t").start_as_current_span("outer") as outer:
        with second.get_tracer("t").start_as_current_span("inner", attributes={"bytes": 5}):
            trace_id = trace.format_trace_id(outer.get_span_context().trace_id)
    first.shutdown()
    second.shutdown()
    with urllib.request.urlopen(f"{url}/api/services", timeout=5) as answer:
        assert json.load(answer)["data"] == ["first", "second"]
    with urllib.request.urlopen(f"{url}/api/traces/{trace_id}", timeout=5) as answer:
        (found,) = json.load(answer)["data"]
    spans = {span["operationName"]: span for span in found["spans"]}
    assert found["processes"][spans["inner"]["processID"]]["serviceName"] == "second"
    assert spans["inner"]["references"][0]["spanID"] == spans["outer"]["spanID"]
    assert spans["inner"]["tags"] == [{"key": "bytes", "value": 5}]
    assert spans["outer"]["references"] == []


@pytest.mark.parametrize("path", ["/api/traces/" + "0" * 32, "/elsewhere"])
def test_what_is_not_there_is_not_found(stand_in: tuple[str, str], path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(stand_in[1] + path, timeout=5)
    refused.value.close()

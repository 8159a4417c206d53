"""Stands in for Jaeger where its image cannot be had: takes spans by OTLP/gRPC and answers Jaeger's query API shapes.

`/api/services` and `/api/traces/{trace id}` on 16686, OTLP on 4317. It shows that the services speak OTLP and share one
trace; it shows nothing about Jaeger itself. Spans are kept in memory, the newest `MAX_SPANS`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_SPANS = 50_000
JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class Kept:
    """One span and the service that made it."""

    service: str
    span: Span


class Store:
    """The newest spans, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Kept] = deque(maxlen=MAX_SPANS)

    def add(self, spans: list[Kept]) -> None:
        """Keep these."""
        with self._lock:
            self._kept.extend(spans)

    def services(self) -> list[str]:
        """Names of the services that sent spans, sorted."""
        with self._lock:
            return sorted({kept.service for kept in self._kept})

    def trace(self, trace_id: str) -> list[Kept]:
        """Spans of the trace with this id, 32 hex digits."""
        with self._lock:
            return [kept for kept in self._kept if kept.span.trace_id.hex() == trace_id]


class Receiver(trace_grpc.TraceServiceServicer):
    """OTLP's trace service."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def Export(
        self, request: trace_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = [item.value.string_value for item in resource.resource.attributes if item.key == "service.name"]
            service = names[0] if names else "unknown"
            self._store.add([Kept(service, span) for scope in resource.scope_spans for span in scope.spans])
        return trace_pb2.ExportTraceServiceResponse()


def _value(value: AnyValue) -> str | int | float | bool:
    kind = value.WhichOneof("value")
    if kind in ("string_value", "int_value", "double_value", "bool_value"):
        plain: str | int | float | bool = getattr(value, kind)
        return plain
    return str(value)


def _tag(item: KeyValue) -> JsonValue:
    return {"key": item.key, "value": _value(item.value)}


def jaeger_trace(trace_id: str, kept: list[Kept]) -> JsonValue:
    """One trace in the shape of Jaeger's query API; times in microseconds."""
    processes = {service: f"p{index + 1}" for index, service in enumerate(sorted({each.service for each in kept}))}
    spans: list[JsonValue] = []
    for each in kept:
        span = each.span
        parent: JsonValue = {"refType": "CHILD_OF", "traceID": trace_id, "spanID": span.parent_span_id.hex()}
        spans.append(
            {
                "traceID": trace_id,
                "spanID": span.span_id.hex(),
                "operationName": span.name,
                "references": [parent] if span.parent_span_id else [],
                "startTime": span.start_time_unix_nano // 1000,
                "duration": (span.end_time_unix_nano - span.start_time_unix_nano) // 1000,
                "tags": [_tag(item) for item in span.attributes],
                "processID": processes[each.service],
            }
        )
    named: dict[str, JsonValue] = {
        process: {"serviceName": service, "tags": []} for service, process in processes.items()
    }
    return {"traceID": trace_id, "spans": spans, "processes": named}


def query_server(store: Store, port: int) -> ThreadingHTTPServer:
    """Jaeger's query API over `store`."""

    class Query(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/api/services":
                services: list[JsonValue] = list(store.services())
                self._answer(200, {"data": services, "total": len(services), "errors": None})
            elif path.startswith("/api/traces/"):
                trace_id = path.removeprefix("/api/traces/").lower()
                kept = store.trace(trace_id)
                if kept:
                    self._answer(200, {"data": [jaeger_trace(trace_id, kept)], "total": 0, "errors": None})
                else:
                    self._answer(404, {"data": None, "errors": [{"code": 404, "msg": "trace not found"}]})
            else:
                self._answer(404, {"data": None, "errors": [{"code": 404, "msg": f"no such path {path}"}]})

        def _answer(self, status: int, body: JsonValue) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: a poll a second would fill the log."""

    return ThreadingHTTPServer(("0.0.0.0", port), Query)


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    store = Store()
    receiver = grpc.server(ThreadPoolExecutor(8))
    trace_grpc.add_TraceServiceServicer_to_server(Receiver(store), receiver)  # type: ignore[no-untyped-call]
    receiver.add_insecure_port("0.0.0.0:4317")
    receiver.start()
    query = query_server(store, 16686)
    threading.Thread(target=query.serve_forever, daemon=True).start()
    print(json.dumps({"ready": True, "service": "worldline-test-otlp"}), flush=True)
    stopped.wait()
    query.shutdown()
    receiver.stop(1).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A traced channel: its calls carry the trace; its streams stay what gRPC made them, begun at once and cancellable."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry import trace

from worldline.rpc import Server, channel
from worldline.settings import ServiceSettings, load

PARENT = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))


class _Peer:
    def __init__(self) -> None:
        self.traceparents: list[str] = []
        self.left = threading.Event()

    def ask(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._keep(context)
        return request

    def follow(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._keep(context)
        context.add_callback(self.left.set)
        yield request
        self.left.wait()

    def _keep(self, context: grpc.ServicerContext) -> None:
        self.traceparents.append(str(dict(context.invocation_metadata()).get("traceparent", "")))


@pytest.fixture
def served() -> Iterator[tuple[_Peer, str]]:
    server, peer = Server(load(ServiceSettings), ()), _Peer()
    methods = {
        "Ask": grpc.unary_unary_rpc_method_handler(peer.ask),
        "Follow": grpc.unary_stream_rpc_method_handler(peer.follow),
    }
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Peer", methods)])
    yield peer, server.start()
    server.stop(0)


def test_calls_and_streams_carry_the_trace(served: tuple[_Peer, str]) -> None:
    peer, address = served
    with channel(address, traced=True) as opened, trace.use_span(trace.NonRecordingSpan(PARENT)):
        ask = opened.unary_unary("/test.Peer/Ask", None, None)
        assert ask(b"1", timeout=5) == b"1"
        assert ask.future(b"2", timeout=5).result() == b"2"
        call = opened.unary_stream("/test.Peer/Follow", None, None)(b"3", timeout=5)
        assert next(iter(call)) == b"3"
        call.cancel()  # type: ignore[no-untyped-call]
        assert peer.left.wait(5)
    assert [parent.split("-")[1:2] for parent in peer.traceparents] == [[f"{PARENT.trace_id:032x}"]] * 3

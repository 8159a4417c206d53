"""Channels whose calls carry the current trace; a module apart, so that untraced processes do not pay for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from opentelemetry import propagate, trace
from opentelemetry.instrumentation.grpc._client import OpenTelemetryClientInterceptor
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel

_Metadata = tuple[tuple[str, str], ...] | None


class _Interceptor(OpenTelemetryClientInterceptor):
    """The library's spans for unary calls; for streams the context only.

    The library answers a stream with a generator, which cannot be cancelled and calls nobody before it is iterated.
    """

    def intercept_stream(
        self,
        request_or_iterator: object,
        metadata: _Metadata,
        client_info: object,
        invoker: Callable[[object, _Metadata], Any],
    ) -> Any:  # noqa: ANN401 - any call
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return invoker(request_or_iterator, (*(metadata or ()), *carrier.items()))


def traced(channel: grpc.Channel, spoken: Callable[[Any], bool]) -> grpc.Channel:
    """`channel`, with W3C context on every call and a client span on the unary ones that `spoken` accepts."""
    interceptor = _Interceptor(trace.get_tracer("worldline"), filter_=spoken)  # type: ignore[no-untyped-call]
    opened: grpc.Channel = intercept_channel(channel, interceptor)  # type: ignore[no-untyped-call]
    return opened

"""Logs and traces: JSON lines with trace and move ids, one OpenTelemetry trace a move, W3C context on the wire."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, Status, StatusCode

_TRACER = "worldline"

Attribute = str | int | float | bool


def _trace_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = f"{span.trace_id:032x}"
        event["span_id"] = f"{span.span_id:016x}"
    return event


def configure(service: str, instance: str, *, endpoint: str = "", level: str = "INFO") -> None:
    """Set up logging to stderr and, if `endpoint` (host:port of an OTLP/gRPC receiver) is given, tracing."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _trace_ids,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    # A thread starts with empty context variables: what every line needs is bound to the processors instead.
    structlog.configure(processors=[_bound(service, instance), *structlog.get_config()["processors"]])
    if endpoint:
        _export(service, instance, endpoint)


def _bound(service: str, instance: str) -> structlog.types.Processor:
    def bind(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("service", service)
        event.setdefault("instance", instance)
        return event

    return bind


def _export(service: str, instance: str, endpoint: str) -> None:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": f"worldline-{service}", "service.instance.id": instance})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=endpoint.removeprefix("http://"), insecure=True, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)


def shutdown() -> None:
    """Flush what has been traced."""
    provider = trace.get_tracer_provider()
    end = getattr(provider, "shutdown", None)
    if end is not None:
        end()


def log(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; bind ids, not sentences."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(component=name)
    return logger


@contextmanager
def span(name: str, attributes: Mapping[str, Attribute] | None = None) -> Iterator[Span]:
    """A span named in the design's words; an exception marks it failed and passes on.

    Attribute names are given without their `worldline.` prefix.
    """
    tracer = trace.get_tracer(_TRACER)
    named = {f"worldline.{key}": value for key, value in (attributes or {}).items()}
    with tracer.start_as_current_span(name, attributes=named, record_exception=False) as current:
        try:
            yield current
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise


def set_attributes(current: Span, attributes: Mapping[str, Attribute]) -> None:
    """Add attributes, named without their `worldline.` prefix."""
    current.set_attributes({f"worldline.{key}": value for key, value in attributes.items()})


def trace_id() -> str:
    """The current trace id, 32 hex digits; empty when nothing is traced."""
    current = trace.get_current_span().get_span_context()
    return f"{current.trace_id:032x}" if current.is_valid else ""


def inject() -> dict[str, str]:
    """The current trace context as W3C headers."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


@contextmanager
def extracted(carrier: Mapping[str, str]) -> Iterator[None]:
    """Go on in the trace of another process, or of another thread."""
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)

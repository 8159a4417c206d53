"""OpenTelemetry metrics, without session ids; exported where `metrics_endpoint` names a receiver, else free."""

from __future__ import annotations

from opentelemetry import metrics

from admission.machine import Phase
from admission.record import MoveRecord
from worldline.verdict import Verdict

_METER = metrics.get_meter("worldline")
_DURATION = _METER.create_histogram("worldline.move.duration", unit="s", description="request to end of a move")
_DOWNTIME = _METER.create_histogram("worldline.move.downtime", unit="s", description="freeze to playable of a move")
_IO = _METER.create_counter("worldline.move.io", unit="By", description="state bytes of completed moves")
_VERDICTS = _METER.create_counter(
    "worldline.admission.verdicts", unit="{verdict}", description="answers to RequestMove"
)
_FAILURES = _METER.create_counter(
    "worldline.verification.failures", unit="{move}", description="moves ended by bytes or receipts that differed"
)
_EXPORT_EVERY_S = 10.0
# Reasons that say: what was compared differs.
_DIFFERED = frozenset({"CHUNK_MISMATCH", "RECEIPT_MISMATCH", "COPY_REFUSED", "SOURCE_CHANGED"})


def export(endpoint: str) -> None:
    """Send metrics to an OTLP/gRPC receiver (host:port) every ten seconds and at the end of the process."""
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    exporter = OTLPMetricExporter(endpoint=endpoint.removeprefix("http://"), insecure=True, timeout=5)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_EXPORT_EVERY_S * 1e3)
    resource = Resource.create({"service.name": "worldline-admission"})
    metrics.set_meter_provider(MeterProvider([reader], resource=resource))


def shutdown() -> None:
    """Send what has not been sent."""
    end = getattr(metrics.get_meter_provider(), "shutdown", None)
    if end is not None:
        end()


def decided(verdict: Verdict) -> None:
    """RequestMove was answered."""
    reason = verdict.failed[0].reason if verdict.failed else ""
    _VERDICTS.add(1, {"worldline.admission.verdict": verdict.kind.name, "worldline.admission.reason": reason})


def closed(record: MoveRecord, at_s: float) -> None:
    """A move is over; `at_s` is Unix time."""
    if record.plan is None:
        return
    attributes = {
        "worldline.move.state": record.phase.name,
        "worldline.transport.selected": record.plan.transport,
        "worldline.codec.name": record.plan.codec,
        "worldline.verification.placement": record.plan.placement.name,
    }
    _DURATION.record(max(0.0, at_s - record.requested_at_s), attributes)
    if record.phase is Phase.MOVED:
        _IO.add(record.state_bytes - record.plan.made_bytes, attributes)
        if record.stages.downtime_s:
            _DOWNTIME.record(record.stages.downtime_s, attributes)
    elif record.state.reason in _DIFFERED:
        _FAILURES.add(1, attributes)

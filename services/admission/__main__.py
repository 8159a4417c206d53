"""`worldline-admission`: runs the admission service."""

from __future__ import annotations

import json
import sys

from admission import metrics
from admission.service import Admission
from admission.settings import AdmissionSettings
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.process import exit_with_parent, keep_what_is_here, parser_for
from worldline.settings import load_or_exit, shown


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = parser_for(AdmissionSettings, "worldline-admission", "Decides on moves and sees each one through.")
    given = vars(parser.parse_args(arguments))
    if given.pop("exit_with_parent"):
        exit_with_parent()
    settings = load_or_exit(AdmissionSettings, **given)
    telemetry.configure("admission", "admission", endpoint=settings.otlp_endpoint, level=settings.log_level)
    if settings.metrics_endpoint:
        metrics.export(settings.metrics_endpoint)
    try:
        admission = Admission(settings)
    except WorldlineError as error:
        print(f"worldline: {error}", file=sys.stderr)
        return 2
    telemetry.log("admission").info("starts", term=admission.term, settings=shown(settings))
    try:
        address = admission.start()
    except WorldlineError as error:
        print(f"worldline: {error}", file=sys.stderr)
        admission.stop()
        return 2
    keep_what_is_here()
    ready = {"ready": True, "service": "admission", "id": "admission", "address": address}
    print(json.dumps({**ready, "term": admission.term}), flush=True)
    admission.wait()
    admission.stop()
    metrics.shutdown()
    telemetry.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

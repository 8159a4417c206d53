"""`worldline-admission`: runs the admission service."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys

from admission import metrics
from admission.service import Admission
from admission.settings import AdmissionSettings
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.settings import load_or_exit, shown

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="worldline-admission", description=__doc__)
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the parent process dies")
    for name, field in AdmissionSettings.model_fields.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, help=f"{field.description or ''} ({field.default})"
        )
    given = vars(parser.parse_args(arguments))
    if given.pop("exit_with_parent"):
        _exit_with_parent()
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
    ready = {"ready": True, "service": "admission", "id": "admission", "address": address}
    print(json.dumps({**ready, "term": admission.term}), flush=True)
    admission.wait()
    admission.stop()
    metrics.shutdown()
    telemetry.shutdown()
    return 0


def _exit_with_parent() -> None:
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())

"""Start a mover: `worldline-mover --mover-id mover-a --regions-dir /run/worldline`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal

from mover.server import Mover
from mover.settings import MoverSettings
from mover.transports import lack_of
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.settings import load_or_exit, shown

_PR_SET_PDEATHSIG = 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="worldline-mover", description="Carries regions between engine hosts.")
    for name, field in MoverSettings.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, default=None, help=field.description)
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the process that started this ends")
    return parser.parse_args()


def _exit_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)  # it had ended before it was watched


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    arguments = vars(_arguments())
    if arguments.pop("exit_with_parent"):
        _exit_with_parent()
    settings = load_or_exit(MoverSettings, **arguments)
    telemetry.configure("mover", settings.mover_id, endpoint=settings.otlp_endpoint, level=settings.log_level)
    telemetry.log("mover").info("starting", settings=shown(settings))
    if "rdma" not in settings.transport_names and (lack := lack_of("rdma", settings.transport_config)):
        telemetry.log("mover").info("rdma_not_offered", reason=lack.reason, message=lack.message)
    mover = Mover(settings)
    try:
        try:
            address = mover.start()
        except WorldlineError as error:
            raise SystemExit(f"worldline-mover: {error}") from None
        print(json.dumps({"ready": True, "service": "mover", "id": settings.mover_id, "address": address}), flush=True)
        mover.wait()
    finally:
        mover.stop()
        telemetry.shutdown()


if __name__ == "__main__":
    main()

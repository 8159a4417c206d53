"""Starts one engine host: `python -m enginehost --host-id ...` or `worldline-enginehost`."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

from enginehost.settings import EngineHostSettings
from worldline import telemetry
from worldline.errors import WorldlineError
from worldline.settings import load_or_exit

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    arguments = _parser().parse_args()
    values = vars(arguments)
    if values.pop("exit_with_parent"):
        _exit_with_parent()
    settings = load_or_exit(EngineHostSettings, **values)
    telemetry.configure("enginehost", settings.host_id, endpoint=settings.otlp_endpoint, level=settings.log_level)
    # Imported late: torch takes seconds, and a wrong setting is told at once.
    from enginehost.process import serve

    try:
        serve(settings)
    except WorldlineError as error:
        print(f"worldline-enginehost: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        telemetry.shutdown()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worldline-enginehost", description="Owns and plays the sessions of a device."
    )
    for name, field in EngineHostSettings.model_fields.items():
        default = "" if field.default in (None, "") else f" (default {field.default})"
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"{field.description or name}{default}")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the process that started this ends")
    return parser


def _exit_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(0)


if __name__ == "__main__":
    main()

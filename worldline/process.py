"""What every service's process does at its start."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal

from pydantic_settings import BaseSettings

_PR_SET_PDEATHSIG = 1


def parser_for(settings: type[BaseSettings], program: str, description: str) -> argparse.ArgumentParser:
    """A parser with one option for each setting, and `--exit-with-parent`."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    for name, field in settings.model_fields.items():
        default = "" if field.default in (None, "") or field.is_required() else f" (default {field.default})"
        # `%` is argparse's own sign.
        told = f"{field.description or name}{default}".replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=told)
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the process that started this ends")
    return parser


def exit_with_parent() -> None:
    """Be told to end (SIGTERM) when the process that started this one ends. Raises SystemExit if it has already."""
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit(0)


def keep_what_is_here() -> None:
    """Called once everything is loaded: it stays, and is looked at by no garbage collection any more.

    A full one over all that a service has loaded takes up to 0.2 s, and may come while a session is frozen.
    """
    gc.collect()
    gc.freeze()

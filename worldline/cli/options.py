"""Options that several commands share, and the type that argparse has no public name for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from worldline import rpc
from worldline.errors import BadRequest

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

_TLS = {
    "certificate": "certificate chain of this caller",
    "key": "key of this caller",
    "ca": "what peers are signed by",
}


def common() -> argparse.ArgumentParser:
    """The parent of every command that calls a running fleet."""
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument(
        "--target",
        default=os.environ.get("WORLDLINE_TARGET", "localhost:7400"),
        help="admission, host:port, several with commas (default $WORLDLINE_TARGET or localhost:7400)",
    )
    add_output_and_tls(made)
    return made


def at_least_one(value: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from 1 on")
    return int(value)


def add_output_and_tls(to: argparse.ArgumentParser) -> None:
    """`--json`, and the three files of mTLS."""
    to.add_argument("--json", action="store_true", help="print JSON")
    for name, what in _TLS.items():
        to.add_argument(f"--tls-{name}", type=Path, metavar="PEM", help=f"mTLS: {what}; all three or none")


def tls_of(options: argparse.Namespace) -> rpc.Tls | None:
    """The files of mTLS that were given. Raises BadRequest if only some were."""
    files = [getattr(options, f"tls_{name}", None) for name in _TLS]
    if not any(files):
        return None
    certificate, key, ca = files
    if certificate is None or key is None or ca is None:
        raise BadRequest("--tls-certificate, --tls-key and --tls-ca go together: give all three or none")
    return rpc.Tls(certificate, key, ca)

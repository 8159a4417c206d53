"""Options of commands that play an engine's session in this process, and the session."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from worldline.cli.options import at_least_one
from worldline.engine import installed
from worldline.errors import Unsupported

if TYPE_CHECKING:
    from worldline.instruments.twin import Twin

# Blocks after which an engine's state is taken to be like that of any later one.
WARM_UP_BLOCKS = 2


def add_engine(to: argparse.ArgumentParser, *, required: bool) -> None:
    """`--engine`, `--preset` and what their session is made of."""
    to.add_argument("--engine", required=required, default="", help="an installed engine, played here, on the CPU")
    to.add_argument("--preset", default="tiny", help="its preset (default tiny)")
    to.add_argument("--seed", type=int, default=7, help="of the session, and of what is drawn (default 7)")
    to.add_argument("--action", type=_hex, metavar="HEX", help="every block's action (default: bytes from the seed)")
    to.add_argument("--torch-threads", type=at_least_one, default=1, metavar="N", help="default 1, as on a host")


def twin(options: argparse.Namespace) -> Twin:
    """The session, before its first block. Raises NotFound, Unsupported."""
    try:
        import torch
    except ImportError as error:
        raise Unsupported(
            "playing an engine needs torch: pip install 'worldline[engine]'", reason="TORCH_NOT_INSTALLED"
        ) from error
    from worldline.instruments.twin import Twin, engine_of

    torch.set_num_threads(options.torch_threads)
    return Twin(engine_of(installed(), options.engine), options.preset, options.seed, options.action)


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not bytes in hexadecimal") from None

"""What pictures need, asked before anything is worked out for them: matplotlib, and a directory to write into."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from worldline.errors import BadRequest, Unsupported

_FORMATS = (".png", ".svg")


def picture_file(text: str) -> Path:
    """A file whose name tells its format, for argparse."""
    path = Path(text)
    if path.suffix.lower() not in _FORMATS:
        raise argparse.ArgumentTypeError(f"{path.name!r} does not end with {' or '.join(_FORMATS)}")
    return path


def add_picture(to: argparse.ArgumentParser) -> None:
    """`--picture FILE`, any number of times."""
    to.add_argument(
        "--picture", type=picture_file, action="append", default=[], metavar="FILE", help="PNG or SVG; needs `plots`"
    )


def require_plots(pictures: Iterable[Path]) -> None:
    """Raises Unsupported without matplotlib, BadRequest where a file cannot be."""
    try:
        import matplotlib  # noqa: F401 - only pictures need it
    except ImportError as error:
        raise Unsupported(
            "pictures need matplotlib: pip install 'worldline[plots]'", reason="PLOTS_NOT_INSTALLED"
        ) from error
    for path in pictures:
        if not path.parent.is_dir():
            raise BadRequest(f"{path.parent} is no directory to write {path.name} into")

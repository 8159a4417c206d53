"""Entry point of the `worldline` command; services add subcommands through the entry-point group `worldline.commands`.

Exit status: 0 done as asked, 1 not done (a move that did not end as MOVED, a verdict other than ADMIT, a demo that
found a difference), 2 wrong usage, 3 an error, printed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import entry_points

from worldline import __version__
from worldline.cli import demo, dev, moving, showing
from worldline.errors import WorldlineError

GROUP = "worldline.commands"


def parser() -> argparse.ArgumentParser:
    """The command line, with every installed subcommand."""
    top = argparse.ArgumentParser(prog="worldline", description="Moves live world-model sessions between engine hosts.")
    top.add_argument("--version", action="version", version=f"worldline {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--target",
        default=os.environ.get("WORLDLINE_TARGET", "localhost:7400"),
        help="admission, host:port (default $WORLDLINE_TARGET or localhost:7400)",
    )
    common.add_argument("--json", action="store_true", help="print JSON")
    for module in (dev, demo, showing, moving):
        module.register(commands, common)
    for point in entry_points(group=GROUP):
        point.load()(commands, common)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except WorldlineError as error:
        if getattr(options, "json", False):
            print(json.dumps({"error": error.reason, "message": error.message, "numbers": error.numbers}))
        print(f"worldline: {error.reason}: {error.message}", file=sys.stderr)
        return 3
    except BrokenPipeError:
        return 3
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

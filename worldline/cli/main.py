"""Entry point of the `worldline` command; services add subcommands through the entry-point group `worldline.commands`.

Exit status: 0 done as asked, 1 not done (a move that did not end as MOVED, a verdict other than ADMIT, a demo that
found a difference), 2 wrong usage, 3 an error, printed with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import entry_points

from worldline import __version__
from worldline.cli import battery, bench, cold, demo, dev, inspecting, keeping, moving, scheduling, showing
from worldline.cli.options import common, tls_of
from worldline.errors import WorldlineError

GROUP = "worldline.commands"


def parser() -> argparse.ArgumentParser:
    """The command line, with every installed subcommand."""
    top = argparse.ArgumentParser(prog="worldline", description="Moves live world-model sessions between engine hosts.")
    top.add_argument("--version", action="version", version=f"worldline {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = common()
    for module in (dev, demo, showing, moving, keeping, scheduling, inspecting, battery, bench, cold):
        module.register(commands, shared)
    for point in entry_points(group=GROUP):
        point.load()(commands, shared)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    options = parser().parse_args(arguments)
    try:
        options.tls = tls_of(options)
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

"""`worldline battery`: flipped bits, lossy handles and an engine's declarations, tried on a session played here."""

from __future__ import annotations

import argparse

from rich.console import Console

from worldline.cli import local, render
from worldline.cli.options import Subparsers, at_least_one
from worldline.cli.pictures import add_picture, require_plots

HELP = """\
Plays a session of an engine in this process and then, again and again from the same state, goes on from a copy of it
in which something was changed: a half of a leaf, one bit, what a lossy handle would leave. Every block is compared with
that of the unchanged session, readout and state.

Exit status 1: a block changed more bytes than the engine declares, or a leaf that is declared cold was written or read.
"""


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "battery",
        help="flipped bits, lossy handles and declarations of an engine",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    local.add_engine(command, required=True)
    add("--warm-up", type=at_least_one, default=local.WARM_UP_BLOCKS, metavar="N", help="blocks before (default 2)")
    add("--blocks", type=at_least_one, default=2, help="blocks that each changed state goes on for (default 2)")
    add("--flips", type=at_least_one, default=96, help="bits to flip, the strata taken in turns (default 96)")
    add_picture(command)
    add("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the battery, and show what it found."""
    if options.picture:
        require_plots(options.picture)
    twin = local.twin(options)
    # Only now: they need torch.
    from worldline.cli import show_battery
    from worldline.instruments import battery

    wanted = battery.Wanted(options.warm_up, options.blocks, options.flips, options.seed)
    console = Console(stderr=True)
    with console.status("warming up") as status:
        found = battery.run(twin, wanted, status.update)
    if options.picture:
        from worldline.cli.draw_battery import draw

        draw(found, options.picture)
    if options.json:
        render.print_json(battery.as_dict(found))
    else:
        show_battery.show(found)
    return 0 if found.good else 1

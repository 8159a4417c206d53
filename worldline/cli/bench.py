"""`worldline bench`: named benchmarks. They are part of the repository and not of the installed package."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import worldline
from worldline.cli import render
from worldline.cli.options import Subparsers, at_least_one
from worldline.errors import Unsupported

HELP = """\
Runs suites of benchmarks, each beside a ceiling measured in the same run, and writes JSON with the host's fingerprint.
Without a suite it lists them. Figures that cannot be attributed are refused: when the machine was not idle before, when
other processes or the hypervisor took processor time during the runs, when a process of the benchmark was not ready
within 15 s or ended.
"""


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "bench",
        help="named benchmarks, from a checkout of the repository",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("suites", nargs="*", metavar="SUITE", help="what to run; `all` for every one")
    add("--preset", default="mg2", help="of the engine window-rewrite: tiny, small or mg2 (default mg2)")
    add("--runs", type=at_least_one, default=5, help="rounds that count; one more warms up (default 5)")
    add(
        "--link",
        type=_gigabits,
        metavar="Gb/s",
        help="shape the link of verification, codec and fan-in (needs root and iproute2); 0: loopback as it is",
    )
    add("--anyway", action="store_true", help="print figures that cannot be attributed, marked as such")
    add("--picture", type=Path, metavar="FILE", help="draw what each thing costs for a gigabyte; needs `plots`")
    add("--out", type=Path, metavar="DIR", help="where JSON is written (default benchmarks/results)")
    add("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the suites, or list them."""
    find_benchmarks()
    runner, suite = import_module("benchmarks.runner"), import_module("benchmarks.suite")
    if not options.suites:
        suites = runner.listing()
        if options.json:
            render.print_json([{"suite": name, "measures": what} for name, what in suites])
        else:
            render.console().print(render.table("", ("suite", "what it measures"), suites))
        return 0
    setup = suite.Setup(options.preset, options.runs, options.link)
    wanted = runner.Wanted(options.anyway, options.json, options.out, options.picture)
    return int(runner.run(options.suites, setup, wanted))


def find_benchmarks() -> None:
    """Make `benchmarks` importable: it lies beside `worldline` in a checkout. Raises Unsupported where it does not."""
    checkout = Path(worldline.__file__).resolve().parents[1]
    if not (checkout / "benchmarks" / "runner.py").is_file():
        raise Unsupported(
            f"benchmarks are not part of the installed package, and {checkout} is no checkout of the repository: "
            "clone it and install it with pip install -e '.[bench]'",
            reason="BENCHMARKS_NOT_HERE",
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))


def _gigabits(text: str) -> float:
    """A rate of a link from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate between 0 and 1000 Gb/s")
    return value

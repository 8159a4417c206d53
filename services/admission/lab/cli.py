"""`worldline lab`: admission's rules and other controllers on a simulated fabric."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from worldline.cli import render
from worldline.cli.options import Subparsers, at_least_one
from worldline.cli.pictures import require_plots
from worldline.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from admission.lab.arrivals import Arrivals
    from admission.lab.fabric import Errors
    from admission.lab.sweep import Scenario

HELP = """\
Runs controllers on a simulated fabric and says what each lands in time, misses and rejects as offered load grows.
Nothing of a running fleet is touched.

The fabric. Four nodes on 100 Gb/s; a mover carries 73 Gb/s alone, the last one 54. A request names a session of
1.67 GB on a random node and has to be playable on another one 400 ms later; the controller picks which, and when.
Offered load 1 is what node-disjoint pairs carry back to back. Flows slow each other as the paper measured:
  into one receiver   two sources get 28 % of their rate each, three 11 % (Table 3; more: extrapolated)
  out of one sender   the line is shared fairly
  both ways           at a node that sends and receives, one direction keeps its rate, the other 10 to 20 %
--fabric hidden adds what no controller is told: each path's rate is up to 20 % off, and receivers freeze at random
for 2 * 4.096 us * 2^16 = 537 ms. A late move runs to its end and is in the way until then.

The arms.
  clairvoyant   knows every rate and freeze (not who will come), admits what is certain: the bound
  disjoint      the clairvoyant with one move a node at a time, as ours
  ours          the rules and estimators of the admission service, the very code, with its probes
  unlearning    the same rules on constants that were calibrated once, without margin
  paper         constants of once, one move a receiver, books ahead; a gap before its wires begin
  paper-tied    the same without the gap: a wire begins when the last one is over
  idiom-stale   the paper's controller with constants 30 % too small
  defer-reject  an operator's heuristic: idle nodes only, give up after a third of the horizon
  naive         calibrated on a pair: two moves a receiver
  accept-all    accepts all, begins at the rate that capacity allows, queues the rest
  overlap-all   begins all at once, checksums on the receive path, which trips freezes

Shares are of what was offered: on time + missed + rejected = 1. Arms of a seed see the same requests and the same
hidden truth. Means over seeds; in brackets the least and the most.
"""


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "lab",
        help="put admission's rules and other controllers through overload on a simulated fabric",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--fabric", choices=("fluid", "hidden"), default="hidden", help="fluid: no hidden errors (default hidden)")
    add("--layout", choices=("mesh", "cell"), default="mesh", help="cell: half the nodes only send, half only receive")
    add("--arms", type=_names, help="comma-separated (default: all)", metavar="ARM,...")
    add("--loads", type=_numbers, metavar="X,...", help="offered loads (default 0.5,1,1.4,2,3)")
    add("--seeds", type=at_least_one, default=3, help="how many (default 3)")
    add("--requests", type=at_least_one, default=200, help="requests a run (default 200)")
    add("--nodes", type=at_least_one, default=4, help="nodes of the fabric (default 4)")
    add("--arrivals", choices=("poisson", "bursts"), default="poisson", help="bursts: four at the same instant")
    add("--trace", type=Path, metavar="CSV", help="arrivals as recorded: a column TIMESTAMP; see docs/lab.md")
    add("--rate-error", type=float, metavar="SHARE", help="hidden error of rates (default 0.2 where hidden)")
    add("--freezes", type=float, metavar="PER_S", help="freezes of a receiver per second (default 0.05 where hidden)")
    add("--json", action="store_true", help="print JSON")
    add("--png", type=Path, metavar="FILE", help="plot into a PNG as well; needs the extra `plots`")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sweep and print it."""
    try:
        import simpy  # noqa: F401 - only the lab needs it
    except ImportError as error:
        raise Unsupported("the lab needs simpy: pip install 'worldline[lab]'", reason="LAB_NOT_INSTALLED") from error
    from admission.lab import show
    from admission.lab.arms import ARMS
    from admission.lab.sweep import LOADS, sweep

    if options.png:
        require_plots([options.png])
    arms = options.arms or list(ARMS)
    unknown = [name for name in arms if name not in ARMS]
    if unknown:
        raise BadRequest(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
    scenario, loads = _scenario(options), options.loads or LOADS
    with show.progress(len(arms) * len(loads) * options.seeds) as advance:
        cells = sweep(scenario, arms, loads, range(options.seeds), advance)
    if options.json:
        render.print_json(show.as_json(scenario, cells))
    else:
        show.print_table(cells)
    if options.png:
        show.plot(cells, options.png)
    return 0


def _scenario(options: argparse.Namespace) -> Scenario:
    from admission.lab.fabric import FabricSpec
    from admission.lab.sweep import Scenario

    senders = options.nodes // 2 if options.layout == "cell" else 0
    return Scenario(FabricSpec(options.nodes, senders), _errors(options), _arrivals(options), options.requests)


def _errors(options: argparse.Namespace) -> Errors:
    from admission.lab.fabric import FLUID, HIDDEN, Errors

    base = HIDDEN if options.fabric == "hidden" else FLUID
    rate = base.rate if options.rate_error is None else options.rate_error
    freezes_per_s = base.freezes_per_s if options.freezes is None else options.freezes
    return Errors(rate, min(base.jitter, rate), freezes_per_s)


def _arrivals(options: argparse.Namespace) -> Arrivals:
    from admission.lab import arrivals

    if options.trace:
        return arrivals.trace(arrivals.read_trace(options.trace))
    return arrivals.bursts if options.arrivals == "bursts" else arrivals.poisson


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from error
    if not all(0 < number <= 100 for number in found):
        raise argparse.ArgumentTypeError(f"{text!r}: offered loads lie above 0 and at most at 100")
    return found

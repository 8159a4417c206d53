"""`worldline inspect`: what the blocks of a session write, and what compresses, as table, JSON or picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from worldline import rpc
from worldline.cli import local, render
from worldline.cli.options import Subparsers, at_least_one
from worldline.cli.pictures import add_picture, require_plots
from worldline.client import Client
from worldline.errors import BadRequest
from worldline.instruments.pieces import Pieces, cut
from worldline.instruments.snapshot import Boundary, Coded, Subject
from worldline.instruments.wire import found_from
from worldline.v1 import engine_host_service_pb2 as pb

if TYPE_CHECKING:
    from worldline.instruments.inspection import Report

HELP = """\
Looks at the state of a live session, on whatever engine host it is, at the boundaries of the next blocks that its
player plays. The host takes a checksum of each piece of the state there, which holds the session up for a pass over it
(told in the report) and changes nothing. With --engine a session of its own is played here instead.

Exit status 1: a block has written a leaf that the engine declares cold.
"""


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "inspect",
        parents=[common],
        help="what the blocks of a session write, and what compresses",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("session", nargs="?", default="", metavar="SESSION", help="a live session")
    local.add_engine(command, required=False)
    add("--blocks", type=at_least_one, default=8, help="blocks to look at (default 8)")
    add("--piece-bytes", type=at_least_one, metavar="N", help="bytes of a piece (default: about 4,000 pieces)")
    add("--one-in", type=at_least_one, default=1, metavar="N", help="look at one in N pieces of each leaf (default 1)")
    add("--patience", type=float, default=300.0, metavar="S", help="seconds until all blocks are played (default 300)")
    add("--leaves", action="store_true", help="one row for each leaf, not for each class of leaves")
    add_picture(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Inspect, and show what was found."""
    if bool(options.session) == bool(options.engine):
        raise BadRequest("either SESSION, of a running fleet, or --engine and --preset, to play one here")
    if options.picture:
        require_plots(options.picture)
    # Only now: they need numpy.
    from worldline.cli import show_inspection
    from worldline.instruments import inspection

    found = _local(options) if options.engine else _live(options)
    if options.picture:
        from worldline.cli.draw_inspection import draw

        draw(found, options.picture)
    if options.json:
        render.print_json(inspection.as_dict(found))
    else:
        show_inspection.show(found, leaves=options.leaves)
    return 1 if found.written_cold else 0


def _live(options: argparse.Namespace) -> Report:
    with Client(options.target, tls=options.tls) as client:
        where = client.locate(options.session)
        request = pb.InspectSessionRequest(
            session_id=options.session,
            blocks=options.blocks,
            piece_bytes=options.piece_bytes or 0,
            one_in=options.one_in,
        )
        with client.host(where.public_address) as stub, rpc.calling(where.host_id):
            told = stub.InspectSession(request, timeout=options.patience)
            return _gather(options, (item for response in told for item in found_from(response)))


def _gather(options: argparse.Namespace, told: Iterator[Subject | Boundary | Coded]) -> Report:
    subject: Subject | None = None
    pieces: Pieces | None = None
    boundaries: list[Boundary] = []
    coded: list[Coded] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("blocks", total=options.blocks + 1)
        for item in told:
            if isinstance(item, Subject):
                subject = item
                pieces = cut(item.layout, item.piece_bytes, options.one_in)
            elif isinstance(item, Boundary):
                boundaries.append(item)
                bar.advance(task)
            else:
                coded.append(item)
    if subject is None or pieces is None or len(boundaries) < 2:
        raise BadRequest(f"the host answered {len(boundaries)} block boundaries; two are needed")
    from worldline.instruments.inspection import report

    return report(subject, pieces, boundaries, coded)


def _local(options: argparse.Namespace) -> Report:
    twin = local.twin(options)
    # Only now: it needs torch.
    from worldline.instruments.twin_inspection import inspect

    twin.play(local.WARM_UP_BLOCKS)
    return _gather(options, inspect(twin, options.blocks, options.piece_bytes or 0, options.one_in))

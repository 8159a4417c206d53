"""`worldline move`, `watch`, `evaluate`: ask for a move, follow it, or only ask whether it would be admitted."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.client import CLOSED_STATES, Client
from worldline.plan import ALL_CODECS, Placement
from worldline.v1 import move_pb2


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("session")
    asked.add_argument("destination", nargs="?", default="", help="engine host; default: admission picks")
    asked.add_argument("--patience", type=float, default=0.0, metavar="S", help="seconds you would wait on DEFER")
    asked.add_argument("--transport", default="", help="tcp, local, ...; default: admission picks")
    asked.add_argument("--codec", default="", choices=["", *ALL_CODECS], help="default: admission picks")
    asked.add_argument(
        "--placement",
        default="",
        choices=["", *Placement.__members__],
        help="of verification; default: admission picks",
    )
    move = commands.add_parser("move", parents=[common, asked], help="move a session and follow it")
    move.add_argument("--request-id", default="", help="UUID that makes asking twice safe")
    move.set_defaults(run=run_move)
    evaluate = commands.add_parser("evaluate", parents=[common, asked], help="the verdict on a move, without moving")
    evaluate.add_argument("--live", action="store_true", help="while the session plays on (evaluated, not executed)")
    evaluate.set_defaults(run=run_evaluate)
    watch = commands.add_parser("watch", parents=[common], help="follow a move")
    watch.add_argument("move")
    watch.set_defaults(run=run_watch)


def run_evaluate(options: argparse.Namespace) -> int:
    """Print the verdict; 0 if ADMIT."""
    with Client(options.target, tls=options.tls) as client:
        answer = client.evaluate(
            options.session,
            options.destination,
            live=options.live,
            patience_s=options.patience,
            transport=options.transport,
            codec=options.codec,
            placement=_placement(options),
        )
    if options.json:
        render.print_json(render.as_dict(answer))
    else:
        print(f"{options.session} -> {answer.destination_host_id}: " + "\n".join(render.verdict_lines(answer.verdict)))
    return 0 if answer.verdict.kind == move_pb2.VERDICT_KIND_ADMIT else 1


def run_move(options: argparse.Namespace) -> int:
    """Ask, follow, print; 0 if MOVED."""
    with Client(options.target, tls=options.tls) as client:
        move = client.request_move(
            options.session,
            options.destination,
            patience_s=options.patience,
            transport=options.transport,
            codec=options.codec,
            placement=_placement(options),
            request_id=options.request_id,
        )
        if not options.json:
            print("\n".join(render.verdict_lines(move.verdict)))
        if move.state not in CLOSED_STATES:
            follow(client.watch(move.move_id), quiet=options.json)
            move = client.get_move(move.move_id)
    return _closed(move, options)


def _placement(options: argparse.Namespace) -> Placement | None:
    return Placement[options.placement] if options.placement else None


def run_watch(options: argparse.Namespace) -> int:
    """Follow, print; 0 if MOVED."""
    with Client(options.target, tls=options.tls) as client:
        follow(client.watch(options.move), quiet=options.json)
        move = client.get_move(options.move)
    return _closed(move, options)


def _closed(move: move_pb2.Move, options: argparse.Namespace) -> int:
    if options.json:
        render.print_json(render.as_dict(move))
    elif move.state != move_pb2.MOVE_STATE_REFUSED:
        print("\n".join(render.move_lines(move)))
    return 0 if move.state == move_pb2.MOVE_STATE_MOVED else 1


def follow(moves: Iterable[move_pb2.Move], *, quiet: bool) -> None:
    """Show a move's stages and bytes until it is closed."""
    if quiet:
        for _ in moves:
            pass
        return
    progress = Progress(
        TextColumn("{task.fields[stage]:<14}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), transient=True
    )
    task = progress.add_task("move", total=None, stage="")
    with Live(progress, console=render.console(), transient=True):
        for move in moves:
            stage = render.state_name(move.state) if move.state != move_pb2.MOVE_STATE_OPEN else move.stage
            progress.update(
                task,
                completed=move.landed_bytes,
                total=move.total_bytes or None,
                stage=f"{stage} STALLED" if move.stalled else stage,
            )

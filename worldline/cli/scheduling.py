"""`worldline drain`, `undrain`, `plan`, `schedule`: several moves in rounds, tried out, begun, followed, cancelled."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from rich.live import Live
from rich.table import Table

from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.client import Client
from worldline.v1 import admission_service_pb2 as pb


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--dry-run", action="store_true", help="only show rounds and predicted finish")
    asked.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds a session that must wait is asked again before it counts as impossible (default 30)",
    )
    asked.add_argument("--request-id", default="", help="UUID that makes asking twice safe")
    drain = commands.add_parser(
        "drain", parents=[common, asked], help="move every session off an engine host, which then takes none"
    )
    drain.add_argument("host")
    drain.set_defaults(run=run_drain)
    undrain = commands.add_parser("undrain", parents=[common], help="let a drained engine host take sessions again")
    undrain.add_argument("host")
    undrain.set_defaults(run=run_undrain)
    plan = commands.add_parser("plan", parents=[common, asked], help="move several sessions in rounds")
    plan.add_argument("moves", nargs="+", metavar="SESSION[=HOST]", help="without a host admission picks one")
    plan.set_defaults(run=run_plan)
    schedule = commands.add_parser("schedule", parents=[common], help="follow a drain or a plan, or cancel it")
    schedule.add_argument("schedule")
    schedule.add_argument("--cancel", action="store_true", help="begin no more of its moves")
    schedule.set_defaults(run=run_schedule)


def run_drain(options: argparse.Namespace) -> int:
    """Drain and follow; 0 if the host is empty then, or would be."""
    with Client(options.target, tls=options.tls) as client:
        schedule = client.drain(
            options.host, dry_run=options.dry_run, patience_s=options.patience, request_id=options.request_id
        )
        return _follow(client, schedule, options)


def run_undrain(options: argparse.Namespace) -> int:
    """Undrain."""
    with Client(options.target, tls=options.tls) as client:
        cancelled = client.undrain(options.host)
    if options.json:
        render.print_json({"host_id": options.host, "schedule_id": cancelled})
    else:
        stopped = f"; its drain {cancelled} was cancelled" if cancelled else ""
        print(f"{options.host} takes sessions again{stopped}")
    return 0


def run_plan(options: argparse.Namespace) -> int:
    """Plan and follow; 0 if all moved, or would."""
    moves = [(session, host) for session, _, host in (item.partition("=") for item in options.moves)]
    with Client(options.target, tls=options.tls) as client:
        schedule = client.plan(
            moves, dry_run=options.dry_run, patience_s=options.patience, request_id=options.request_id
        )
        return _follow(client, schedule, options)


def run_schedule(options: argparse.Namespace) -> int:
    """Follow, or cancel first; 0 if all moved."""
    with Client(options.target, tls=options.tls) as client:
        schedule = client.cancel_schedule(options.schedule) if options.cancel else client.schedule(options.schedule)
        return _follow(client, schedule, options)


def _follow(client: Client, schedule: pb.Schedule, options: argparse.Namespace) -> int:
    """Show a schedule until it is closed; a dry run as it is."""
    if schedule.state == pb.SCHEDULE_STATE_RUNNING:
        with nullcontext() if options.json else Live(console=render.console(), transient=True) as live:
            for now in client.watch_schedule(schedule.schedule_id):
                schedule = now
                if live is not None:
                    live.update(table(now))
    if options.json:
        render.print_json(render.as_dict(schedule))
    else:
        render.console().print(table(schedule))
        print("\n".join(summary(schedule)))
    return 1 if any(step.state == pb.STEP_STATE_FAILED for step in schedule.steps) else 0


def table(schedule: pb.Schedule) -> Table:
    """The steps by round."""
    rows = [
        (
            str(step.round + 1) if step.state != pb.STEP_STATE_FAILED or step.move_id else "-",
            step.session_id,
            f"{step.source_host_id or '?'} -> {step.destination_host_id or '?'}",
            pb.StepState.Name(step.state).removeprefix("STEP_STATE_"),
            f"{step.predicted_s:.3f} s" if step.predicted_s else "",
            step.move_id,
            step.reason,
        )
        for step in schedule.steps
    ]
    columns = ("round", "session", "from -> to", "state", "predicted", "move", "reason")
    return render.table("", columns, rows)


def summary(schedule: pb.Schedule) -> list[str]:
    """What became of it, and why of each session that could not be moved."""
    count = {state: sum(step.state == state for step in schedule.steps) for state in pb.StepState.values()}
    what = f"drain of {schedule.host_id}" if schedule.host_id else "plan"
    predicted = f"{schedule.rounds} rounds, {schedule.predicted_s:.3f} s predicted"
    failed = [
        f"  {step.session_id} stays on {step.source_host_id or '?'}: {step.reason}: {step.message}"
        for step in schedule.steps
        if step.state == pb.STEP_STATE_FAILED
    ]
    if not schedule.schedule_id:
        return [f"{what}: would take {predicted}; {count[pb.STEP_STATE_FAILED]} cannot be moved", *failed]
    took = f", took {schedule.closed_at_s - schedule.created_at_s:.3f} s" if schedule.closed_at_s else ""
    state = pb.ScheduleState.Name(schedule.state).removeprefix("SCHEDULE_STATE_")
    return [
        f"{what} {schedule.schedule_id}: {state}; {count[pb.STEP_STATE_MOVED]} moved, "
        f"{count[pb.STEP_STATE_GONE]} left by themselves, {count[pb.STEP_STATE_FAILED]} not moved; {predicted}{took}",
        *failed,
    ]

"""`worldline sessions`, `hosts`, `moves`, `locate`, `fence`: what the fleet is and has done."""

from __future__ import annotations

import argparse
import itertools
import time

from worldline.cli import render
from worldline.cli.options import Subparsers, at_least_one
from worldline.client import Client
from worldline.v1 import admission_service_pb2 as pb


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands.add_parser("hosts", parents=[common], help="list engine hosts").set_defaults(run=hosts)
    commands.add_parser("sessions", parents=[common], help="list sessions").set_defaults(run=sessions)
    listed = commands.add_parser("moves", parents=[common], help="list moves, newest first")
    listed.add_argument("--session", default="", help="only this session's")
    listed.add_argument("--limit", type=at_least_one, default=20, help="at most this many (default 20)")
    listed.set_defaults(run=moves)
    where = commands.add_parser("locate", parents=[common], help="where a session lives")
    where.add_argument("session")
    where.set_defaults(run=locate)
    fence = commands.add_parser("fence", parents=[common], help="declare an incarnation of an engine host dead")
    fence.add_argument("host")
    fence.add_argument("--incarnation", type=int, help="default: the one admission knows")
    fence.add_argument("--reason", required=True, help="who says so and why; kept in the journal")
    fence.add_argument("--yes", action="store_true", help="you have made sure that it cannot play again")
    fence.set_defaults(run=fence_host)


def hosts(options: argparse.Namespace) -> int:
    """List engine hosts."""
    with Client(options.target, tls=options.tls) as client:
        found = client.hosts()
    if options.json:
        render.print_json([render.as_dict(host) for host in found])
        return 0
    rows = [
        (
            host.registration.host_id,
            str(host.registration.incarnation),
            host.registration.public_address,
            host.registration.mover_id,
            f"{render.human_bytes(host.status.free_bytes)} of {render.human_bytes(host.registration.budget_bytes)}",
            render.human_bytes(host.status.warm_bytes),
            str(len(host.status.sessions)),
            _host_state(host),
        )
        for host in found
    ]
    render.console().print(
        render.table("", ("host", "incarnation", "address", "mover", "free", "warm", "sessions", "state"), rows)
    )
    return 0


def _host_state(host: pb.EngineHostInfo) -> str:
    if host.fenced:
        return "fenced"
    if host.status.draining:
        return "draining"
    return "ready" if host.ready else f"silent {host.silent_s:.1f} s"


def sessions(options: argparse.Namespace) -> int:
    """List sessions, by host."""
    with Client(options.target, tls=options.tls) as client:
        found = [(host.registration.host_id, info) for host in client.hosts() for info in host.status.sessions]
    if options.json:
        render.print_json([{"host_id": host_id, **render.as_dict(info)} for host_id, info in found])
        return 0
    rows = [
        (
            info.descriptor.session_id,
            host_id,
            render.session_state(info.state),
            str(info.epoch),
            str(info.next_block),
            render.human_bytes(info.state_bytes),
            f"{info.block_s * 1e3:.1f} ms",
            f"{render.class_name(info.descriptor.contract.contract_class)} H {info.descriptor.contract.horizon_s:g} s",
        )
        for host_id, info in found
    ]
    columns = ("session", "host", "state", "epoch", "next block", "state size", "block", "contract")
    render.console().print(render.table("", columns, rows))
    return 0


def moves(options: argparse.Namespace) -> int:
    """List moves."""
    with Client(options.target, tls=options.tls) as client:
        found = list(itertools.islice(client.moves(options.session), options.limit))
    if options.json:
        render.print_json([render.as_dict(move) for move in found])
        return 0
    rows = [
        (
            move.move_id,
            move.session_id,
            f"{move.source_host_id} -> {move.destination_host_id}",
            render.state_name(move.state) + (" STALLED" if move.stalled else ""),
            render.verdict_name(move.verdict.kind),
            move.reason,
            time.strftime("%H:%M:%S", time.localtime(move.requested_at_s)),
            render.wire_gap(move),
        )
        for move in found
    ]
    render.console().print(
        render.table("", ("move", "session", "from -> to", "state", "verdict", "reason", "asked", "to wire"), rows)
    )
    return 0


def locate(options: argparse.Namespace) -> int:
    """Where a session lives."""
    with Client(options.target, tls=options.tls) as client:
        where = client.locate(options.session)
    if options.json:
        render.print_json(render.as_dict(where))
    else:
        moving = f", in move {where.move_id}" if where.move_id else ""
        reach = "" if where.reachable else ", which has not been heard from lately"
        print(f"{where.session_id} is on {where.host_id} ({where.public_address}), epoch {where.epoch}{moving}{reach}")
    return 0


def fence_host(options: argparse.Namespace) -> int:
    """Declare an incarnation dead."""
    with Client(options.target, tls=options.tls) as client:
        incarnation = options.incarnation
        if incarnation is None:
            known = {host.registration.host_id: host.registration.incarnation for host in client.hosts()}
            if options.host not in known:
                print(f"admission knows no engine host {options.host}; it knows {', '.join(sorted(known)) or 'none'}")
                return 1
            incarnation = known[options.host]
        if not options.yes:
            print(
                f"This declares incarnation {incarnation} of {options.host} dead: sessions that live only there are "
                "lost, and moves go on without it. Make sure that the process cannot run again, then add --yes."
            )
            return 1
        fenced = client.fence(options.host, incarnation, options.reason)
    if options.json:
        render.print_json(render.as_dict(fenced))
    else:
        print(
            f"fenced {options.host}, incarnation {incarnation}: {len(fenced.move_ids)} moves go on, "
            f"{len(fenced.lost_session_ids)} sessions lost"
        )
    return 0

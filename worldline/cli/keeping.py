"""`worldline suspend`, `resume`, `prewarm`: what an engine host keeps in its slots, in host memory and ready ahead."""

from __future__ import annotations

import argparse

from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.client import Client
from worldline.errors import BadRequest


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    suspend = commands.add_parser("suspend", parents=[common], help="take a session's state to host memory")
    suspend.add_argument("session")
    suspend.set_defaults(run=run_suspend)
    resume = commands.add_parser("resume", parents=[common], help="bring a suspended session back into a slot")
    resume.add_argument("session")
    resume.set_defaults(run=run_resume)
    prewarm = commands.add_parser("prewarm", parents=[common], help="make a preset warm on an engine host")
    prewarm.add_argument("host")
    prewarm.add_argument("preset", metavar="ENGINE/PRESET")
    prewarm.add_argument("--slots", type=int, default=0, help="slots to keep allocated ahead for it (default 0)")
    prewarm.set_defaults(run=run_prewarm)


def run_suspend(options: argparse.Namespace) -> int:
    """Suspend; the player's stream, if one is open, ends."""
    with Client(options.target, tls=options.tls) as client:
        answer = client.suspend(options.session)
    if options.json:
        render.print_json(render.as_dict(answer))
    else:
        freed = render.human_bytes(answer.freed_bytes)
        print(f"{options.session} is suspended: {freed} of slots freed, copied in {answer.copy_s * 1e3:.1f} ms")
    return 0


def run_resume(options: argparse.Namespace) -> int:
    """Resume."""
    with Client(options.target, tls=options.tls) as client:
        answer = client.resume(options.session)
    if options.json:
        render.print_json(render.as_dict(answer))
    else:
        copied, loaded = answer.copy_s * 1e3, answer.load_s * 1e3
        print(f"{options.session} is live: copied back in {copied:.1f} ms, rehydrated in {loaded:.1f} ms")
    return 0


def run_prewarm(options: argparse.Namespace) -> int:
    """Make warm; 1 if fewer slots than asked for fit into the host's budget."""
    engine, slash, preset = options.preset.partition("/")
    if not (engine and slash and preset):
        raise BadRequest(f"{options.preset[:64]!r} is not engine/preset", violations={"preset": "engine/preset"})
    if options.slots < 0:
        raise BadRequest(f"{options.slots} slots; 0 or more are needed", violations={"slots": "0 or more"})
    with Client(options.target, tls=options.tls) as client:
        answer = client.prewarm(options.host, engine, preset, options.slots)
    if options.json:
        render.print_json(render.as_dict(answer))
    else:
        seconds = f"weights {answer.load_s:.3f} s, slot {answer.slot_s:.3f} s, first block {answer.first_block_s:.3f} s"
        ahead = f"{answer.slots} slots allocated ahead ({render.human_bytes(answer.warm_bytes)} in all)"
        print(f"{options.preset} is warm on {options.host}: {seconds}; {ahead}")
    return 0 if answer.slots >= options.slots else 1

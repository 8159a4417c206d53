"""`worldline dev`: a whole fleet on this machine."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import tempfile
from pathlib import Path

from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.fleet import Fleet


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser("dev", help="start a fleet of two nodes on this machine, until Ctrl-C")
    command.add_argument("--port", type=int, default=7400, help="admission's port (default 7400)")
    command.add_argument("--directory", type=Path, help="journal, sockets and logs (default: a new temporary one)")
    command.add_argument("--fault-injection", action="store_true", help="accept faults in requests")
    command.add_argument("--otlp", default="", metavar="HOST:PORT", help="send traces to this OTLP/gRPC receiver")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start, print where things are, wait."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="worldline-"))
    # A queue, since the handler may run inside of the wait itself, whose lock it must not take.
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.put(None))
    out = render.console()
    with Fleet(
        directory, port=options.port, fault_injection=options.fault_injection, otlp_endpoint=options.otlp
    ) as fleet:
        rows = [(name, member.address, str(member.pid), str(member.log)) for name, member in fleet.members.items()]
        out.print(render.table("", ("process", "address", "pid", "log"), rows))
        out.print(f"\nready: worldline hosts --target {fleet.target}")
        while not _came(asked, 0.5):
            ended = [name for name, member in fleet.members.items() if not member.running]
            if ended:
                out.print(f"{', '.join(ended)} ended; stopping. Logs are in {os.fspath(directory)}")
                return 1
    return 0


def _came(asked: queue.SimpleQueue[None], timeout_s: float) -> bool:
    try:
        asked.get(timeout=timeout_s)
    except queue.Empty:
        return False
    return True

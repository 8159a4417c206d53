"""`worldline demo`: plays a session, moves it while it plays, and shows that nothing changed.

Beside it the same session is played and never moved; every block of the two is compared. Last comes a control: a move
whose copy is damaged on its way must be refused, and the source must play on.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from worldline import rpc
from worldline.cli import render
from worldline.cli.options import Subparsers, add_output_and_tls
from worldline.client import Block, Client, Play
from worldline.errors import Precondition
from worldline.fleet import Fleet
from worldline.move import Fault, FaultKind
from worldline.v1 import move_pb2

# A player who has to wait this long for one block has met a bug, not a move.
PATIENCE_S = 120.0


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser("demo", help="play a session, move it while it plays, compare every block")
    command.add_argument("--target", default="", help="admission, host:port; default: a fleet of its own")
    add_output_and_tls(command)
    command.add_argument("--engine", default="window-rewrite")
    command.add_argument("--preset", default="tiny")
    command.add_argument("--blocks", type=int, default=40, help="blocks to play (default 40)")
    command.add_argument("--moves", type=int, default=2, help="moves to make (default 2)")
    command.add_argument("--seed", type=int, default=7)
    command.set_defaults(run=run)


@dataclass
class Result:
    """What the demo found."""

    blocks_played: int = 0
    blocks_equal: int = 0
    moves: list[move_pb2.Move] = field(default_factory=list)
    control: dict[str, str | bool] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """All blocks equal, all moves made, all receipts equal, the control refused and the source playing on."""
        return (
            self.blocks_played > 0
            and self.blocks_equal == self.blocks_played
            and all(m.state == move_pb2.MOVE_STATE_MOVED and render.receipts_equal(m) for m in self.moves)
            and self.control.get("installed") is False
            and self.control.get("source_plays_on") is True
        )

    def as_dict(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "blocks_played": self.blocks_played,
            "blocks_equal": self.blocks_equal,
            "moves": [
                {
                    "verdict": render.verdict_name(move.verdict.kind),
                    "state": render.state_name(move.state),
                    "bytes": move.total_bytes,
                    "stages_s": render.stages(move),
                    "downtime_s": round(move.stages.downtime_s, 6),
                    "receipts_equal": render.receipts_equal(move),
                }
                for move in self.moves
            ],
            "corrupted_control": self.control,
        }


def run(options: argparse.Namespace) -> int:
    """Run it; 0 only if nothing differed and the damaged copy was refused."""
    out = Console(quiet=options.json, highlight=False, soft_wrap=True)
    result = Result()
    with _client(options.target, options.tls, out) as client:
        _play(client, options, result, out)
        if client.fault_injection():
            _control(client, options, result, out)
    if not result.control:
        out.print(f"\n{options.target} runs without fault injection: the control runs on a fleet of its own")
        with _client("", None, out) as client:
            _control(client, options, result, out)
    if options.json:
        render.print_json(result.as_dict())
    out.print(
        f"\n{result.blocks_equal} of {result.blocks_played} blocks equal to the session that was never moved; "
        + ("all is well." if result.good else "THIS IS WRONG.")
    )
    return 0 if result.good else 1


@contextlib.contextmanager
def _client(target: str, tls: rpc.Tls | None, out: Console) -> Iterator[Client]:
    if target:
        with Client(target, tls=tls) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="worldline-demo-") as directory:
        out.print("starting a fleet: admission, two movers, two engine hosts")
        with Fleet(Path(directory), fault_injection=True) as fleet, Client(fleet.target) as client:
            yield client


def _action(block: int, size: int) -> bytes:
    """Some keys, different for each block."""
    return bytes((block * 31 + at * 7) % 3 for at in range(size or 8))


def _other_host(client: Client, host_id: str) -> str:
    ready = sorted(host.registration.host_id for host in client.hosts() if host.ready)
    others = [name for name in ready if name != host_id]
    if not others:
        raise Precondition(
            f"the fleet has no ready engine host beside {host_id}; start a second one", reason="ONE_HOST_ONLY"
        )
    return others[0]


def _play(client: Client, options: argparse.Namespace, result: Result, out: Console) -> None:
    moved = client.place(options.engine, options.preset, options.seed)
    twin = client.place(options.engine, options.preset, options.seed)
    out.print(f"session {moved.session_id} will move; {twin.session_id}, made from the same seed, never will\n")
    at = {(number + 1) * options.blocks // (options.moves + 1) for number in range(options.moves)}
    with (
        client.play(moved, with_state_crc=True, patience_s=PATIENCE_S) as play,
        client.play(twin, with_state_crc=True, patience_s=PATIENCE_S) as reference,
        ThreadPoolExecutor(1) as background,
    ):
        running: Future[move_pb2.Move] | None = None
        last: tuple[Block, Block] | None = None
        done = 0
        # Play on until the blocks are played and the last move is over: a move happens while the session plays.
        while result.blocks_played < options.blocks or running is not None:
            if running is not None and running.done():
                result.moves.append(running.result())
                out.print("\n".join(render.move_lines(result.moves[-1])), style="bold")
                running = None
            if running is None and done < options.moves and result.blocks_played >= sorted(at)[done]:
                destination = _other_host(client, play.host_id)
                running = background.submit(client.move, moved.session_id, destination, timeout_s=PATIENCE_S)
                done += 1
            last = _step(play, reference, result, out)
        if last is not None and out.is_terminal:
            pictures = Table.grid(padding=(0, 4))
            pictures.add_row(f"moved, now on {play.host_id}", "never moved")
            pictures.add_row(*(render.picture(block) for block in last))
            out.print("\nlast frame", pictures)
    for session in (moved, twin):
        client.close_session(session)


def _step(play: Play, reference: Play, result: Result, out: Console) -> tuple[Block, Block]:
    action = _action(play.next_block, play.action_bytes)
    ours, theirs = play.step(action), reference.step(action)
    same = (ours.index, ours.readout, ours.state_crc) == (theirs.index, theirs.readout, theirs.state_crc)
    result.blocks_played += 1
    result.blocks_equal += same
    out.print(
        f"block {ours.index:3}  {ours.host_id} epoch {ours.epoch}  frames {ours.readout_crc:08x} "
        f"state {ours.state_crc or 0:08x}  {'=' if same else 'DIFFERS FROM'}  {theirs.host_id} "
        f"frames {theirs.readout_crc:08x} state {theirs.state_crc or 0:08x}"
    )
    return ours, theirs


def _control(client: Client, options: argparse.Namespace, result: Result, out: Console) -> None:
    """A move whose first chunk is damaged each time it is sent."""
    out.print("\ncontrol: one bit of the copy is flipped on its way, on the retry too")
    session = client.place(options.engine, options.preset, options.seed)
    twin = client.place(options.engine, options.preset, options.seed)
    with (
        client.play(session, with_state_crc=True, patience_s=PATIENCE_S) as play,
        client.play(twin, with_state_crc=True, patience_s=PATIENCE_S) as reference,
    ):
        check = Result()
        _step(play, reference, check, out)
        home, epoch = play.host_id, play.epoch
        asked = client.request_move(
            session.session_id,
            _other_host(client, home),
            faults=[Fault(FaultKind.FLIP, chunk=0, times=0)],
        )
        move = client.wait(asked.move_id, timeout_s=PATIENCE_S)
        out.print("\n".join(render.move_lines(move)))
        _step(play, reference, check, out)
        result.control = {
            "installed": move.state == move_pb2.MOVE_STATE_MOVED or play.host_id != home or play.epoch != epoch,
            "reason": move.reason,
            "source_plays_on": check.blocks_played == check.blocks_equal == 2 and play.host_id == home,
        }
    for each in (session, twin):
        client.close_session(each)

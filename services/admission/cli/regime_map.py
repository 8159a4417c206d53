"""`worldline map`: the regime map with your own sessions on it, as table, JSON, PNG or SVG."""

from __future__ import annotations

import argparse
from pathlib import Path

from admission.cli import units
from admission.cli.regimes import Point, Regime
from admission.cli.sheet import gigabits
from admission.rules import paper
from worldline.cli import render
from worldline.cli.options import Subparsers
from worldline.cli.pictures import require_plots
from worldline.client import Client
from worldline.errors import WorldlineError
from worldline.v1 import admission_service_pb2 as pb
from worldline.v1 import engine_host_service_pb2 as host_pb

HELP = """\
Places sessions by their dirty rate D and the bandwidth B of their path. Left of the gate B = S/H + D a live move misses
the horizon H, left of S/H a frozen one too; above the phase line D = B pre-copy does not converge. Each session has a
gate of its own; the map draws that of --state and --horizon.

Sessions come from the running fleet (--fleet, admission at --target), each with the B that admission believes of its
best destination, or from the command line (--session). Without either, the paper's own objects are shown.
"""
_FABRIC_Bps = 100 * paper.GIGABIT_Bps
# Objects of Figure 2, all of the state of Matrix-Game 2.
PAPER = (
    Point("MG2 at 0.78 Hz", paper.MG2_STATE_BYTES, paper.MG2_DIRTY_Bps, paper.MG2_HORIZON_S, _FABRIC_Bps),
    Point("MG2 at 10 Hz", paper.MG2_STATE_BYTES, paper.MG2_DIRTY_10HZ_Bps, paper.MG2_HORIZON_S, _FABRIC_Bps),
    Point("append-only", paper.MG2_STATE_BYTES, 0.0, paper.MG2_HORIZON_S, _FABRIC_Bps),
)
_OWNING = frozenset({host_pb.SESSION_STATE_LIVE, host_pb.SESSION_STATE_FROZEN, host_pb.SESSION_STATE_SUSPENDED})


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "map",
        parents=[common],
        help="where sessions stand between dirty rate and bandwidth",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--fleet", action="store_true", help="the sessions of the running fleet")
    add(
        "--session", type=_session, action="append", default=[], metavar="[NAME=]S,D,H", help="one of yours, repeatable"
    )
    add("--fabric", type=units.amount, default=100.0, metavar="Gb/s", help="B of --session, in Gb/s (default 100)")
    add("--state", type=units.amount, default=float(paper.MG2_STATE_BYTES), metavar="bytes", help="S of the drawn gate")
    add("--horizon", type=units.amount, default=paper.MG2_HORIZON_S, metavar="s", help="H of the drawn gate")
    for form in ("png", "svg"):
        add(f"--{form}", type=Path, metavar="FILE", help=f"draw into this {form.upper()} file; needs the extra `plots`")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the map, and draw it where asked."""
    pictures = [path for path in (options.png, options.svg) if path is not None]
    if pictures:
        require_plots(pictures)
    bandwidth_Bps = options.fabric * paper.GIGABIT_Bps
    points = [Point(name, state, dirty, horizon, bandwidth_Bps) for name, state, dirty, horizon in options.session]
    if options.fleet:
        with Client(options.target, tls=options.tls) as client:
            points += fleet_points(client)
    elif not points:
        points = list(PAPER)
    gate = Point("gate", options.state, 0.0, options.horizon, None)
    if pictures:
        from admission.cli.drawing import draw

        draw(gate, points, pictures)
    if options.json:
        render.print_json({"gate": _as_dict(gate), "sessions": [_as_dict(point) for point in points]})
    else:
        _print(gate, points)
    return 0


def fleet_points(client: Client) -> list[Point]:
    """The sessions of a running fleet. B is what admission believes of the path to the best destination."""
    return [
        _fleet_point(client, host, info)
        for host in client.hosts()
        for info in host.status.sessions
        if info.state in _OWNING
    ]


def _fleet_point(client: Client, host: pb.EngineHostInfo, info: host_pb.SessionInfo) -> Point:
    descriptor = info.descriptor
    dirty_Bps = info.dirty_bytes_per_block / info.block_s if info.block_s > 0 else None
    bandwidth_Bps, note = None, f"on {host.registration.host_id}"
    try:
        answer = client.evaluate(descriptor.session_id)
        numbers = {clause.name: clause.numbers for clause in answer.verdict.clauses}
        bandwidth_Bps = numbers["deadline_gate"]["bandwidth_Bps"]
        note += f", to {answer.destination_host_id}: {render.verdict_name(answer.verdict.kind)}"
    except WorldlineError as error:
        note += f": {error.reason}"
    return Point(descriptor.session_id, info.state_bytes, dirty_Bps, descriptor.contract.horizon_s, bandwidth_Bps, note)


def _session(text: str) -> tuple[str, float, float, float]:
    """[NAME=]S,D,H."""
    name, _, numbers = text.rpartition("=")
    parts = numbers.split(",")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not S,D,H: bytes, bytes/s and seconds, such as 1.67G,0.93G,0.4")
    state, dirty, horizon = units.amount(parts[0]), units.not_negative(parts[1]), units.not_negative(parts[2])
    return name or numbers, state, dirty, horizon


def _print(gate: Point, points: list[Point]) -> None:
    out = render.console()
    rows = [
        (
            point.name,
            render.human_bytes(round(point.state_bytes)),
            _rate(point.dirty_rate_Bps),
            f"{point.horizon_s:g} s" if point.horizon_s else "none",
            _rate(point.bandwidth_Bps),
            _rate(point.frozen_gate_Bps),
            _rate(point.live_gate_Bps),
            point.regime.value if point.regime else "not known",
            {True: "converges", False: "diverges", None: "not known"}[point.converges],
            point.note,
        )
        for point in points
    ]
    columns = ("session", "S", "D Gb/s", "H", "B Gb/s", "S/H", "S/H + D", "moves", "pre-copy", "")
    out.print(render.table("", columns, rows))
    out.print(
        f"\ngate of S {render.human_bytes(round(gate.state_bytes))}, H {gate.horizon_s:g} s: B = "
        f"{gigabits(gate.frozen_gate_Bps):.1f} Gb/s + D; phase line: D = B"
    )
    for regime in Regime:
        out.print(f"  {regime.value}: {regime.meaning}")


def _rate(rate_Bps: float | None) -> str:
    return "not known" if rate_Bps is None else f"{gigabits(rate_Bps):.3g}"


def _as_dict(point: Point) -> dict[str, object]:
    return {
        "name": point.name,
        "state_bytes": point.state_bytes,
        "dirty_rate_Bps": point.dirty_rate_Bps,
        "horizon_s": point.horizon_s,
        "bandwidth_Bps": point.bandwidth_Bps,
        "frozen_gate_Bps": point.frozen_gate_Bps,
        "live_gate_Bps": point.live_gate_Bps,
        "regime": point.regime.name if point.regime else None,
        "precopy_converges": point.converges,
        "note": point.note,
    }

"""`worldline decide`: the verdict for each fabric and horizon, before anything is bought (paper §6.5)."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

from admission.cli import units
from admission.cli.sheet import Sheet, gigabits
from admission.rules import Choice, Codec, Mode, choose, paper
from worldline.cli import render
from worldline.cli.options import Subparsers, at_least_one
from worldline.contract import ContractClass, Tier
from worldline.plan import Placement
from worldline.verdict import Kind

FABRICS_GBPS = (10.0, 25.0, 40.0, 100.0, 200.0, 400.0, 800.0)
HORIZONS_S = (0.1, 0.2, 0.4, 0.6, 1.0)
_MODES = {"frozen": (Mode.FROZEN,), "live": (Mode.LIVE,), "any": (Mode.FROZEN, Mode.LIVE)}
_ANS = Codec("ans", paper.CODEC_RATIO, paper.CODEC_ENCODE_Bps, paper.CODEC_DECODE_Bps)
HELP = """\
Asks admission's rules for each fabric and horizon: ADMIT with the predicted seconds and the plan, or REJECT with the
reason of each clause that fails. Nothing of a running fleet is asked.

What is not given is the paper's: a session of Matrix-Game 2 (S 1.67 GB, D 0.93 GB/s), its native mover (18.8 ms a
move) and its 32-thread checksum engine (52.6 GB/s). Your own numbers are in `worldline evaluate SESSION --json`.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fabric (Gb/s) and horizon (s), and what the rules chose there."""

    fabric_gbps: float
    horizon_s: float
    choice: Choice


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "decide",
        help="which fabrics would carry a session within which horizon, and why not",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--state", type=units.amount, default=float(paper.MG2_STATE_BYTES), metavar="bytes", help="S, for instance 32G")
    add("--dirty", type=units.not_negative, default=paper.MG2_DIRTY_Bps, metavar="B/s", help="D, for instance 0.93G")
    add(
        "--class",
        dest="contract_class",
        choices=[item.name for item in ContractClass],
        default="C1",
        help="contract class",
    )
    add("--tier", choices=[item.name for item in Tier], default="T0", help="determinism tier")
    add("--fabrics", type=units.amounts, default=FABRICS_GBPS, metavar="Gb/s,...", help="rows")
    add(
        "--horizons",
        type=units.amounts,
        default=HORIZONS_S,
        metavar="s,...",
        help="columns: H, or the longest freeze of a class without deadline",
    )
    add("--mode", choices=_MODES, default="frozen", help="any: whichever admits")
    setup = command.add_mutually_exclusive_group()
    setup.add_argument("--idiom", choices=paper.IDIOMS, default="native", help="a mover of the paper, for its setup")
    setup.add_argument("--setup", type=units.not_negative, metavar="s", help="fixed seconds of a move, as you measured")
    add(
        "--crc",
        type=units.not_negative,
        default=paper.CRC_Bps,
        metavar="B/s",
        help="checksums of the receiver; 0: not charged",
    )
    add("--chunk", type=units.amount, default=float(4 << 20), metavar="bytes", help="largest chunk")
    add("--placement", choices=[item.name for item in Placement], help="pin where verification runs")
    add("--codec", type=_codec, metavar="ans|R,ENC,DEC", help="offer a codec: the paper's, or its ratio and two rates")
    add("--fan-in", type=at_least_one, default=1, metavar="K", help="moves into one receiver at a time (default 1)")
    add("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the grid."""
    sheet = Sheet(
        state_bytes=round(options.state),
        dirty_rate_Bps=options.dirty,
        contract_class=ContractClass[options.contract_class],
        tier=Tier[options.tier],
        setup_s=paper.IDIOMS[options.idiom].setup_s if options.setup is None else options.setup,
        modes=_MODES[options.mode],
        crc_Bps=options.crc or None,
        chunk_bytes=round(options.chunk),
        placement=Placement[options.placement] if options.placement else None,
        codec=options.codec,
        others=options.fan_in - 1,
    )
    cells = grid(sheet, options.fabrics, options.horizons)
    if options.json:
        render.print_json([_as_dict(cell) for cell in cells])
        return 0
    head = (
        f"S {render.human_bytes(sheet.state_bytes)}, D {sheet.dirty_rate_Bps / 1e9:.3g} GB/s, {options.contract_class}"
    )
    columns = ("fabric", *(f"H {horizon_s:g} s" for horizon_s in options.horizons))
    by_fabric: dict[float, list[str]] = {}
    for cell in cells:
        by_fabric.setdefault(cell.fabric_gbps, []).append(_text(cell.choice))
    rows = [(f"{fabric:g} Gb/s", *texts) for fabric, texts in by_fabric.items()]
    out = render.console()
    out.print(f"{head}, {options.mode}, {sheet.setup_s * 1e3:.3g} ms setup\n")
    out.print(render.table("", columns, rows))
    return 0


def grid(sheet: Sheet, fabrics_gbps: tuple[float, ...], horizons_s: tuple[float, ...]) -> list[Cell]:
    """Every fabric with every horizon. Raises BadRequest."""
    return [
        Cell(fabric, horizon_s, choose(sheet.question(fabric * paper.GIGABIT_Bps, horizon_s)))
        for fabric in fabrics_gbps
        for horizon_s in horizons_s
    ]


def _text(choice: Choice) -> str:
    """A cell: verdict, seconds, and the plan or the reasons."""
    predicted = f"{choice.stages.total_s * 1e3:.0f} ms" if choice.stages.total_s < 100 else "never"
    if choice.verdict.kind is not Kind.ADMIT:
        reasons = ", ".join(dict.fromkeys(clause.reason for clause in choice.verdict.failed))
        return f"{choice.verdict.kind.name} {predicted}\n{reasons}"
    codec = choice.codec.name if choice.codec else "raw"
    return f"ADMIT {predicted}\n{choice.mode.name.lower()} {codec} {choice.placement.name.lower()}"


def _as_dict(cell: Cell) -> dict[str, object]:
    choice = cell.choice
    return {
        "fabric_gbps": cell.fabric_gbps,
        "horizon_s": cell.horizon_s,
        "verdict": choice.verdict.kind.name,
        "reasons": [clause.reason for clause in choice.verdict.failed],
        "predicted_s": _finite(choice.stages.total_s),
        "margin_s": _finite(choice.margin_s),
        "mode": choice.mode.name,
        "placement": choice.placement.name,
        "codec": choice.codec.name if choice.codec else "raw",
        "chunk_bytes": choice.chunk_bytes,
        "tail_bytes": list(choice.tail_bytes),
        "stages": {name: _finite(seconds) for name, seconds in asdict(choice.stages).items()},
        "clauses": [
            {"name": clause.name, "verdict": clause.verdict.name, "arithmetic": clause.arithmetic}
            for clause in choice.verdict.clauses
        ],
        "bandwidth_needed_gbps": gigabits(_number_of(choice, "flux", "bandwidth_min_Bps")),
    }


def _number_of(choice: Choice, clause_name: str, number: str) -> float:
    return next(clause.numbers[number] for clause in choice.verdict.clauses if clause.name == clause_name)


def _finite(seconds: float) -> float | None:
    """JSON has no infinity: None is a move that never ends."""
    return seconds if abs(seconds) < float("inf") else None


def _codec(text: str) -> Codec:
    if text == _ANS.name:
        return _ANS
    parts = [units.amount(part) for part in text.split(",")]
    if len(parts) != 3 or parts[0] > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'ans' nor a ratio up to 1 and two rates: 0.6,1G,2G")
    ratio, encode_Bps, decode_Bps = parts
    return Codec("codec", ratio, encode_Bps, decode_Bps)

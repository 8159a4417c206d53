"""`worldline prove-cold`: whether the leaves that an engine declares cold are neither written nor read. Needs torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from worldline.cli import render
from worldline.cli.options import Subparsers, add_output_and_tls, at_least_one
from worldline.engine import installed
from worldline.errors import NotFound

if TYPE_CHECKING:
    from worldline.instruments.cold import ColdProof


def run(options: argparse.Namespace) -> int:
    """Play the proof on this machine's CPU. Status 1: not proven, or nothing to prove."""
    from worldline.instruments.cold import prove_cold  # only here: the command line needs no torch

    engines = installed()
    if options.engine not in engines:
        raise NotFound(f"there is no engine {options.engine[:64]!r} here; installed are {', '.join(sorted(engines))}")
    proof = prove_cold(engines[options.engine], options.preset, blocks=options.blocks, seed=options.seed)
    proven = bool(proof.cold) and not proof.faults
    if options.json:
        constants = {path: fill.hex() for path, fill in proof.constants.items()}
        print(json.dumps({**asdict(proof), "constants": constants, "proven": proven}))
    else:
        _print(proof)
    return 0 if proven else 1


def _print(proof: ColdProof) -> None:
    name = f"{proof.engine}/{proof.preset} (version {proof.engine_version})"
    if not proof.cold and not proof.faults:
        print(f"{name} declares no cold leaves")
        return
    share = proof.cold_bytes / proof.state_bytes
    cold = render.human_bytes(proof.cold_bytes)
    print(f"{name}: {len(proof.cold)} leaves declared cold, {cold}, {share:.1%} of the state")
    for path, what in proof.faults.items():
        print(f"  {path}: {what}")
    if proof.faults:
        print(f"NOT PROVEN in up to {proof.blocks} blocks")
    else:
        made = render.human_bytes(proof.constant_bytes)
        print(
            f"proven over {proof.blocks} blocks: none is written, none is read; {made} hold a constant and need no wire"
        )


def register(commands: Subparsers, common: argparse.ArgumentParser) -> None:
    """Add the subcommand; it asks no fleet, so only the output is shared."""
    parser = commands.add_parser("prove-cold", help="prove that an engine's cold leaves are neither written nor read")
    add_output_and_tls(parser)
    parser.add_argument("engine", help="an installed engine")
    parser.add_argument("preset", help="one of its presets; two sessions of it have to fit into memory")
    parser.add_argument("--blocks", type=at_least_one, default=8, help="blocks to play twice (8)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sessions and of the actions (1)")
    parser.set_defaults(run=run)

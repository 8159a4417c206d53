"""Every arm at every load with every seed, on the same requests and the same truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admission.lab.arms import ARMS
from admission.lab.arrivals import Arrivals, poisson, requests
from admission.lab.fabric import FLUID, MESH, Errors, FabricSpec
from admission.lab.tally import Cell, Tally, count
from admission.lab.truth import draw
from admission.lab.world import World

LOADS = (0.5, 1.0, 1.4, 2.0, 3.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What every arm is put through."""

    spec: FabricSpec = MESH
    errors: Errors = FLUID
    arrivals: Arrivals = poisson
    requests: int = 200


def run(scenario: Scenario, arm: str, load: float, seed: int) -> Tally:
    """One run."""
    asked = requests(scenario.spec, scenario.arrivals, seed, scenario.requests, load)
    truth = draw(scenario.spec, scenario.errors, seed, len(asked), asked[-1].arrival_s)
    world = World(truth, asked)
    return count(world.run(ARMS[arm](world.fluid)), scenario.spec)


def sweep(
    scenario: Scenario,
    arms: Sequence[str],
    loads: Sequence[float],
    seeds: Sequence[int],
    done: Callable[[], None] = lambda: None,
) -> list[Cell]:
    """All runs, by arm and load; `done` is called after each."""
    cells = []
    for arm in arms:
        for load in loads:
            tallies = []
            for seed in seeds:
                tallies.append(run(scenario, arm, load, seed))
                done()
            cells.append(Cell(arm, load, tuple(tallies)))
    return cells

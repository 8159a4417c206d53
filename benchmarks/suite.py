"""What a suite is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from benchmarks.report import Facts, Row
from mover.settings import default_streams
from worldline import engine
from worldline.plan import Placement, Plan

ENGINE = "window-rewrite"
PATIENT_S = 60.0
CHUNK_BYTES = 4 << 20
STREAMS = default_streams()  # as admission plans it where both movers have these cores


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked of a suite. `link_gbit` shapes its link; 0: loopback as it is; None: what the suite is made for."""

    preset: str = "mg2"
    runs: int = 5
    link_gbit: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the preset's state. Raises NotFound for a preset that is not there."""
        return engine.preset_of(engine.installed()[ENGINE], self.preset).state_bytes


@dataclass(frozen=True, slots=True)
class Figures:
    """What a suite measured; `notes` are sentences for people, below the table; `draw` makes a figure of its own."""

    rows: Sequence[Row]
    facts: Facts = field(default_factory=dict)
    notes: Sequence[str] = ()
    draw: Callable[[Path], None] | None = None


Suite: TypeAlias = Callable[[Setup], Figures]


def plan(placement: Placement = Placement.PIPELINED, *, transport: str = "tcp") -> Plan:
    """The plan that suites without an admission use."""
    return Plan(transport, CHUNK_BYTES, STREAMS, placement, PATIENT_S, PATIENT_S, PATIENT_S)

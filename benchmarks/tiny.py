"""Suite `tiny`: the arms of `move` without services, over 8 MiB. It shows that benchmarks run here, and no more."""

from __future__ import annotations

from benchmarks.moving import transfers
from benchmarks.suite import Figures, Setup, plan

SIZE_BYTES = 8 << 20


def run(setup: Setup) -> Figures:
    """Run all arms."""
    return Figures(transfers(SIZE_BYTES, plan(), setup.runs), {"moved_bytes": SIZE_BYTES})

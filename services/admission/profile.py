"""What the deployment's own moves measured of each path: bandwidth B and the fixed seconds of a move."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from admission.journal_rows import PathRow
from worldline.move import StageTimes

# A move of a small state measures its fixed cost, not the path's bandwidth.
BANDWIDTH_SAMPLE_BYTES = 64 << 20
_OLDEST_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class Prior:
    """What is assumed of a path before a move was measured on it."""

    bandwidth_Bps: float
    setup_s: float


class Profile:
    """Measured paths by (source mover, destination mover, transport)."""

    def __init__(self, prior: Prior, rows: Sequence[PathRow]) -> None:
        self._prior = prior
        self._lock = threading.Lock()
        self._paths = {(row.source_mover, row.destination_mover, row.transport): row for row in rows}

    def path(self, source_mover: str, destination_mover: str, transport: str) -> PathRow:
        """The path as measured so far, or the prior."""
        with self._lock:
            return self._paths.get((source_mover, destination_mover, transport)) or PathRow(
                source_mover, destination_mover, transport, self._prior.bandwidth_Bps, self._prior.setup_s, 0
            )

    def keep(self, row: PathRow) -> None:
        """Take over a path that was journaled."""
        with self._lock:
            self._paths[row.source_mover, row.destination_mover, row.transport] = row


def measured(path: PathRow, state_bytes: int, stages: StageTimes) -> PathRow:
    """The path after one more completed move: the prior counts as one sample, old ones fade (EWMA)."""
    weight = max(1 / (path.moves + 2), _OLDEST_WEIGHT)
    carried_s = stages.wire_s + stages.verify_s
    bandwidth_Bps = path.bandwidth_Bps
    if state_bytes >= BANDWIDTH_SAMPLE_BYTES and carried_s > 0:
        bandwidth_Bps += weight * (state_bytes / carried_s - bandwidth_Bps)
    else:
        carried_s = state_bytes / bandwidth_Bps
    setup_s = path.setup_s + weight * (max(stages.downtime_s - carried_s, 0.0) - path.setup_s)
    return replace(path, bandwidth_Bps=bandwidth_Bps, setup_s=setup_s, moves=path.moves + 1)

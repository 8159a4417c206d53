"""What a controller believes of each path: admission's own estimators, or constants that were calibrated once."""

from __future__ import annotations

from typing import Protocol

from admission.estimators import PathEstimate
from admission.lab.board import Move
from admission.lab.fabric import FabricSpec
from worldline.move import StageTimes

# A run lasts seconds: nothing ages in it.
HALF_LIFE_S = 3600.0
# As short to a run of seconds as the service's `probe_idle_s` is to a day.
PROBE_IDLE_S = 1.0


class Belief(Protocol):
    """What a controller takes a move on a path to need."""

    def bound(self, source: int, receiver: int, now_s: float) -> tuple[float, float]:
        """Setup (s) and bandwidth (bytes/s) as the rules are told."""
        ...

    def fair_s(self, source: int, receiver: int) -> float:
        """The whole move on average."""
        ...

    def learn(self, move: Move, now_s: float) -> None:
        """Take over how a move went."""
        ...

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """Paths that should be probed."""
        ...

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """Take over what a probe measured."""
        ...


class Estimated:
    """Admission's estimators: a Jacobson mean and deviation for each path, from a prior of the calibrated constants."""

    def __init__(self, spec: FabricSpec) -> None:
        self._spec = spec
        self._paths: dict[tuple[int, int], PathEstimate] = {}

    def bound(self, source: int, receiver: int, now_s: float) -> tuple[float, float]:
        """The bounds of both parts."""
        path = self._path(source, receiver)
        return path.setup.bound(now_s, HALF_LIFE_S), 1 / path.pace.bound(now_s, HALF_LIFE_S)

    def fair_s(self, source: int, receiver: int) -> float:
        """The means of both parts."""
        return self._path(source, receiver).fair_s(self._spec.state_bytes)

    def learn(self, move: Move, now_s: float) -> None:
        """One more sample of its path."""
        total_s, setup_s = move.ended_s - move.begun_s, self._spec.setup_s
        stages = StageTimes(freeze_s=setup_s, wire_s=total_s - setup_s, downtime_s=total_s)
        key = (move.request.source, move.receiver)
        self._paths[key] = self._path(*key).after(self._spec.state_bytes, stages, now_s, HALF_LIFE_S)

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """Paths that were measured once and then not for a while, the longest unseen first."""
        seen_s = {path: estimate.pace.sampled_at_s for path, estimate in self._paths.items()}
        return sorted((path for path, at_s in seen_s.items() if now_s - at_s >= PROBE_IDLE_S), key=seen_s.__getitem__)

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """One more sample of its pace."""
        self._paths[path] = self._path(*path).probed(pace_s_per_byte, now_s, HALF_LIFE_S)

    def _path(self, source: int, receiver: int) -> PathEstimate:
        known = self._paths.get((source, receiver))
        return known or PathEstimate.prior(self._spec.believed_Bps(source), self._spec.setup_s)


class Constant:
    """Constants that were calibrated once: no deviation, so no margin, and nothing is learnt."""

    def __init__(self, spec: FabricSpec) -> None:
        self._spec = spec

    def bound(self, source: int, receiver: int, now_s: float) -> tuple[float, float]:
        """The constants."""
        return self._spec.setup_s, self._spec.believed_Bps(source)

    def fair_s(self, source: int, receiver: int) -> float:
        """The constants."""
        return self._spec.solo_s(source)

    def learn(self, move: Move, now_s: float) -> None:
        """Nothing."""

    def idle(self, now_s: float) -> list[tuple[int, int]]:
        """None: nothing would be learnt."""
        return []

    def probed(self, path: tuple[int, int], pace_s_per_byte: float, now_s: float) -> None:
        """Nothing."""

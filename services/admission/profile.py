"""The fleet's measured paths, shared by its threads: what the rules are told of a path, and how it learns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admission.coding import CodedMove, MeasuredCodec
from admission.estimators import EstimateRow, PathEstimate, PathKey, estimates_from, idiom, rows_of
from worldline.move import StageTimes
from worldline.plan import Placement, Plan


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path as it is known now. `bandwidth_Bps` and `setup_s` are the bounds that the rules use: hardly a move is
    slower. The `fair_` ones are averages, for reports; `samples` is how many they stand on, 0 for a prior.
    """

    bandwidth_Bps: float
    setup_s: float
    fair_bandwidth_Bps: float
    fair_setup_s: float
    fair_reserve_s: float
    samples: float


class Profile:
    """Estimates by path and idiom."""

    def __init__(
        self,
        prior: PathEstimate,
        rows: Sequence[EstimateRow],
        half_life_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`half_life_s`: seconds in which confidence in what was not seen again halves. `clock` is Unix time."""
        self._prior = prior
        self._half_life_s = half_life_s
        self._clock = clock
        self._lock = threading.Lock()
        self._paths = estimates_from(rows, prior)

    def path(
        self,
        source_mover: str,
        destination_mover: str,
        transport: str,
        placement: Placement = Placement.PIPELINED,
        codec: str = "raw",
    ) -> MeasuredPath:
        """The path as measured so far, or the prior."""
        found = self._estimate(PathKey(source_mover, destination_mover, idiom(transport, placement, codec)))
        now_s = self._clock()
        return MeasuredPath(
            1 / found.pace.bound(now_s, self._half_life_s),
            found.setup.bound(now_s, self._half_life_s),
            1 / found.pace.mean,
            found.setup.mean,
            found.reserve.mean,
            found.setup.weight,
        )

    def codec(
        self, source_mover: str, destination_mover: str, transport: str, placement: Placement, codec: str
    ) -> MeasuredCodec | None:
        """The codec as coded moves on the path measured it; None before one did."""
        found = self._estimate(PathKey(source_mover, destination_mover, idiom(transport, placement, codec)))
        if not (found.ratio.weight and found.encode.weight and found.decode.weight):
            return None
        bounds = (track.bound(self._clock(), self._half_life_s) for track in (found.ratio, found.encode, found.decode))
        ratio, encode_s_per_byte, decode_s_per_byte = bounds
        return MeasuredCodec(min(ratio, 1.0), 1 / encode_s_per_byte, 1 / decode_s_per_byte)

    def after(
        self,
        source_mover: str,
        destination_mover: str,
        plan: Plan,
        state_bytes: int,
        stages: StageTimes,
        coded: CodedMove | None = None,
    ) -> tuple[EstimateRow, ...]:
        """The path after one more completed move, as rows to keep; `keep` takes them over."""
        key = PathKey(source_mover, destination_mover, idiom(plan.transport, plan.placement, plan.codec))
        now_s = self._clock()
        estimate = self._estimate(key).after(state_bytes, stages, now_s, self._half_life_s)
        return rows_of(key, estimate.coded(coded, now_s, self._half_life_s) if coded else estimate)

    def probed(self, key: PathKey, pace_s_per_byte: float) -> tuple[EstimateRow, ...]:
        """The path after a probe, as rows to keep; `keep` takes them over."""
        return rows_of(key, self._estimate(key).probed(pace_s_per_byte, self._clock(), self._half_life_s))

    def keep(self, rows: Sequence[EstimateRow]) -> None:
        """Take over rows that were kept."""
        with self._lock:
            self._paths |= estimates_from(rows, self._prior)

    def idle(self, seconds: float) -> list[PathKey]:
        """Paths that were measured once, but not in the last `seconds`; the longest unseen first."""
        now_s = self._clock()
        with self._lock:
            seen = {
                key: estimate.pace.sampled_at_s or estimate.setup.sampled_at_s for key, estimate in self._paths.items()
            }
        return sorted((key for key, at_s in seen.items() if now_s - at_s >= seconds), key=lambda key: seen[key])

    def _estimate(self, key: PathKey) -> PathEstimate:
        with self._lock:
            return self._paths.get(key, self._prior)

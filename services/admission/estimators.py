"""What the fleet's own moves say of a path, as pure values: how much a move costs, and how sure that is.

A `Track` follows one quantity with a Jacobson mean and mean deviation (RFC 6298 gains). Three things differ from TCP's:

- slow start. TCP takes half of its first sample for the deviation, so that its bound is three times the sample and
  admission would refuse everything under 400 ms (paper App. I). Here the deviation begins at an eighth of the mean:
  four of it make half the mean, which covers the 30 % underestimate that made the paper's controller collapse
  (1 / 0.7 = 1.43). Gains begin at one half and fall to RFC 6298's. A fast sample never raises the bound.
- outliers. A sample far outside of what was seen is held back. One freeze changes nothing; a second slow one in a row,
  or a third fast one, is a lasting change, and the track begins anew there.
- age. Confidence in what was not seen for long halves with each `half_life_s`: the deviation goes back to an eighth of
  the mean, and the next sample counts for more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from admission.coding import CodedMove
from worldline.move import StageTimes
from worldline.plan import Placement

# RFC 6298: gains of mean and deviation, and how many deviations the bound lies above the mean.
MEAN_GAIN, DEVIATION_GAIN, DEVIATIONS = 1 / 8, 1 / 4, 4.0
# Deviation over mean: where nothing is known, and at least. Four times the floor stay under the 7 % that the paper
# found to be harmless (App. I).
UNSURE, SUREST = 1 / 8, 1 / 64
# A sample this many deviations above the mean, or below it by the same factor, is held back, until so many in a row say
# the same.
OUTLIER_DEVIATIONS = 8.0
SLOW_IN_A_ROW, FAST_IN_A_ROW = 2, 3
# Samples that a track remembers.
MOST_WEIGHT = 8.0
# A move of a small state measures its fixed cost, not the path's bandwidth.
BANDWIDTH_SAMPLE_BYTES = 32 << 20
# D follows the engine's counters with this gain.
DIRTY_GAIN = 1 / 8

SETUP, PACE, RESERVE = "setup_s", "pace_s_per_byte", "reserve_s"
RATIO, ENCODE, DECODE = "coded_ratio", "encode_s_per_byte", "decode_s_per_byte"
# What tells one move's fixed seconds from another's (RFC 6298's G).
GRAIN_S = 1e-3


@dataclass(frozen=True, slots=True)
class Track:
    """One quantity: what it is on average and by how much samples miss that on average.

    `weight` counts samples (0: a prior), `suspects` the outliers held back in a row, negative for those below the mean;
    `suspect_mean` is theirs. `sampled_at_s` is Unix time. `grain` is what a clock can tell: no deviation is smaller.
    """

    mean: float
    deviation: float
    weight: float = 0.0
    suspect_mean: float = 0.0
    suspects: int = 0
    sampled_at_s: float = 0.0
    grain: float = 0.0

    @classmethod
    def prior(cls, mean: float, grain: float = 0.0) -> Self:
        """What is assumed before the first sample."""
        return cls(mean, UNSURE * mean, grain=grain)

    def _confidence(self, now_s: float, half_life_s: float) -> float:
        """1 at the last sample, falling by half in each half-life; 0 for a prior."""
        if not self.weight:
            return 0.0
        return float(0.5 ** (max(now_s - self.sampled_at_s, 0.0) / half_life_s))

    def deviation_at(self, now_s: float, half_life_s: float) -> float:
        """The deviation, wider with age."""
        unsure = UNSURE * (1 - self._confidence(now_s, half_life_s))
        return max(self.deviation, max(SUREST, unsure) * self.mean, self.grain)

    def bound(self, now_s: float, half_life_s: float) -> float:
        """What a sample hardly exceeds: the mean and four deviations."""
        return self.mean + DEVIATIONS * self.deviation_at(now_s, half_life_s)

    def after(self, sample: float, now_s: float, half_life_s: float) -> Track:
        """The track after one more sample of 0 or more."""
        if not self.weight:
            return replace(self.prior(sample, self.grain), weight=1.0, sampled_at_s=now_s)
        deviation = self.deviation_at(now_s, half_life_s)
        slowest = self.mean + OUTLIER_DEVIATIONS * deviation
        if sample > slowest or sample * slowest < self.mean**2:
            return self._suspecting(sample, deviation, now_s)
        weight = self.weight * self._confidence(now_s, half_life_s)
        mean_gain = max(MEAN_GAIN, 1 / (weight + 1))
        deviation_gain = max(DEVIATION_GAIN, 1 / (weight + 1))
        missed = abs(sample - self.mean)
        if sample < self.mean - deviation:
            # What the mean loses, four deviations must not gain.
            deviation_gain = mean_gain / DEVIATIONS
        return Track(
            self.mean + mean_gain * (sample - self.mean),
            deviation + deviation_gain * (missed - deviation),
            min(weight + 1, MOST_WEIGHT),
            sampled_at_s=now_s,
            grain=self.grain,
        )

    def _suspecting(self, sample: float, deviation: float, now_s: float) -> Track:
        """After an outlier: held back, or believed if as many say the same as say otherwise, or enough in a row."""
        slow = sample > self.mean
        in_a_row = abs(self.suspects) if (self.suspects > 0) is slow and self.suspects else 0
        count = in_a_row + 1
        mean = (self.suspect_mean * in_a_row + sample) / count
        enough = min(SLOW_IN_A_ROW if slow else FAST_IN_A_ROW, max(round(self.weight), 1))
        if count < enough:
            return replace(self, suspects=count if slow else -count, suspect_mean=mean)
        spread = max(abs(sample - mean), UNSURE * mean)
        if not slow:
            # What the mean loses, four deviations must not gain.
            spread = min(spread, deviation + (self.mean - mean) / DEVIATIONS)
        return Track(mean, spread, float(count), sampled_at_s=now_s, grain=self.grain)


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """A track as it is kept: of the moves from one mover to another, in one idiom."""

    source_mover: str
    destination_mover: str
    idiom: str
    quantity: str
    mean: float
    deviation: float
    weight: float
    suspect_mean: float
    suspects: int
    sampled_at_s: float


@dataclass(frozen=True, slots=True)
class PathKey:
    """Whose moves are alike: from mover to mover in one idiom. A constant holds for its idiom only (paper §6.5)."""

    source_mover: str
    destination_mover: str
    idiom: str


def idiom(transport: str, placement: Placement, codec: str) -> str:
    """How bytes are carried, in a word: transport, where they are verified, and codec."""
    return f"{transport}/{placement.name.lower()}/{codec}"


def parts_of(word: str) -> tuple[str, Placement, str]:
    """Transport, placement and codec of an idiom."""
    transport, placement, codec = word.split("/")
    return transport, Placement[placement.upper()], codec


@dataclass(frozen=True, slots=True)
class PathEstimate:
    """What a move on one path takes.

    `setup` is the fixed part between freeze and playable (s), `pace` each byte on the wire and verified (s/B, 1/B of
    the path), `reserve` what comes before the freeze (s), while the session still plays. In a coded idiom `ratio` is
    the share that the codec leaves, `encode` and `decode` what it takes (s/B of state, all threads); unknown at first.
    """

    setup: Track
    pace: Track
    reserve: Track
    ratio: Track = Track(1.0, 0.0)
    encode: Track = Track(0.0, 0.0)
    decode: Track = Track(0.0, 0.0)

    @classmethod
    def prior(cls, bandwidth_Bps: float, setup_s: float) -> Self:
        """What is assumed of a path before a move was measured on it."""
        return cls(Track.prior(setup_s, GRAIN_S), Track.prior(1 / bandwidth_Bps), Track.prior(setup_s, GRAIN_S))

    def fair_s(self, state_bytes: int) -> float:
        """Freeze to playable on average, for reports."""
        return self.setup.mean + state_bytes * self.pace.mean

    def bound_s(self, state_bytes: int, now_s: float, half_life_s: float) -> float:
        """Freeze to playable as the rules take it: the bounds of both parts."""
        return self.setup.bound(now_s, half_life_s) + state_bytes * self.pace.bound(now_s, half_life_s)

    def after(self, state_bytes: int, stages: StageTimes, now_s: float, half_life_s: float) -> PathEstimate:
        """The estimate after one more completed move."""
        carried_s = stages.wire_s + stages.verify_s
        pace = self.pace
        if state_bytes >= BANDWIDTH_SAMPLE_BYTES and carried_s > 0:
            pace = pace.after(carried_s / state_bytes, now_s, half_life_s)
        else:
            carried_s = state_bytes * pace.mean
        setup_s = max(stages.downtime_s - carried_s, 0.0)
        return replace(
            self,
            setup=self.setup.after(setup_s, now_s, half_life_s),
            pace=pace,
            reserve=self.reserve.after(stages.reserve_s, now_s, half_life_s),
        )

    def coded(self, move: CodedMove, now_s: float, half_life_s: float) -> PathEstimate:
        """The estimate after what a coded move measured of its codec."""

        def after(track: Track, sample: float | None) -> Track:
            return track if sample is None else track.after(sample, now_s, half_life_s)

        return replace(
            self,
            ratio=after(self.ratio, move.ratio),
            encode=after(self.encode, move.encode_s_per_byte),
            decode=after(self.decode, move.decode_s_per_byte),
        )

    def probed(self, pace_s_per_byte: float, now_s: float, half_life_s: float) -> PathEstimate:
        """The estimate after a probe, which measures the pace alone."""
        return replace(self, pace=self.pace.after(pace_s_per_byte, now_s, half_life_s))

    def tracks(self) -> Mapping[str, Track]:
        """The tracks by quantity; a codec's only once it was measured."""
        codec = {RATIO: self.ratio, ENCODE: self.encode, DECODE: self.decode}
        known = {quantity: track for quantity, track in codec.items() if track.weight}
        return {SETUP: self.setup, PACE: self.pace, RESERVE: self.reserve} | known


def rows_of(key: PathKey, estimate: PathEstimate) -> tuple[EstimateRow, ...]:
    """The rows in which an estimate is kept."""
    return tuple(
        EstimateRow(
            key.source_mover,
            key.destination_mover,
            key.idiom,
            quantity,
            track.mean,
            track.deviation,
            track.weight,
            track.suspect_mean,
            track.suspects,
            track.sampled_at_s,
        )
        for quantity, track in estimate.tracks().items()
    )


def estimates_from(rows: Iterable[EstimateRow], prior: PathEstimate) -> dict[PathKey, PathEstimate]:
    """The estimates that were kept; a quantity without a row is the prior's."""
    found: dict[PathKey, dict[str, Track]] = {}
    for row in rows:
        key = PathKey(row.source_mover, row.destination_mover, row.idiom)
        tracks = found.setdefault(key, _all_tracks(prior))
        tracks[row.quantity] = replace(
            tracks[row.quantity],
            mean=row.mean,
            deviation=row.deviation,
            weight=row.weight,
            suspect_mean=row.suspect_mean,
            suspects=row.suspects,
            sampled_at_s=row.sampled_at_s,
        )
    return {
        key: PathEstimate(*(tracks[quantity] for quantity in (SETUP, PACE, RESERVE, RATIO, ENCODE, DECODE)))
        for key, tracks in found.items()
    }


def _all_tracks(prior: PathEstimate) -> dict[str, Track]:
    return {RATIO: prior.ratio, ENCODE: prior.encode, DECODE: prior.decode} | dict(prior.tracks())


def dirty_after(before_Bps: float | None, sample_Bps: float) -> float:
    """D of a session after one more block was timed (EWMA), bytes/s; `before_Bps` None before the first."""
    return sample_Bps if before_Bps is None else before_Bps + DIRTY_GAIN * (sample_Bps - before_Bps)

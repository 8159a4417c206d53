"""The arms of the lab by name. `worldline lab --help` and docs/lab.md say what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from admission.lab.belief import Constant, Estimated
from admission.lab.board import Controller
from admission.lab.booking import Booking
from admission.lab.clairvoyant import Clairvoyant
from admission.lab.doctrines import DeferAndReject, OverlapEverything, PairCalibrated, RateLimited
from admission.lab.fluid import Fluid
from admission.lab.ours import Ours

# Between decision and wire start in the paper's harness, at most; calibrated to its misses at 2x (docs/lab.md).
WIRE_GAP_S = 0.033
# Appendix I: constants of another idiom, 30 % too small.
STALE_SCALE = 0.7

# Each is made anew for a run from the run's fabric; all but the clairvoyant look at its specification only.
ARMS: Mapping[str, Callable[[Fluid], Controller]] = {
    "clairvoyant": Clairvoyant,
    "disjoint": lambda fluid: Clairvoyant(fluid, disjoint=True),
    "ours": lambda fluid: Ours(fluid.truth.spec, Estimated(fluid.truth.spec)),
    "unlearning": lambda fluid: Ours(fluid.truth.spec, Constant(fluid.truth.spec)),
    "paper": lambda fluid: Booking(fluid.truth.spec, gap_s=WIRE_GAP_S),
    "paper-tied": lambda fluid: Booking(fluid.truth.spec, tied=True),
    "idiom-stale": lambda fluid: Booking(fluid.truth.spec, gap_s=WIRE_GAP_S, scale=STALE_SCALE),
    "defer-reject": lambda fluid: DeferAndReject(fluid.truth.spec),
    "naive": lambda fluid: PairCalibrated(fluid.truth.spec),
    "accept-all": lambda fluid: RateLimited(fluid.truth.spec),
    "overlap-all": lambda fluid: OverlapEverything(),
}

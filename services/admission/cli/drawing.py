"""The regime map as a picture; the only part that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from admission.cli.regimes import Point, Regime
from admission.cli.sheet import gigabits

_COLOURS = {Regime.INADMISSIBLE: "tab:red", Regime.FROZEN: "tab:orange", Regime.LIVE: "tab:green", None: "tab:gray"}
_SAMPLES = 200
# What a logarithmic axis shows of a session that dirties nothing.
_LEAST_Bps = 1e6


def draw(gate: Point, points: Sequence[Point], pictures: Sequence[Path]) -> None:
    """Draw the gate, the phase line and the sessions into each file, in the format that its name ends with."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    known = [point for point in points if point.bandwidth_Bps is not None and point.dirty_rate_Bps is not None]
    right = max([10 * gate.frozen_gate_Bps, *(3 * (point.bandwidth_Bps or 0.0) for point in known)])
    left = min([gate.frozen_gate_Bps / 30, *((point.bandwidth_Bps or right) / 3 for point in known)])
    rates = [left * (right / left) ** (step / (_SAMPLES - 1)) for step in range(_SAMPLES)]
    across = [gigabits(rate) for rate in rates]
    lowest, highest = _LEAST_Bps / 1e9, right / 1e9
    live = [max((rate - gate.frozen_gate_Bps) / 1e9, lowest) for rate in rates]
    frozen = gigabits(gate.frozen_gate_Bps)
    axes.fill_betweenx([lowest, highest], across[0], frozen, color="tab:red", alpha=0.12, label="inadmissible")
    right_of = [rate >= frozen for rate in across]
    axes.fill_between(across, live, highest, where=right_of, color="tab:orange", alpha=0.12, label="frozen only")
    axes.fill_between(across, lowest, live, where=right_of, color="tab:green", alpha=0.12, label="frozen or live")
    axes.plot(across, [rate / 1e9 for rate in rates], color="black", linestyle="--", label="phase line D = B")
    gated = [(rate, most) for rate, most in zip(across, live, strict=True) if rate >= frozen]
    axes.plot(*zip(*gated, strict=True), color="black", label=f"gate B = S/H + D, H = {gate.horizon_s:g} s")
    for point in known:
        at = gigabits(point.bandwidth_Bps or 0.0), max(point.dirty_rate_Bps or 0.0, _LEAST_Bps) / 1e9
        axes.plot(*at, marker="o", color=_COLOURS[point.regime], markeredgecolor="black")
        axes.annotate(point.name, at, textcoords="offset points", xytext=(6, 4), fontsize="small")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(across[0], across[-1]),
        ylim=(lowest, highest),
        xlabel="bandwidth B, Gb/s",
        ylabel="dirty rate D, GB/s",
        title=f"regime map, S = {gate.state_bytes / 1e9:.3g} GB",
    )
    axes.legend(loc="lower left", fontsize="small")
    for path in pictures:
        figure.savefig(path)

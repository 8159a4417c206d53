"""`worldline bench`: runs suites, and prints and stores what can be attributed to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import attribution, price_list, report, suites
from benchmarks.attribution import Attribution
from benchmarks.report import Facts
from benchmarks.suite import Figures, Setup
from worldline.cli import render
from worldline.cli.pictures import require_plots
from worldline.errors import BadRequest, Precondition

UNATTRIBUTED = "UNATTRIBUTED"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is done with the figures."""

    anyway: bool = False
    as_json: bool = False
    directory: Path | None = None
    picture: Path | None = None


def listing() -> list[tuple[str, str]]:
    """Suites and what they measure."""
    return [(name, what) for name, (_, what) in suites.SUITES.items()]


def run(asked: Sequence[str], setup: Setup, wanted: Wanted) -> int:
    """All suites one after another. 0: every figure was printed and stored.

    Raises:
        Precondition: figures cannot be attributed, before anything is printed of them; never with `anyway`.
        NotFound, Unsupported: no such suite or preset; something that a suite needs is not here.
        BadRequest: a link's rate for suites that have no link; a picture where no file can be.
        Unavailable: a process of a suite was not ready in time, or ended.
    """
    chosen = suites.names(list(asked))
    if setup.link_gbit is not None and not set(chosen) & set(suites.SHAPED):
        raise BadRequest(f"a link's rate is for {', '.join(suites.SHAPED)}; {', '.join(chosen)} runs over loopback")
    loaded = {name: suites.load(name) for name in chosen}
    if wanted.picture is not None:
        require_plots([wanted.picture])
    state_bytes = setup.size_bytes  # an unknown preset is told before anything runs
    documents: list[dict[str, object]] = []
    bars: list[price_list.Bar] = []
    for number, (name, suite) in enumerate(loaded.items()):
        facts = {**report.host(), "preset": setup.preset, "state_bytes": state_bytes}
        before = attribution.read()
        lacks = attribution.lacks_before(before, facts, ran_before=number > 0)
        _require(name, lacks, wanted)
        figures = suite(setup)
        verdict = attribution.judge(before, attribution.read(), lacks)
        _require(name, verdict.failures, wanted)
        documents.append(_told(name, facts, figures, verdict, wanted))
        gbit = figures.facts.get("link_gbit")
        bars += price_list.bars(f"{name} at {gbit} Gb/s" if gbit else name, figures.rows)
    if wanted.picture is not None:
        whole = all(document["attributed"] for document in documents)
        price_list.draw(bars, wanted.picture, report.head(facts), attributed=whole)
    if wanted.as_json:
        render.print_json(documents)
    elif wanted.picture is not None:
        render.console().print(f"price list: {wanted.picture}")
    return 0


def _require(name: str, failures: Sequence[str], wanted: Wanted) -> None:
    if failures and not wanted.anyway:
        raise Precondition(
            f"the figures of {name} cannot be attributed: {'; '.join(failures)}; --anyway prints them marked",
            reason="NOT_ATTRIBUTABLE",
        )


def _told(name: str, facts: Facts, figures: Figures, verdict: Attribution, wanted: Wanted) -> dict[str, object]:
    """Print and store one suite's figures; what was stored."""
    stored = report.as_json(figures.rows)
    more: dict[str, object] = {"suite": name, **verdict.as_json(), "notes": list(figures.notes)}
    document = report.document({**facts, **figures.facts}, stored, more)
    # Figures that mean nothing never replace ones that do.
    file = f"{name}.unattributed" if verdict.failures else name
    path = report.store(file, document, wanted.directory or report.RESULTS)
    if figures.draw is not None:
        figures.draw(path.with_suffix(".svg"))
    if not wanted.as_json:
        out = render.console()
        out.print(report.head(facts))
        out.print(report.table(stored, f"{name}: {UNATTRIBUTED}" if verdict.failures else name))
        for line in (*figures.notes, *(f"{UNATTRIBUTED}: {failure}" for failure in verdict.failures)):
            out.print(line)
        out.print(f"written to {path}\n")
    return document

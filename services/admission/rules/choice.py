"""The plan of a move: every plan that is offered is judged by the same rules, and the best one is chosen.

A plan that admits comes before one that does not; among those the largest margin wins, and within a millisecond of it
the simplest: raw before coded, no tail schedule before one, and what is offered first before what comes after. A codec
is only for a move that fails raw, or that it shortens by a tenth where no deadline bounds it (paper §6.4): less would
not pay for the processors that it takes. On a path whose B was measured, which has the last checksum in it, what a tail
saves cannot be seen: there it is taken wherever there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from admission.rules.cost import Stages, crc_Bps, predict, wire_Bps
from admission.rules.question import Codec, Mode, Path, Question
from admission.rules.table import MOVE_RULES, PLAN_RULES
from admission.rules.waiting import judged
from worldline.plan import PAGE_BYTES, Placement, tail_schedule
from worldline.verdict import Clause, Kind, Verdict, compose

TIE_S = 1e-3
# Of the raw move's time, what a coded one may take where raw would do.
CODEC_PAYS = 0.9
_ORDER = {Kind.ADMIT: 0, Kind.DEFER: 1, Kind.REJECT: 2}


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen plan and what the rules say of it.

    `stages` is what each stage is predicted to take, `margin_s` what the horizon (or, without one, the longest freeze)
    leaves beyond it; negative if it misses, minus infinity if a live move never catches up.
    """

    mode: Mode
    transport: str
    placement: Placement
    codec: Codec | None
    streams: int
    chunk_bytes: int
    tail_bytes: tuple[int, ...]
    verdict: Verdict
    stages: Stages
    margin_s: float


@dataclass(frozen=True, slots=True)
class _Judged:
    """One plan: its place among the offered ones, the simplest first, and what was found of it."""

    place: int
    question: Question
    stages: Stages
    margin_s: float
    clauses: tuple[Clause, ...] = ()

    @property
    def kind(self) -> Kind:
        return compose(self.clauses).kind


def evaluate(question: Question) -> Verdict:
    """The verdict on the plan that the question names, every clause in it."""
    return _choice(_judge(_timed(0, question)), question).verdict


def choose(question: Question) -> Choice:
    """The best of the plans that the question offers; where none is admitted, the one that comes nearest."""
    plans = list(_plans(question))
    raw = [plan for plan in plans if plan.question.codec is None]
    coded = [plan for plan in plans if plan.question.codec is not None]
    best = _best(raw or coded)
    if raw and best.kind is Kind.ADMIT:
        limit_s = 0.0 if question.contract.has_deadline else CODEC_PAYS * best.stages.total_s
        shorter = [plan for plan in coded if plan.stages.total_s <= limit_s]
        if shorter and (found := _best(shorter)).kind is Kind.ADMIT:
            best = found
    elif raw and coded:
        best = min(best, _best(coded), key=lambda item: _ORDER[item.kind])
    return _choice(best, question)


def tail_of(question: Question) -> tuple[int, ...]:
    """The tail of this plan by its wire and its lane, so that the last checksum is one small chunk's; none where no
    lane works beside the wire, or its rate was not told. Of a state under two chunks, half takes the chunk's place.
    """
    checked_Bps = crc_Bps(question)
    whole_bytes = min(question.chunk_bytes, question.sent_bytes // 2) // PAGE_BYTES * PAGE_BYTES
    if checked_Bps is None or not whole_bytes or question.placement is not Placement.PIPELINED:
        return ()
    return tail_schedule(whole_bytes, wire_Bps(question), checked_Bps)


def _plans(question: Question) -> Iterator[_Judged]:
    """Every plan offered, the simplest first."""
    offers = question.offers
    sizes, streams = offers.chunk_bytes or (question.chunk_bytes,), offers.streams or (question.streams,)
    place = 0
    for path in offers.paths or (_own_path(question),):
        codecs = path.codecs or offers.codecs or (question.codec,)
        modes, placements = offers.modes or (question.mode,), path.placements or offers.placements
        for codec, mode, placement in product(codecs, modes, placements or (question.placement,)):
            on_path = _with(
                question,
                codec=codec,
                mode=mode,
                transport=path.transport,
                transport_refusal=path.refusal,
                bandwidth_Bps=path.bandwidth_Bps,
                setup_s=path.setup_s,
                ceiling_Bps=path.ceiling_Bps,
                stream_Bps=path.stream_Bps,
                retransmit_floor_s=path.retransmit_floor_s,
                verified=path.verified,
                placement=placement,
            )
            for plan in _cut(on_path, sizes, streams):
                yield _timed(place, plan)
                place += 1


def _cut(question: Question, sizes: Sequence[int], streams: Sequence[int]) -> Iterator[Question]:
    """One way of carrying it in chunks of each size, over each number of streams, with a tail schedule and without."""
    plain = [_with(question, chunk_bytes=size, streams=count) for size, count in product(sizes, streams)]
    tails = [tail_of(plan) if question.offers.tail else () for plan in plain]
    tailed = [replace(plan, tail_bytes=tail) for plan, tail in zip(plain, tails, strict=True) if tail]
    if not question.verified:
        yield from (*plain, *tailed)
    elif question.chunk_s:
        yield from (*tailed, *plain)
    else:
        # No rule sees the difference: the one without would be judged for nothing.
        yield from (*tailed, *(plan for plan, tail in zip(plain, tails, strict=True) if not tail))


def _with(question: Question, **changes: object) -> Question:
    """The question with these fields; itself where it has them already, which most have that are asked."""
    new = {name: value for name, value in changes.items() if getattr(question, name) != value}
    return replace(question, **new) if new else question  # type: ignore[arg-type]


def _own_path(question: Question) -> Path:
    return Path(
        question.transport,
        question.bandwidth_Bps,
        question.setup_s,
        question.transport_refusal,
        question.ceiling_Bps,
        question.stream_Bps,
        question.retransmit_floor_s,
        verified=question.verified,
    )


def _timed(place: int, question: Question) -> _Judged:
    stages = predict(question)
    return _Judged(place, question, stages, question.allowed_s - stages.total_s)


def _best(plans: Sequence[_Judged]) -> _Judged:
    """The admitted plan of the largest margin, the simplest within a tie of it; else the one with the least against it.

    Plans are judged by falling margin, and only as far as one of them may still be chosen. One without margin is
    refused by the deadline gate, whatever else is said of it, unless it is others on its port that take the margin: of
    those, only the nearest is judged.
    """
    by_margin = sorted(plans, key=lambda plan: (-plan.margin_s, plan.place))
    shared = bool(by_margin[0].question.mover_moves)
    if by_margin[0].margin_s <= 0 and not shared:
        nearest = [plan for plan in by_margin if plan.margin_s >= by_margin[0].margin_s - TIE_S]
        return _judge(min(nearest, key=lambda plan: plan.place))
    tried: list[_Judged] = []
    admitted: list[_Judged] = []
    for plan in by_margin:
        if (plan.margin_s <= 0 and not shared) or (admitted and plan.margin_s < admitted[0].margin_s - TIE_S):
            break
        tried.append(_judge(plan))
        if tried[-1].kind is Kind.ADMIT:
            admitted.append(tried[-1])
    if admitted:
        return min(admitted, key=lambda plan: plan.place)
    return min(tried, key=lambda plan: (_ORDER[plan.kind], len(compose(plan.clauses).failed)))


def _judge(plan: _Judged) -> _Judged:
    return replace(plan, clauses=tuple(judged(rule, plan.question) for rule in PLAN_RULES))


def _choice(plan: _Judged, question: Question) -> Choice:
    clauses = (*plan.clauses, *(rule(question) for rule in MOVE_RULES))
    chosen = plan.question
    slack_s = chosen.contract.horizon_s - plan.stages.total_s if chosen.contract.has_deadline else 0.0
    return Choice(
        mode=chosen.mode,
        transport=chosen.transport,
        placement=chosen.placement,
        codec=chosen.codec,
        streams=chosen.streams,
        chunk_bytes=chosen.chunk_bytes,
        tail_bytes=chosen.tail_bytes,
        verdict=compose(clauses, predicted_s=plan.stages.total_s, slack_s=slack_s),
        stages=plan.stages,
        margin_s=plan.margin_s,
    )

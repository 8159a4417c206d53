"""The rules: monotone, complete, and readable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules_samples import MG2, questions

from admission.rules import RULES, InFlight, Mode, Peer, Question, evaluate
from admission.rules.cost import wire_Bps
from admission.rules.deadline_gate import deadline_gate
from admission.rules.fingerprint import fingerprint
from admission.rules.flux import flux
from admission.rules.reachable import reachable
from admission.rules.receiver import receiver
from admission.rules.slot_memory import slot_memory
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Fingerprint
from worldline.plan import Placement
from worldline.verdict import Kind

MG2_BYTES = MG2.state_bytes
ORDER = {Kind.REJECT: 0, Kind.DEFER: 1, Kind.ADMIT: 2}


@settings(deadline=None)
@given(questions)
def test_a_verdict_is_what_its_clauses_make_it(question: Question) -> None:
    verdict = evaluate(question)
    assert [clause.name for clause in verdict.clauses] == [rule.__name__ for rule in RULES]
    kinds = {clause.verdict for clause in verdict.clauses}
    assert (verdict.kind is Kind.ADMIT) == (kinds == {Kind.ADMIT})
    assert (verdict.kind is Kind.REJECT) == (Kind.REJECT in kinds)
    assert (verdict.retry_after_s > 0) <= (verdict.kind is Kind.DEFER)
    assert verdict.retry_after_s <= question.patience_s
    for clause in verdict.clauses:
        assert clause.arithmetic
        assert (clause.reason == "") == (clause.verdict is Kind.ADMIT)
    assert verdict.failed == tuple(clause for clause in verdict.clauses if clause.verdict is not Kind.ADMIT)


@settings(deadline=None)
@given(questions)
def test_an_admitted_move_holds_every_inequality(question: Question) -> None:
    if evaluate(question).kind is not Kind.ADMIT:
        return
    payload = question.state_bytes * (question.codec.ratio if question.codec else 1.0)
    if question.contract.has_deadline:
        horizon_s = question.contract.horizon_s
        assert question.setup_s + question.exposed_s + payload / question.bandwidth_Bps < horizon_s * (1 + 1e-9)
        assert question.bandwidth_Bps >= (payload / horizon_s + question.dirty_Bps) * (1 - 1e-9)
        assert wire_Bps(question) * (horizon_s - question.setup_s) >= payload * (1 - 1e-9)
    assert evaluate(question).predicted_s < question.allowed_s
    assert question.state_bytes <= question.destination_free_bytes
    equal = question.source_fingerprint == question.destination_fingerprint
    bounded = question.contract.tier in question.inexact_tiers and question.readout_floor_dB is not None
    assert equal or bounded
    assert question.preset in question.destination_presets
    assert len(question.host_moves) < question.receiver_cap
    assert not question.mover_cap or len(question.mover_moves) < question.mover_cap
    assert not question.destination_has_id
    assert all(not peer.refusal and peer.silent_s <= question.silent_s for peer in question.peers)
    assert not question.transport_refusal
    assert question.slot_warm is not False or question.first_touch_s is not None
    assert question.state_bytes < question.duplex_bytes or not any(
        move.state_bytes >= question.duplex_bytes for move in (*question.sender_moves, *question.opposite_moves)
    )
    assert question.benefit_s is None or question.benefit_s > evaluate(question).predicted_s
    if question.placement is Placement.IN_PATH and question.mover_moves:
        assert question.destination_crc is not None
        assert question.retransmit_floor_s is not None
    if question.mode is Mode.LIVE:
        assert question.dirty_rate_Bps is not None
        assert question.dirty_rate_Bps < wire_Bps(question)


def better(question: Question, factor: float, pick: str) -> Question:
    """The same move with one thing made easier."""
    changes = {
        "bandwidth": {"bandwidth_Bps": question.bandwidth_Bps * factor},
        "setup": {"setup_s": question.setup_s / factor},
        "memory": {"destination_free_bytes": int(question.destination_free_bytes * factor)},
        "receiver": {"host_moves": question.host_moves[1:]},
        "mover": {"mover_moves": question.mover_moves[1:]},
        "port": {"port_moves": question.port_moves[1:]},
        "leaving": {"sender_moves": question.sender_moves[1:]},
        "opposite": {"opposite_moves": question.opposite_moves[1:]},
        "suspending": {"suspending": question.suspending[1:]},
        "residents": {"residents": question.residents[1:]},
        "benefit": {"benefit_s": question.benefit_s and question.benefit_s * factor},
        "hysteresis": {"hysteresis": question.hysteresis / factor},
        "bound": {"bound_s": question.bound_s * factor},
        "patience": {"patience_s": question.patience_s * factor},
        "cap": {"receiver_cap": question.receiver_cap + 1},
        "peers": {"peers": tuple(replace(peer, silent_s=peer.silent_s / factor) for peer in question.peers)},
    }
    return replace(question, **changes[pick])  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    questions.filter(lambda question: question.placement is not Placement.IN_PATH),
    st.floats(1, 100),
    st.sampled_from(
        [
            *("bandwidth", "setup", "memory", "receiver", "mover", "port", "opposite", "suspending", "residents"),
            *("benefit", "hysteresis", "bound", "patience", "cap", "peers"),
        ]
    ),
)
def test_making_a_move_easier_never_makes_the_verdict_worse(question: Question, factor: float, pick: str) -> None:
    assert ORDER[evaluate(better(question, factor, pick)).kind] >= ORDER[evaluate(question).kind]


def test_the_papers_gates() -> None:
    frozen = deadline_gate(MG2).numbers["bandwidth_min_Bps"]
    live = deadline_gate(replace(MG2, mode=Mode.LIVE)).numbers["bandwidth_min_Bps"]
    assert frozen * 8 / 1e9 == pytest.approx(33.4, abs=0.05)
    assert live * 8 / 1e9 == pytest.approx(40.8, abs=0.05)


@pytest.mark.parametrize(
    ("gigabits", "mode", "admits"),
    [
        (33.3, Mode.FROZEN, False),
        (33.5, Mode.FROZEN, True),
        (40.7, Mode.LIVE, False),
        (40.9, Mode.LIVE, True),
        (7.0, Mode.LIVE, False),
    ],
)
def test_both_sides_of_the_gates(gigabits: float, mode: Mode, admits: bool) -> None:
    question = replace(MG2, bandwidth_Bps=gigabits * 1e9 / 8, mode=mode, setup_s=0.0)
    assert (deadline_gate(question).verdict is Kind.ADMIT) == admits
    assert (flux(question).verdict is Kind.ADMIT) == admits


def test_the_arithmetic_can_be_read() -> None:
    question = replace(MG2, bandwidth_Bps=1e9, contract=Contract(ContractClass.C1, 30.0, Tier.T0))
    assert deadline_gate(question).arithmetic == "0.057 s setup + 1670124960 B / 1e+09 B/s = 1.727 s < 30 s horizon"
    assert deadline_gate(replace(question, contract=MG2.contract)).arithmetic == (
        "0.057 s setup + 1670124960 B / 1e+09 B/s = 1.727 s >= 0.4 s horizon; "
        "B of at least 4.175e+09 B/s and a short setup are needed"
    )


def test_a_class_without_deadline_passes_with_its_arithmetic() -> None:
    bulk = replace(MG2, contract=Contract(ContractClass.C3, 0.0, Tier.T0), bandwidth_Bps=1e6, bound_s=1671.0)
    clause = deadline_gate(bulk)
    assert clause.verdict is Kind.ADMIT
    assert clause.arithmetic == (
        "C3 has no deadline; 0.057 s setup + 1670124960 B / 1e+06 B/s = 1670.182 s "
        "< 1671 s that the plan allows from freeze to commit"
    )
    clause = deadline_gate(replace(bulk, bound_s=30.0))
    assert (clause.verdict, clause.reason) == (Kind.REJECT, "PREDICTED_FREEZE_TOO_LONG")
    assert clause.arithmetic.endswith("= 1670.182 s >= 30 s that the plan allows from freeze to commit")


def test_setup_alone_can_miss_the_horizon_that_the_flux_allows() -> None:
    question = replace(MG2, setup_s=0.5)
    assert flux(question).verdict is Kind.ADMIT
    assert deadline_gate(question).verdict is Kind.REJECT


def test_a_live_move_without_a_known_dirty_rate_waits_for_it() -> None:
    question = replace(MG2, mode=Mode.LIVE, dirty_rate_Bps=None)
    assert flux(question).verdict is Kind.REJECT
    patient = flux(replace(question, patience_s=1.0))
    assert (patient.verdict, patient.retry_after_s, patient.reason) == (Kind.DEFER, 1.0, "DIRTY_RATE_UNKNOWN")


def test_a_live_move_without_deadline_must_outrun_its_source() -> None:
    bulk = replace(MG2, mode=Mode.LIVE, contract=Contract(ContractClass.C3, 0.0, Tier.T0))
    assert flux(bulk).verdict is Kind.ADMIT
    assert flux(replace(bulk, bandwidth_Bps=0.93e9)).verdict is Kind.REJECT


def test_memory_that_is_one_byte_short_is_short() -> None:
    assert slot_memory(replace(MG2, destination_free_bytes=MG2_BYTES)).verdict is Kind.ADMIT
    clause = slot_memory(replace(MG2, destination_free_bytes=MG2_BYTES - 1))
    assert (clause.verdict, clause.reason) == (Kind.REJECT, "NO_SLOT_MEMORY")


@pytest.mark.parametrize("tier", list(Tier))
def test_every_difference_of_the_fingerprints_is_listed(tier: Tier) -> None:
    question = replace(
        MG2,
        contract=replace(MG2.contract, tier=tier),
        destination_fingerprint=Fingerprint({"torch": "2.12.1", "driver": "550"}),
        destination_presets=frozenset(),
    )
    clause = fingerprint(question)
    assert clause.verdict is Kind.REJECT
    assert clause.numbers["differences"] == 4
    for word in ("torch", "gpu", "driver", "window-rewrite/mg2", tier.name, "equal fingerprints"):
        assert word in clause.arithmetic


def test_a_busy_receiver_defers_those_who_can_wait() -> None:
    busy = replace(MG2, host_moves=(InFlight("m-1", 2.5),))
    assert receiver(busy).verdict is Kind.REJECT
    patient = receiver(replace(busy, patience_s=3.0))
    assert (patient.verdict, patient.retry_after_s) == (Kind.DEFER, 2.5)
    assert receiver(replace(busy, receiver_cap=2)).verdict is Kind.ADMIT


def test_room_comes_when_enough_moves_are_over() -> None:
    three = tuple(InFlight(f"m-{left_s}", left_s) for left_s in (9.0, 1.0, 4.0))
    clause = receiver(replace(MG2, host_moves=three, receiver_cap=2, patience_s=60))
    assert clause.retry_after_s == 4.0


def test_a_mover_that_takes_in_no_more_is_busy_too() -> None:
    four = tuple(InFlight(f"m-{left_s}", left_s) for left_s in (9.0, 1.0, 4.0, 2.0))
    clause = receiver(replace(MG2, mover_moves=four, patience_s=60))
    assert (clause.verdict, clause.reason, clause.retry_after_s) == (Kind.DEFER, "RECEIVER_BUSY", 1.0)
    assert "4 moves in flight into its mover >= 4" in clause.arithmetic
    assert receiver(replace(MG2, mover_moves=four, mover_cap=0)).verdict is Kind.ADMIT
    assert receiver(replace(MG2, mover_moves=four, host_moves=four[:1], patience_s=60)).retry_after_s == 9.0


def test_a_stalled_move_is_named_as_what_is_waited_for() -> None:
    clause = receiver(replace(MG2, host_moves=(InFlight("m-1", 5.0, stalled=True),), patience_s=60))
    assert (clause.verdict, clause.reason, clause.retry_after_s) == (Kind.DEFER, "RECEIVER_STALLED", 5.0)
    assert "move m-1 is stalled, no end of it is known" in clause.arithmetic
    assert "room in" not in clause.arithmetic


def test_an_id_that_is_taken_at_the_destination_is_refused() -> None:
    verdict = evaluate(replace(MG2, destination_has_id=True))
    assert verdict.kind is Kind.REJECT
    assert [(clause.name, clause.reason) for clause in verdict.failed] == [("session_id", "SESSION_ID_TAKEN")]


def test_a_silent_host_defers_within_the_grace_and_rejects_beyond() -> None:
    def silent(seconds_: float, patience_s: float) -> Kind:
        peers = (Peer("destination host-b", seconds_),)
        return reachable(replace(MG2, peers=peers, patience_s=patience_s)).verdict

    assert silent(3.0, 0) is Kind.ADMIT
    assert silent(3.1, 5) is Kind.DEFER
    assert silent(3.1, 0) is Kind.REJECT
    assert silent(13.1, 60) is Kind.REJECT
    assert silent(math.inf, 60) is Kind.REJECT

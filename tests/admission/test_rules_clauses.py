"""Each rule by itself: both sides of its inequality, and the words that a person checks it with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_samples import ANS, CRC_ENGINE, MG2, on

from admission.rules import Codec, Episodes, Escapes, InFlight, Mode, PortMove, Resident, UpdateRule, evaluate, paper
from admission.rules.codec import codec
from admission.rules.cost import fan_in, predict, wire_Bps
from admission.rules.crc_capacity import crc_capacity
from admission.rules.deadline_gate import deadline_gate
from admission.rules.duplex import duplex
from admission.rules.fingerprint import fingerprint
from admission.rules.host_link import host_link
from admission.rules.hysteresis import hysteresis
from admission.rules.motion import Escape, motion, open_escapes
from admission.rules.overlap import overlap
from admission.rules.port_budget import port_budget
from admission.rules.precopy import converge, precopy, threshold_Bps
from admission.rules.prewarm import prewarm
from admission.rules.retransmit_timer import retransmit_timer
from admission.rules.sender import sender
from admission.rules.verified_rate import verified_rate
from worldline.contract import Contract, ContractClass, Tier
from worldline.manifest import Fingerprint
from worldline.plan import Placement
from worldline.verdict import Clause, Kind

BULK = Contract(ContractClass.C3, 0.0, Tier.T0)
BUSY = (InFlight("m-1", 0.2, state_bytes=1 << 30),)


def found(clause: Clause) -> tuple[Kind, str]:
    return clause.verdict, clause.reason


# --- cost


def test_every_stage_is_in_the_sum() -> None:
    asked = on(25, setup_s=0.02, codec=ANS, slot_warm=False, first_touch_s=0.05, quantum_s=0.01, exposed_s=0.03)
    assert deadline_gate(asked).arithmetic == (
        "0.020 s setup + 0.050 s first touch + 0.010 s quantum there + 0.007 s encode + 0.030 s exposed + "
        "0.644 x 1670124960 B / 3.125e+09 B/s + 0.007 s decode = 0.468 s >= 0.4 s horizon; "
        "B of at least 2.689e+09 B/s and a short setup are needed"
    )
    live = on(100, mode=Mode.LIVE, setup_s=0.02)
    assert "1670124960 B / (1.25e+10 - 9.3e+08) B/s = 0.164 s" in deadline_gate(live).arithmetic


def test_moves_into_one_port_share_it() -> None:
    two = on(100, mover_moves=BUSY)
    assert (fan_in(two), wire_Bps(two)) == (2, on(100).bandwidth_Bps / 2)
    assert "1670124960 B / 6.25e+09 B/s, shared by 2" in deadline_gate(two).arithmetic


def test_ceilings_hold_the_wire_down() -> None:
    assert wire_Bps(on(100, ceiling_Bps=4e9)) == 4e9
    assert wire_Bps(on(100, stream_Bps=2e9, streams=3)) == 6e9
    assert wire_Bps(on(100, ceiling_Bps=1e12, stream_Bps=1e12)) == on(100).bandwidth_Bps


def test_a_slow_source_slows_the_wire() -> None:
    slow = replace(CRC_ENGINE, threads=1)
    assert predict(on(100, source_crc=slow)).wire_s == pytest.approx(MG2.state_bytes / slow.rate_Bps)


def test_what_was_measured_with_verification_is_not_charged_twice() -> None:
    asked = on(100, destination_crc=CRC_ENGINE, source_crc=CRC_ENGINE, placement=Placement.SEQUENTIAL)
    assert predict(asked).exposed_s > 0.03
    assert predict(replace(asked, verified=True)).exposed_s == 0.0
    assert "measured with verification at work" in verified_rate(replace(asked, verified=True)).arithmetic


@given(st.floats(1, 800), st.floats(1, 800), st.sampled_from([Placement.SEQUENTIAL, Placement.PIPELINED]))
def test_the_verified_rate_lies_between_its_bounds(wire: float, crc: float, placement: Placement) -> None:
    engine = replace(CRC_ENGINE, thread_Bps=crc * 1e9 / 8 / CRC_ENGINE.threads)
    numbers = verified_rate(on(wire, destination_crc=engine, placement=placement)).numbers
    assert numbers["lower_Bps"] * (1 - 1e-9) <= numbers["verified_Bps"] <= numbers["upper_Bps"] * (1 + 1e-9)


def test_a_live_move_that_never_catches_up_takes_for_ever() -> None:
    never = on(7, mode=Mode.LIVE, destination_crc=CRC_ENGINE)
    assert math.isinf(predict(never).total_s)
    assert {clause.name for clause in evaluate(never).failed} == {"deadline_gate", "flux", "precopy"}


# --- pre-copy


def test_a_live_move_says_its_rounds() -> None:
    clause = precopy(on(30.2, mode=Mode.LIVE, dirty_rate_Bps=3e9))
    assert found(clause) == (Kind.ADMIT, "")
    assert clause.arithmetic == "D/B = 3e+09 / 3.775e+09 = 0.795: 11 rounds, the last freezes for 3.53% of S <= 4.01%"
    clause = precopy(on(30.2, mode=Mode.LIVE, dirty_rate_Bps=4.2e9))
    assert found(clause) == (Kind.REJECT, "PRECOPY_DIVERGES")
    assert "diverges: 19.73% of S is still dirty after 40 rounds > 4.01%" in clause.arithmetic
    assert precopy(on(1, dirty_rate_Bps=4.2e9)).verdict is Kind.ADMIT  # frozen


def test_cold_bytes_are_dirtied_by_nobody() -> None:
    fast = on(30.2, mode=Mode.LIVE, dirty_rate_Bps=4.2e9)
    assert precopy(replace(fast, cold_bytes=int(0.97 * MG2.state_bytes))).verdict is Kind.ADMIT
    assert converge(2.0, 0.04, 40, 0.0).rounds == 2
    assert precopy(replace(fast, state_bytes=0)).verdict is Kind.ADMIT


@given(st.floats(0.01, 3), st.floats(0.001, 0.5))
def test_the_threshold_is_where_the_recursion_turns(ratio: float, stop: float) -> None:
    turns = threshold_Bps(1.0, stop)
    if ratio < turns * (1 - 1e-3):
        assert converge(ratio, stop, 100_000).rounds > 0
    elif ratio > turns * (1 + 1e-3):
        assert converge(ratio, stop, 2_000).rounds == 0


# --- verification


def test_the_receive_path_needs_what_was_told() -> None:
    alone = on(100, placement=Placement.IN_PATH)
    assert evaluate(alone).kind is Kind.ADMIT
    assert "not charged" in crc_capacity(alone).arithmetic
    assert "could not be weighed" in overlap(alone).arithmetic
    assert "p and E" in overlap(replace(alone, destination_crc=CRC_ENGINE)).arithmetic
    two = replace(alone, mover_moves=BUSY)
    assert found(crc_capacity(two)) == (Kind.REJECT, "CRC_RATE_UNKNOWN")
    assert found(retransmit_timer(two)) == (Kind.REJECT, "RETRANSMIT_FLOOR_UNKNOWN")
    assert retransmit_timer(replace(two, retransmit_floor_s=0.0)).verdict is Kind.ADMIT
    assert retransmit_timer(replace(two, placement=Placement.PIPELINED)).verdict is Kind.ADMIT


def test_capacity_is_told_in_wires() -> None:
    three = on(200, placement=Placement.IN_PATH, destination_crc=CRC_ENGINE, mover_moves=BUSY * 2)
    clause = crc_capacity(three)
    assert found(clause) == (Kind.REJECT, "CRC_CAPACITY")
    assert clause.arithmetic == (
        "3 x 2.5e+10 B/s > 5.26e+10 B/s of checksums: they keep up with 2.10 wires; check off the path"
    )


def test_overlap_that_pays() -> None:
    asked = on(100, placement=Placement.IN_PATH, destination_crc=CRC_ENGINE, episodes=Episodes(0.01, 0.536))
    assert found(overlap(asked)) == (Kind.ADMIT, "")
    assert found(overlap(replace(asked, episodes=Episodes(0.1, 0.536)))) == (Kind.REJECT, "OVERLAP_LOSES")


def test_a_codec_is_held_to_the_horizon() -> None:
    slow = Codec("zstd", 0.5, 5e9, 20e9)
    clause = codec(on(100, codec=slow))
    assert found(clause) == (Kind.REJECT, "CODEC_COSTS_HORIZON")
    assert clause.arithmetic == "zstd at r = 0.5: 0.541 s coded, 0.191 s raw, 0.4 s allowed; move raw"
    # Where raw misses too it is the gate that refuses, not the codec.
    assert codec(on(10, codec=slow)).verdict is Kind.ADMIT
    assert "its share is not known yet" in codec(on(100, codec=Codec("zstd"))).arithmetic
    assert predict(on(100, codec=Codec("zstd"))).total_s == predict(on(100)).total_s


# --- the destination


def test_a_cold_slot_pays_its_first_touch() -> None:
    cold = on(100, slot_warm=False)
    assert found(prewarm(cold)) == (Kind.REJECT, "FIRST_TOUCH_UNKNOWN")
    assert found(prewarm(replace(cold, first_touch_s=11.2))) == (Kind.REJECT, "FIRST_TOUCH_COLD")
    assert prewarm(replace(cold, first_touch_s=0.1)).arithmetic == "cold: a first touch of 0.100 s < 0.4 s"
    assert prewarm(on(100, slot_warm=True, first_touch_s=11.2)).verdict is Kind.ADMIT
    assert predict(on(100, slot_warm=True, first_touch_s=11.2)).first_touch_s == 0.0
    assert "not told" in prewarm(on(100)).arithmetic


def test_a_shared_link_must_leave_its_sessions_their_blocks() -> None:
    resident = Resident("s-9", 0.35, 0.4)
    asked = replace(MG2, residents=(resident,), host_link_shared=True)
    assert found(host_link(asked)) == (Kind.ADMIT, "")
    clause = host_link(replace(asked, residents=(replace(resident, block_s=0.36),)))
    assert found(clause) == (Kind.REJECT, "HOST_LINK")
    assert clause.arithmetic == "s-9 would take 0.36 x 1.130 = 0.4068 s a block > 0.4 s"
    suspending = replace(asked, suspending=(InFlight("s-8", 0.03),))
    assert found(host_link(suspending)) == (Kind.REJECT, "HOST_LINK")
    patient = host_link(replace(suspending, patience_s=1.0))
    assert (*found(patient), patient.retry_after_s) == (Kind.DEFER, "HOST_LINK", 0.03)
    # Waiting for the suspend does not help one that is late anyway.
    late = replace(suspending, patience_s=1.0, residents=(replace(resident, block_s=0.39),))
    assert host_link(late).verdict is Kind.REJECT
    assert host_link(replace(late, host_link_shared=False)).verdict is Kind.ADMIT
    assert "not charged" in host_link(replace(late, host_link_shared=None)).arithmetic


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2])
def test_a_weaker_tier_goes_elsewhere_only_within_a_known_bound(tier: Tier) -> None:
    elsewhere = replace(
        MG2, contract=replace(MG2.contract, tier=tier), destination_fingerprint=Fingerprint({"torch": "2.13.0"})
    )
    assert "takes equal fingerprints only" in fingerprint(elsewhere).arithmetic
    taken = replace(elsewhere, inexact_tiers=frozenset({tier}))
    assert found(fingerprint(taken)) == (Kind.REJECT, "FINGERPRINT_MISMATCH")
    assert "none was measured between these two" in fingerprint(taken).arithmetic
    bounded = replace(taken, readout_floor_dB=paper.READOUT_WORST_DB)
    clause = fingerprint(bounded)
    assert clause.verdict is Kind.ADMIT
    assert "readout of at least 43 dB" in clause.arithmetic
    assert "gpu" in clause.arithmetic
    assert fingerprint(replace(bounded, destination_presets=frozenset())).verdict is Kind.REJECT
    exact = replace(bounded, contract=MG2.contract, inexact_tiers=frozenset(Tier))
    assert found(fingerprint(exact)) == (Kind.REJECT, "FINGERPRINT_MISMATCH")
    assert fingerprint(replace(elsewhere, destination_fingerprint=MG2.source_fingerprint)).verdict is Kind.ADMIT


# --- others on the wire


def test_full_cache_moves_never_pass_each_other() -> None:
    asked = replace(MG2, opposite_moves=BUSY)
    assert found(duplex(asked)) == (Kind.REJECT, "DUPLEX")
    patient = duplex(replace(asked, patience_s=0.5))
    assert (*found(patient), patient.retry_after_s) == (Kind.DEFER, "DUPLEX", 0.2)
    assert patient.arithmetic == "1 full-cache moves the other way, the last is m-1; over in 0.200 s <= 0.5 s patience"
    assert duplex(replace(asked, state_bytes=1 << 20)).verdict is Kind.ADMIT
    assert duplex(replace(asked, opposite_moves=(InFlight("m-1", 0.2, state_bytes=1 << 20),))).verdict is Kind.ADMIT
    stalled = duplex(replace(asked, opposite_moves=(replace(BUSY[0], stalled=True),)))
    assert "no end of it is known" in stalled.arithmetic


def test_full_cache_moves_leave_a_node_one_by_one() -> None:
    asked = replace(MG2, sender_moves=BUSY)
    assert found(sender(asked)) == (Kind.REJECT, "SENDER_BUSY")
    patient = sender(replace(asked, patience_s=0.5))
    assert (*found(patient), patient.retry_after_s) == (Kind.DEFER, "SENDER_BUSY", 0.2)
    assert patient.arithmetic.startswith(
        "1 full-cache moves out of the source's node, the last is m-1; over in 0.200 s"
    )
    assert sender(replace(asked, state_bytes=1 << 20)).verdict is Kind.ADMIT
    assert sender(replace(asked, sender_moves=(InFlight("m-1", 0.2, state_bytes=1 << 20),))).verdict is Kind.ADMIT


def test_flows_into_a_port_share_its_budget() -> None:
    other = PortMove("m-2", 2_000_000_000, 0.4, 0.0)
    fits = on(100, setup_s=0.0, port_moves=(other,))
    assert found(port_budget(fits)) == (Kind.ADMIT, "")
    over = replace(fits, port_moves=(other, replace(other, dirty_rate_Bps=1e9)))
    clause = port_budget(over)
    assert found(clause) == (Kind.REJECT, "PORT_BUDGET")
    assert clause.arithmetic == "4.175e+09 + 1.1e+10 B/s of 2 others > 1.25e+10 B/s of the port"
    assert port_budget(replace(over, port_moves=(replace(other, horizon_s=0.0),) * 9)).verdict is Kind.ADMIT


def test_what_only_others_forbid_is_waited_for() -> None:
    other = PortMove("m-1", 2_000_000_000, 0.4, 0.05)
    asked = on(60, setup_s=0.02, mover_moves=BUSY, port_moves=(other,), host_moves=(), patience_s=1.0)
    verdict = evaluate(asked)
    assert (verdict.kind, verdict.retry_after_s) == (Kind.DEFER, 0.2)
    assert {clause.reason for clause in verdict.failed} == {
        "PREDICTED_DEADLINE_MISS",
        "FLUX",
        "PORT_BUDGET",
        "RESPONSE_TIME",
    }
    for clause in verdict.failed:
        assert clause.arithmetic.endswith("alone on the port it passes: 1 moves are over in 0.200 s <= 1 s patience")
    assert evaluate(replace(asked, patience_s=0.1)).kind is Kind.REJECT
    # Alone it would miss too: waiting changes nothing.
    assert evaluate(replace(asked, bandwidth_Bps=3e9)).kind is Kind.REJECT


# --- whether to move at all


@pytest.mark.parametrize(
    ("contract", "escapes", "expected"),
    [
        (MG2.contract, Escapes(replay_s=0.5, restart_s=0.1, reduced_ratio=0.5), set()),
        (MG2.contract, Escapes(replay_s=0.3), {Escape.REPLAY}),
        (replace(MG2.contract, tier=Tier.T1), Escapes(reduced_ratio=0.5), {Escape.REDUCE}),
        (replace(MG2.contract, tier=Tier.T1), Escapes(), set()),
        (BULK, Escapes(restart_s=5.0), {Escape.RESTART}),
        (BULK, Escapes(restart_s=5000.0), set()),
        (replace(MG2.contract, contract_class=ContractClass.C2B), Escapes(restart_s=0.1), {Escape.RESTART}),
        (Contract(ContractClass.C4, 0.0, Tier.T0), Escapes(replay_s=500.0, restart_s=1.0), {Escape.REPLAY}),
    ],
)
def test_the_escapes_of_each_class(contract: Contract, escapes: Escapes, expected: set[Escape]) -> None:
    asked = replace(MG2, contract=contract, escapes=escapes)
    assert set(open_escapes(asked)) == expected
    clause = motion(asked)
    assert clause.verdict is Kind.ADMIT
    assert clause.arithmetic.startswith("not forced: " if expected else "motion is forced")


def test_the_motion_criterion_in_words() -> None:
    asked = replace(MG2, escapes=Escapes(UpdateRule.WINDOW_REWRITE, replay_s=12.0))
    assert motion(asked).arithmetic == (
        "motion is forced: T0 bears no reduction, replay takes 12 s, a restart loses what C1 is for; "
        "window rewrite: most of it is rewritten each block, no prefix is clean"
    )
    assert motion(MG2).arithmetic.startswith("motion is forced as far as is known: ")
    easy = replace(asked, contract=BULK, escapes=Escapes(restart_s=1.0))
    assert motion(easy).arithmetic == "not forced: restart (1 s < 1000 s, and no trajectory is lost) is open"


def test_a_move_must_save_more_than_it_costs() -> None:
    cost_s = predict(on(100)).total_s
    assert "nothing to weigh" in hysteresis(on(100)).arithmetic
    assert found(hysteresis(on(100, benefit_s=cost_s * 1.01))) == (Kind.ADMIT, "")
    assert found(hysteresis(on(100, benefit_s=cost_s))) == (Kind.REJECT, "NOT_WORTH_IT")
    assert found(hysteresis(on(100, benefit_s=cost_s * 1.2, hysteresis=0.25))) == (Kind.REJECT, "NOT_WORTH_IT")

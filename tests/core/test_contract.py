from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import wire
from worldline.contract import Contract, ContractClass, Tier
from worldline.errors import BadRequest, Mismatch
from worldline.manifest import Fingerprint
from worldline.verdict import Clause, Kind, compose


@given(st.sampled_from(ContractClass), st.floats(0, 1000), st.sampled_from(Tier))
def test_coherent_or_refused(kind: ContractClass, horizon_s: float, tier: Tier) -> None:
    coherent = (horizon_s > 0) == kind.has_deadline and (kind is not ContractClass.C4 or tier is Tier.T0)
    if coherent:
        contract = Contract(kind, horizon_s, tier)
        assert wire.contract_from(wire.contract_to(contract)) == contract
    else:
        with pytest.raises(BadRequest, match="incoherent"):
            Contract(kind, horizon_s, tier)


@pytest.mark.parametrize("horizon_s", [float("nan"), float("inf"), -1.0, 1e9])
def test_impossible_horizons(horizon_s: float) -> None:
    with pytest.raises(BadRequest):
        Contract(ContractClass.C1, horizon_s, Tier.T0)


def test_every_difference_of_fingerprints_is_listed() -> None:
    ours = Fingerprint({"torch": "2.13.0", "cpu": "zen4", "threads": "1"})
    theirs = Fingerprint({"torch": "2.12.0", "cpu": "zen4", "flags": "x"})
    with pytest.raises(Mismatch) as caught:
        ours.require_equal(theirs)
    assert set(caught.value.violations) == {"fingerprint.torch", "fingerprint.threads", "fingerprint.flags"}
    ours.require_equal(Fingerprint(dict(ours.fields)))


def test_a_fingerprint_with_a_wrong_digest_is_refused() -> None:
    message = wire.fingerprint_to(Fingerprint({"torch": "1"}))
    message.fields["torch"] = "2"
    with pytest.raises(BadRequest, match="digest"):
        wire.fingerprint_from(message)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.floats(0, 100)), min_size=1, max_size=6))
def test_verdicts_compose(rows: list[tuple[Kind, float]]) -> None:
    clauses = [
        Clause(f"rule{number}", kind, "", retry_after_s=wait if kind is Kind.DEFER else 0.0)
        for number, (kind, wait) in enumerate(rows)
    ]
    verdict = compose(clauses)
    kinds = {kind for kind, _ in rows}
    assert (verdict.kind is Kind.ADMIT) == (kinds == {Kind.ADMIT})
    assert (verdict.kind is Kind.REJECT) == (Kind.REJECT in kinds)
    assert wire.verdict_from(wire.verdict_to(verdict)) == verdict
    assert len(verdict.failed) == sum(kind is not Kind.ADMIT for kind, _ in rows)

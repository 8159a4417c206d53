"""Fingerprint and tier: a state goes on exactly only where what it runs on is equal (paper §6.1).

T0 needs equality. T1 bears a bounded readout and T2 a statistical one (Appendix B, G): they may go elsewhere, but only
to a host that takes them so, and only where the bound is known for these two fingerprints.
"""

from __future__ import annotations

from admission.rules.question import Question
from worldline.contract import Tier
from worldline.verdict import Clause, Kind

NAME = "fingerprint"


def fingerprint(question: Question) -> Clause:
    """ADMIT equal fingerprints, and a bounded difference that tier and destination bear; REJECT lists the rest."""
    tier = question.contract.tier
    differences = question.source_fingerprint.differences(question.destination_fingerprint)
    found = [f"{name}: {what}" for name, what in differences.items()]
    served = question.preset in question.destination_presets
    if not served:
        found.append(f"preset: {question.preset!r} is not served there")
    numbers = {"differences": float(len(found))}
    if not found:
        text = f"{len(question.source_fingerprint.fields)} fields equal, as T0 needs"
        return Clause(NAME, Kind.ADMIT, text, numbers)
    listed = "; ".join(found)
    why = "T0 needs equal fingerprints"
    if tier is not Tier.T0:
        floor_dB = question.readout_floor_dB
        if tier not in question.inexact_tiers:
            why = f"{tier.name} bears a bounded readout, but this host takes equal fingerprints only"
        elif floor_dB is None:
            why = f"{tier.name} bears a bounded readout, but none was measured between these two"
        else:
            numbers["readout_floor_dB"] = floor_dB
            why = f"{tier.name} bears the readout of at least {floor_dB:g} dB measured between these two"
            if served:
                return Clause(NAME, Kind.ADMIT, f"{why}; {listed}", numbers)
    return Clause(NAME, Kind.REJECT, f"{why}; {listed}", numbers, reason="FINGERPRINT_MISMATCH")

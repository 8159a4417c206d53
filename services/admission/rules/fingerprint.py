"""Fingerprint: a state goes on exactly only where what it runs on is equal, and where its preset is served."""

from __future__ import annotations

from admission.rules.question import Question
from worldline.contract import Tier
from worldline.verdict import Clause, Kind

NAME = "fingerprint"


def fingerprint(question: Question) -> Clause:
    """ADMIT if both fingerprints are equal and the destination serves the preset; REJECT lists every difference."""
    tier = question.contract.tier
    # The weaker tiers come with rules of their own; until then a move must be exact for them too.
    why = "T0 needs" if tier is Tier.T0 else f"{tier.name} is held to T0 in this release, which needs"
    differences = question.source_fingerprint.differences(question.destination_fingerprint)
    found = [f"{name}: {what}" for name, what in differences.items()]
    if question.preset not in question.destination_presets:
        found.append(f"preset: {question.preset!r} is not served there")
    numbers = {"differences": float(len(found))}
    if not found:
        return Clause(
            NAME,
            Kind.ADMIT,
            f"{why} equal fingerprints: {len(question.source_fingerprint.fields)} fields equal",
            numbers,
        )
    return Clause(
        NAME, Kind.REJECT, f"{why} equal fingerprints; {'; '.join(found)}", numbers, reason="FINGERPRINT_MISMATCH"
    )

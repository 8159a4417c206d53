"""Admission: placement, verdicts, leases, the move journal and the commit decision of a fleet."""

from __future__ import annotations

"""Fixtures of the mover's tests."""

from __future__ import annotations

from worldline.testing.leaks import no_leaks

__all__ = ["no_leaks"]

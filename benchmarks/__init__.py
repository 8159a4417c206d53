"""Benchmarks: each figure stands beside a ceiling measured in the same run."""

from __future__ import annotations

"""The `worldline` command."""

from __future__ import annotations

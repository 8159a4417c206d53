"""Tests that need a GPU are not even imported by lanes that leave them out: their imports need its driver."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore these files where the chosen markers say `not cuda`; `make test-cuda` fails where there is no GPU."""
    left_out = "not cuda" in config.getoption("markexpr")
    return True if left_out and collection_path.suffix == ".py" else None

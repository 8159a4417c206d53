"""Fixtures of admission's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admission_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    opened = Cluster(tmp_path)
    yield opened
    opened.close()

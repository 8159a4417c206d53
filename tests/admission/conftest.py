"""Fixtures of admission's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admission_cluster import Cluster
from journal_tools import lead
from postgres_server import Server

from admission.journal import Journal


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    opened = Cluster(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server."""
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def in_file(tmp_path: Path) -> Iterator[Journal]:
    """A journal in a file."""
    opened = Journal(tmp_path / "j.db", keep=100)
    yield opened
    opened.close()


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.postgres)])
def journal(request: pytest.FixtureRequest) -> Iterator[Journal]:
    """A journal of either kind: both must do the same."""
    if request.param == "file":
        yield request.getfixturevalue("in_file")
        return
    opened = Journal(lead(request.getfixturevalue("postgres").new_journal()), keep=100)
    yield opened
    opened.close()

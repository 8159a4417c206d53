"""Fleets of real processes for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_tools import QUICK_TIMERS

from worldline.client import Client
from worldline.fleet import ONE_NODE, TWO_NODES, Fleet

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.fixture(scope="session")
def _support_on_path() -> Iterator[None]:
    """Engine hosts of these tests find a third party's engine."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SUPPORT), before)))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, _support_on_path: None) -> Iterator[Fleet]:
    """Two nodes, tcp between them, faults allowed. Shared by all files here: leave it as you found it."""
    with Fleet(tmp_path_factory.mktemp("fleet"), TWO_NODES, fault_injection=True) as running:
        yield running


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory, _support_on_path: None) -> Iterator[Fleet]:
    """One node with two engine hosts: same-host memory between them."""
    with Fleet(tmp_path_factory.mktemp("node"), ONE_NODE, fault_injection=True) as running:
        yield running


@pytest.fixture
def own_fleet(tmp_path: Path, _support_on_path: None) -> Iterator[Fleet]:
    """Two nodes for one test, which may kill what it likes."""
    with Fleet(tmp_path / "fleet", TWO_NODES, fault_injection=True, options=QUICK_TIMERS) as running:
        yield running


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.target) as opened:
        yield opened

"""What the tests of rdma share. They need a verbs device and fail without one; `make test-rdma` gives them one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rdma_tools import Resources, resources

from mover.transports.rdma import sysfs
from worldline.testing.leaks import no_leaks

__all__ = ["no_leaks"]

LAB = Path(__file__).resolve().parent / "lab"


@pytest.fixture(scope="session")
def devices() -> tuple[str, str]:
    """The devices of two hosts; on a machine with one device it stands for both."""
    active = [port.device for name in sysfs.devices() for port in sysfs.ports(name) if port.active]
    assert active, "no verbs device with an active port: run 'make test-rdma', which makes one"
    return active[0], active[-1]


@pytest.fixture
def wire() -> Iterator[Callable[[str], None]]:
    """Shape the wire between the two hosts of the lab by netem's words; whole again after the test."""
    if not os.environ.get("WORLDLINE_LAB"):
        pytest.fail("only the lab's wire may be shaped: run 'make test-rdma' on a machine without a verbs device")

    def shape(how: str) -> None:
        for name in ("va", "vb"):
            subprocess.run(["tc", "qdisc", "replace", "dev", name, "root", "netem", *how.split()], check=True)

    yield shape
    for name in ("va", "vb"):
        subprocess.run(["tc", "qdisc", "del", "dev", name, "root"], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    subprocess.run(["bash", str(LAB / "routes.sh")], check=True)


@pytest.fixture(scope="module", autouse=True)
def _no_resources_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the module if the kernel counts more queue pairs, registrations and so on after it than before."""
    if request.node.get_closest_marker("rdma") is None:
        yield
        return
    before = resources()
    yield
    left: Resources = resources()
    assert left == before, f"the kernel counts {left}, before the test it was {before}"

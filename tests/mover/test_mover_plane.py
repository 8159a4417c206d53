"""The data plane as its mover sees it: one warm child that dies with its mover and is replaced when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mover_fakes import until

from mover import plane as plane_module
from mover.messages import PlaneConfig
from mover.plane import DataPlane
from mover.probe import probe
from mover.stop import Stop
from worldline.errors import BadRequest, Cancelled, Exhausted, Unavailable, Unsupported
from worldline.move import new_token
from worldline.plan import Placement, Plan
from worldline.transport import Terms

pytestmark = pytest.mark.usefixtures("no_leaks")

PLAN = Plan("tcp", 4096, 1, Placement.PIPELINED, 20, 20, 20)
TERMS = Terms("0f4e1d6a-50c2-4d7a-8a87-3f0d3a6a9b10", new_token(), 1, 20.0)


@pytest.fixture
def plane() -> Iterator[DataPlane]:
    running = DataPlane(PlaneConfig())
    running.start()
    yield running
    running.close()


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("worldline-test")
    os.ftruncate(made, 1 << 20)
    yield made
    os.close(made)


@pytest.mark.parametrize("transport", ["tcp", "local"])
def test_the_probe_passes_and_leaves_nothing(plane: DataPlane, transport: str) -> None:
    for _ in range(3):
        probe(plane, transport)
    assert plane.mapped_regions == 0
    maps = Path(f"/proc/{plane.pid}/maps").read_text()
    assert "memfd" not in maps


def test_the_child_is_light(plane: DataPlane) -> None:
    """It must start in a blink, so it must not load what only the mover needs."""
    code = "import mover.dataplane, sys; print([m for m in ('grpc', 'torch', 'numpy', 'pydantic') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    assert "grpc" not in Path(f"/proc/{plane.pid}/maps").read_text()


def test_a_child_that_dies_is_replaced(plane: DataPlane, descriptor: int) -> None:
    job = plane.open()
    job.map(Stop(), descriptor, 1 << 20, writable=True)
    before = plane.pid
    os.kill(before, signal.SIGKILL)
    with pytest.raises(Unavailable) as error:
        job.listen(Stop(), PLAN, TERMS)
    assert error.value.reason == "DATA_PLANE_DIED"
    assert error.value.retry_after_s
    job.close()
    until("a new child is ready", lambda: plane.pid not in (0, before))
    assert plane.starts == 2
    probe(plane, "tcp")


def test_a_child_that_does_not_unmap_is_killed(
    plane: DataPlane, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped child could write into the slot when it wakes: it never does."""
    monkeypatch.setattr(plane_module, "CLOSE_S", 0.3)
    job = plane.open()
    job.map(Stop(), descriptor, 1 << 20, writable=True)
    before = plane.pid
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="not unmapped"):
        job.close()
    until("it is gone", lambda: not psutil.pid_exists(before))
    until("a new child is ready", lambda: plane.pid != 0)


def test_a_move_that_must_end_wakes_what_waits(plane: DataPlane, descriptor: int) -> None:
    stop = Stop()
    job = plane.open()
    job.map(stop, descriptor, 1 << 20, writable=True)
    job.listen(stop, PLAN, TERMS)
    threading.Timer(0.1, lambda: stop.tell(Cancelled("enough"))).start()
    with pytest.raises(Cancelled, match="enough"):
        job.run(stop, 20.0, lambda progress: None)
    job.close()
    assert plane.mapped_regions == 0


def test_what_the_child_refuses_is_told_with_its_class(plane: DataPlane, descriptor: int) -> None:
    job = plane.open()
    with pytest.raises(BadRequest) as small:
        job.map(Stop(), descriptor, 1 << 40, writable=True)
    assert small.value.reason == "REGION_TOO_SMALL"
    assert small.value.numbers == {"held_bytes": 1 << 20, "size_bytes": 1 << 40}
    job.map(Stop(), descriptor, 1 << 20, writable=True)
    with pytest.raises(Unsupported):
        job.listen(Stop(), Plan("tcp", 4096, 1, Placement.DEVICE, 20, 20, 20), TERMS)
    job.close()


def test_a_setting_that_the_child_refuses_ends_the_start() -> None:
    plane = DataPlane(PlaneConfig(congestion="nonesuch"))
    with pytest.raises(Exhausted):
        plane.start()
    plane.close()


def test_the_child_dies_with_its_mover(tmp_path: Path) -> None:
    """Also when it is stopped, so that it cannot see its socket close."""
    code = (
        "import time; from mover.plane import DataPlane; from mover.messages import PlaneConfig\n"
        "from worldline import telemetry; telemetry.configure('mover', 'test')  # logs go to stderr\n"
        "plane = DataPlane(PlaneConfig()); plane.start(); print('pid', plane.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as mover:
        assert mover.stdout is not None
        child = next(int(line.split()[1]) for line in mover.stdout if line.startswith("pid"))
        os.kill(child, signal.SIGSTOP)
        mover.kill()
    until("the child is gone", lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

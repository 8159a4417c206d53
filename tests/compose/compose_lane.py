"""A container engine and the fleet of compose.yaml in it, for the tests of the compose lane."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAB = Path(__file__).parent / "lab"
WHEELS = ROOT / "docker" / "wheels"
BUILD_S = 600
UP_S = 240


class LaneError(Exception):
    """The lane cannot run here; the message says why and what to do."""


def _run(command: list[str], *, env: dict[str, str] | None = None, timeout_s: float) -> str:
    """Standard output of a command. Raises LaneError with what it said if it fails."""
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s)
    if ran.returncode != 0:
        said = "\n".join((ran.stdout + ran.stderr).splitlines()[-60:])
        raise LaneError(f"{' '.join(command)} ended with status {ran.returncode}:\n{said}")
    return ran.stdout


def _answers(env: dict[str, str]) -> bool:
    """Whether a container engine and compose v2 answer in this environment."""
    if shutil.which("docker") is None:
        return False
    for command in (["docker", "version"], ["docker", "compose", "version"]):
        if subprocess.run(command, env=env, capture_output=True, timeout=60).returncode != 0:
            return False
    return True


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """The environment in which `docker` works: the machine's own engine, else one made for this run.

    COMPOSE_ENGINE_DIR names a directory that keeps such an engine's images for the next run.
    """
    env = dict(os.environ)
    if _answers(env):
        yield env
        return
    kept = os.environ.get("COMPOSE_ENGINE_DIR")
    directory = kept or tempfile.mkdtemp(prefix="compose-")
    try:
        exports = _run([str(LAB / "engine-up.sh"), directory], timeout_s=600)
    except LaneError as error:
        raise LaneError(f"no container engine answers here, and none could be made: {error}") from None
    for export in exports.replace("'", "").split()[1:]:
        name, _, value = export.partition("=")
        env[name] = value
    try:
        yield env
    finally:
        _run([str(LAB / "engine-down.sh"), directory], timeout_s=60)
        if not kept:
            shutil.rmtree(directory)


@contextmanager
def torch_wheel() -> Iterator[None]:
    """Lends the build a CPU wheel of torch from this machine's find-links; without one the build uses the CPU index."""
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    if not links:
        asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        links = subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.split()
    found = [wheel for link in links for wheel in Path(link).glob("torch-*+cpu-cp311-cp311-*.whl")]
    if not found or any(WHEELS.glob("torch-*.whl")):
        yield
        return
    lent = WHEELS / max(found).name
    shutil.copyfile(max(found), lent)
    try:
        yield
    finally:
        lent.unlink()


class Fleet:
    """The fleet of compose.yaml with the test's override."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env | {"WORLDLINE_FAULT_INJECTION": "true", "DOCKER_BUILDKIT": "1"}

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        """Output of `docker compose ARGUMENTS`."""
        files = ["-f", "compose.yaml", "-f", "tests/compose/override.yaml"]
        command = ["docker", "compose", "--project-name", "worldline-test", *files, *arguments]
        return _run(command, env=self._env, timeout_s=timeout_s)

    def docker(self, *arguments: str) -> str:
        """Output of `docker ARGUMENTS`."""
        return _run(["docker", *arguments], env=self._env, timeout_s=60)

    @contextmanager
    def up(self) -> Iterator[None]:
        """Build, bring up, and take down again with the volumes."""
        try:
            with torch_wheel():
                self.compose("build", timeout_s=BUILD_S)
            try:
                self.compose("up", "--detach", "--wait", "--wait-timeout", str(UP_S), timeout_s=UP_S + 60)
            except LaneError as error:
                raise LaneError(f"{error}\nlogs:\n{self.compose('logs', '--no-color', '--tail', '40')}") from None
            yield
        finally:
            self.compose("down", "--volumes", "--timeout", "10")

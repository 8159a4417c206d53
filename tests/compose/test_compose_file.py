"""compose.yaml against the services' settings: a variable that a service does not know stops it at its start."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from worldline.settings import ServiceSettings, load

COMPOSE = (Path(__file__).parents[2] / "compose.yaml").read_text()
SETTINGS = {
    "admission": ("admission.settings", "AdmissionSettings"),
    "mover-a": ("mover.settings", "MoverSettings"),
    "mover-b": ("mover.settings", "MoverSettings"),
    "host-a": ("enginehost.settings", "EngineHostSettings"),
    "host-b": ("enginehost.settings", "EngineHostSettings"),
    "mover-rdma": ("mover.settings", "MoverSettings"),
    "host-rdma": ("enginehost.settings", "EngineHostSettings"),
}


def _environment(service: str) -> dict[str, str]:
    """What compose.yaml sets for a service, with the defaults of its interpolations."""
    (block,) = re.findall(rf"^  {service}:\n((?:    .*\n)+)", COMPOSE, re.MULTILINE)
    found = dict(re.findall(r"^      (WORLDLINE_\w+): (.+)$", block, re.MULTILINE))
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in found.items()}


@pytest.mark.parametrize("service", SETTINGS)
def test_each_service_knows_its_variables(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = SETTINGS[service]
    kind: type[ServiceSettings] = getattr(import_module(module), name)
    environment = _environment(service)
    assert environment
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    loaded = load(kind)
    assert loaded.listen.startswith("0.0.0.0:")
    assert not loaded.fault_injection


def test_both_nodes_are_alike() -> None:
    for first, second in (("mover-a", "mover-b"), ("host-a", "host-b")):
        alike = {name: value.replace("-a", "-b").replace("7411", "7412") for name, value in _environment(first).items()}
        assert alike == _environment(second)


def test_images_from_elsewhere_are_pinned() -> None:
    images = re.findall(r"^\s+image: (\S+)$", COMPOSE, re.MULTILINE)
    foreign = [image for image in images if not image.startswith("worldline")]
    assert foreign
    assert all(re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", image) for image in foreign), foreign

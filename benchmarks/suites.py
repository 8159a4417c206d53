"""The suites by name: each is a module with a function `run(setup) -> Figures`, loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from benchmarks.suite import Suite
from worldline.errors import NotFound, Unsupported

# Name -> (module, what it measures).
SUITES: Mapping[str, tuple[str, str]] = {
    "move": ("benchmarks.moving", "one move until receipts and until commit, beside raw sockets and memory copies"),
    "verification": ("benchmarks.verification", "every placement beside verify off, on a link of 10 Gb/s"),
    "codec": ("benchmarks.coded", "a coded move beside a raw one, on a link of 2.5 Gb/s"),
    "fan-in": ("benchmarks.fan_in", "several moves into one receiver at once, chunk by chunk, on a link of 10 Gb/s"),
    "duplex": ("benchmarks.duplex", "two moves in opposite directions at once"),
    "save-load": ("benchmarks.save_load", "torch.save and torch.load of the same state"),
    "safetensors": ("benchmarks.safetensors_files", "safetensors files of the same state"),
    "grpc": ("benchmarks.grpc_stream", "the same bytes in gRPC messages, with and without checksums"),
    "peers": ("benchmarks.peers", "NIXL and Mooncake over TCP, bare and with checksums added"),
    "tiny": ("benchmarks.tiny", "whether benchmarks run here at all: a small transfer, in a second"),
}
ALL = "all"
# Those that run over a link of a rate that can be chosen.
SHAPED = ("verification", "codec", "fan-in")
# Installed by the extra `bench`.
_EXTRA = ("torch", "safetensors", "matplotlib")


def names(asked: list[str]) -> list[str]:
    """The suites that were asked for, each once. `all` is every one but `tiny`.

    Raises:
        NotFound: there is no suite of that name.
    """
    found: list[str] = []
    for name in asked:
        if name != ALL and name not in SUITES:
            raise NotFound(
                f"no suite is named {name[:64]!r}; there are {', '.join(SUITES)} and {ALL}", reason="UNKNOWN_SUITE"
            )
        found += [each for each in SUITES if each != "tiny"] if name == ALL else [name]
    return list(dict.fromkeys(found))


def load(name: str) -> Suite:
    """The suite's function. Raises Unsupported if a package that it needs is not installed."""
    try:
        suite: Suite = import_module(SUITES[name][0]).run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _EXTRA:
            raise Unsupported(
                f"the suite {name} needs {error.name}: pip install -e '.[bench]'", reason="BENCH_NOT_INSTALLED"
            ) from error
        raise
    return suite

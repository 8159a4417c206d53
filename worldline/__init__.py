"""Worldline moves live world-model sessions between engine hosts: bit-identical, or nothing is installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worldline.client import AsyncClient, Client
    from worldline.errors import WorldlineError

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "WorldlineError", "__version__"]

_HOME = {"Client": "worldline.client", "AsyncClient": "worldline.client", "WorldlineError": "worldline.errors"}


def __getattr__(name: str) -> object:
    # Lazy, so that the data plane can import `worldline.crc` without paying for gRPC.
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'worldline' has no attribute {name!r}")

"""Engines that ship with the engine host; others come by the entry-point group `worldline.engines`."""

from __future__ import annotations

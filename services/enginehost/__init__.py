"""The engine host: owns the sessions of one device, plays them, and gives them away or takes them over exactly."""

from __future__ import annotations

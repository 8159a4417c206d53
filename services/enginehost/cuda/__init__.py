"""Slots, checksums and pulls on a CUDA device. Imported only by a host whose `device` is one."""

from __future__ import annotations

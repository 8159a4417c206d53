"""Byte planes of arrays of numbers: plane j holds byte j of every element, least significant first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Plane: TypeAlias = "npt.NDArray[np.uint8]"

_ELEMENTS = {1: "u1", 2: "<u2", 4: "<u4"}
_GLANCE_BYTES = 4096


def is_zero(data: memoryview) -> bool:
    """Whether every byte is 0. What is not is mostly seen at the first glance."""
    with data[:_GLANCE_BYTES] as first:
        if np.frombuffer(first, np.uint8).any():
            return False
    words = len(data) // 8 * 8
    with data[:words] as most, data[words:] as rest:
        return not np.frombuffer(most, np.uint64).any() and not any(rest)


def split(data: memoryview, width: int) -> list[Plane]:
    """The planes of `data`, whose elements have `width` bytes; copies, except for a width of 1."""
    elements = np.frombuffer(data, _ELEMENTS[width])
    if width == 1:
        return [elements]
    return [(elements >> 8 * number if number else elements).astype(np.uint8) for number in range(width)]


def join(into: memoryview, planes: Sequence[Plane | None]) -> None:
    """Fill `into` from its planes; None is a plane of zeros."""
    elements = np.frombuffer(into, _ELEMENTS[len(planes)])
    *lower, top = planes
    if top is None:
        elements.fill(0)
    else:
        np.copyto(elements, top)
    for plane in reversed(lower):
        np.left_shift(elements, 8, out=elements)
        if plane is not None:
            np.bitwise_or(elements, plane, out=elements)

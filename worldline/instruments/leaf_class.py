"""Leaves alike but for the numbers in their paths: one row of a table instead of one for each layer."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?:(?<=^)|(?<=/))(?:\d+|\[\d+\]|\(\d+\))(?=/|$)")


def class_name(path: str) -> str:
    """`layers/*/self/k` of `layers/03/self/k`: every key that is a number, and every index, is a star."""
    return _NUMBER.sub("*", path)

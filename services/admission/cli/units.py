"""Numbers on the command line: sizes with powers of ten, rates as links are rated, lists of them."""

from __future__ import annotations

import argparse
import math

_POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def amount(text: str) -> float:
    """A number above 0, with K, M, G or T for powers of ten; for argparse."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def not_negative(text: str) -> float:
    """A number from 0 on, with K, M, G or T for powers of ten; for argparse."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return value


def amounts(text: str) -> tuple[float, ...]:
    """Numbers above 0, separated by commas; for argparse."""
    return tuple(amount(part) for part in text.split(","))


def _number(text: str) -> float:
    digits, power = text.strip().removesuffix("B"), 1.0
    if digits and digits[-1].upper() in _POWERS:
        digits, power = digits[:-1], _POWERS[digits[-1].upper()]
    try:
        value = float(digits) * power
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 25, 0.4 or 1.67G")
    return value

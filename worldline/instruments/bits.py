"""What the bits of floating-point numbers mean, and how to flip one."""

from __future__ import annotations

import enum

import torch

# dtype -> (bits of the mantissa, bits of the exponent); above them is the sign. Others are left out of batteries.
FORMATS = {
    torch.float64: (52, 11),
    torch.float32: (23, 8),
    torch.float16: (10, 5),
    torch.bfloat16: (7, 8),
    torch.float8_e5m2: (2, 5),
    torch.float8_e4m3fn: (3, 4),
}


class BitClass(enum.Enum):
    """What a bit of a floating-point number means."""

    SIGN = "sign"
    EXPONENT = "exponent"
    MANTISSA = "mantissa"


def bits_of(dtype: torch.dtype, bit_class: BitClass) -> range:
    """The bits of a class, counted from the least significant."""
    mantissa, exponent = FORMATS[dtype]
    return {
        BitClass.MANTISSA: range(mantissa),
        BitClass.EXPONENT: range(mantissa, mantissa + exponent),
        BitClass.SIGN: range(mantissa + exponent, mantissa + exponent + 1),
    }[bit_class]


def flip_bit(leaf: torch.Tensor, index: tuple[int, ...], bit: int) -> None:
    """Flip one bit of one element, in place."""
    element = leaf[index].reshape(1)
    raw = element.clone().view(torch.uint8)
    raw[bit // 8] ^= 1 << bit % 8
    element.copy_(raw.view(leaf.dtype))

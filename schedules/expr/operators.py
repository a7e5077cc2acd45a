"""What operators mean on numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def left_shift(a: Any, b: Any) -> Any:
    """``a << b`` as numpy has it: 0 where ``b`` is below 0 or not below the number of bits. Python's numbers
    count as of 64 bits: of 32, what is left is 0 from 32 on."""
    if isinstance(a, int) and isinstance(b, int):
        return a << b if 0 <= b < 64 else 0
    return np.left_shift(a, b)


def right_shift(a: Any, b: Any) -> Any:
    """``a >> b`` as numpy has it: 0 or -1, by the sign of ``a``, where ``b`` is below 0 or not below the
    number of bits."""
    if isinstance(a, int) and isinstance(b, int):
        return a >> (b if 0 <= b < 64 else 64)
    return np.right_shift(a, b)


# Operators of integers' bits.
BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "<<": left_shift,
    ">>": right_shift,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
# {operator: meaning on Python numbers}. Numpy's arrays have other extremes.
FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "ceildiv": lambda a, b: -(-a // b),
    **BITWISE,
    **COMPARISONS,
}
# {operator: meaning on values of elements, which may be 0, NaN and infinite}.
NUMERIC: dict[str, Callable[[Any, Any], Any]] = {
    **FOLD,
    "/": lambda a, b: a / b if b != 0 else float(np.float64(a) / np.float64(b)),
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": lambda a, b: a if a != a or a < b else b,
    "max": lambda a, b: a if a != a or a > b else b,
    "ceildiv": lambda a, b: -(-a // b) if b else 0,
}

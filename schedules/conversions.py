"""How floats of storage are widened to float32 and rounded from it, as expressions on their bits.

Both follow from the numbers of a dtype's row, so that a generator has each such dtype without a line of its
own. Rounding is to the nearest, of two to the even one. What is too large becomes infinite, or NaN where the
dtype has no infinity, as ml_dtypes has it. NaN stays NaN. No step makes a subnormal float32, which some
processors take for 0. The expressions are of `operand`, which is there several times: emit it once.
"""

from __future__ import annotations

from functools import cache

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Bits, Const, Expr, Load

_MANTISSA, _EXPONENT, _BIAS = 23, 8, 127  # of float32: bits of its parts, and what is added to exponents


def operand(dtype: str) -> Load:
    """The value that is converted."""
    return Load(".x", (), dtype)


@cache
def widened(dtype: str) -> Expr:
    """The float32 that a value of a dtype of storage is."""
    row = DTYPES[dtype]
    bits, shift = Bits("int32", operand(dtype)), _MANTISSA - row.mantissa
    if row.exponent == _EXPONENT:  # the upper part of a float32
        return Bits("float32", bits << shift)
    size = bits & (1 << row.exponent + row.mantissa) - 1
    up = _BIAS - _bias(row.exponent)
    beyond = (1 << _EXPONENT) - (1 << row.exponent)  # from the exponent of NaN to that of float32
    normal = (size << shift) + (E.select(size < _end(dtype), Const(up, "int32"), beyond) << _MANTISSA)
    # A subnormal is a mantissa without the 1 before it: added, and taken away again.
    least = (size << shift) + (up + 1 << _MANTISSA)
    small = Bits("int32", Bits("float32", least) - row.tiny)
    sign = bits >> row.exponent + row.mantissa << 31
    return Bits("float32", E.select(size < 1 << row.mantissa, small, normal) | sign)


@cache
def narrowed(dtype: str) -> Expr:
    """The value of a dtype of storage that is nearest to a float32."""
    row = DTYPES[dtype]
    x = operand("float32")
    bits, shift = Bits("int32", x), _MANTISSA - row.mantissa
    half, quiet = (1 << shift - 1) - 1, 1 << row.mantissa - 1
    if row.exponent == _EXPONENT:
        most = (1 << 8 * row.itemsize) - 1  # what is left after shifts of a negative number
        upper = bits >> shift & most
        near = bits + ((upper & 1) + half) >> shift & most
        return Bits(dtype, E.select(E.compare("!=", x, x), upper | quiet, near))
    size, up = bits & (1 << 31) - 1, _BIAS - _bias(row.exponent)
    normal = size + (((size >> shift) & 1) + (half - (up << _MANTISSA))) >> shift
    # Beside this number, float32 has the distances that subnormals have: adding it rounds to one of them.
    step = up + 1 + shift
    small = Bits("int32", Bits("float32", size) + 2.0 ** (step - _BIAS)) - (step << _MANTISSA)
    near = E.select(size < up + 1 << _MANTISSA, small, E.minimum(normal, _end(dtype)))
    if row.infinite:
        near = E.select(E.compare("!=", x, x), _end(dtype) | quiet, near)
    return Bits(dtype, near | (bits >> 31 & 1 << row.exponent + row.mantissa))


def _bias(exponent: int) -> int:
    """What is added to exponents of so many bits."""
    return (1 << exponent - 1) - 1


def _end(dtype: str) -> int:
    """The bits after those of the largest number: of infinity, or of NaN."""
    row = DTYPES[dtype]
    ones = (1 << row.exponent) - 1 << row.mantissa
    return ones if row.infinite else ones | (1 << row.mantissa) - 1

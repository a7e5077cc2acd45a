"""Widens floats of 8 bits by way of float16, which x86 widens in one instruction (F16C).

Their bits, moved up, are those of a float16. Where its exponents are counted from another number, that is a
power of two too small, subnormal numbers too. So a product with one number is all that is left to do, and it
is exact. It takes half as long as what `schedules.conversions` does in 32 bits.
"""

from __future__ import annotations

from collections.abc import Collection

from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import LLVM_TYPE, Value, literal, vector
from schedules.dtypes import DTYPES

FEATURE = "f16c"
_HALF = DTYPES["float16"]
_SIGN, _NAN = -(1 << 15), 0x7E00


def applies(dtype: str, features: Collection[str]) -> bool:
    """Whether numbers of a dtype are widened so on a target with these features."""
    row = DTYPES.get(dtype)
    if row is None or row.kind != "float" or row.itemsize != 1 or FEATURE not in features:
        return False
    return row.exponent <= _HALF.exponent and row.mantissa <= _HALF.mantissa


def widened(x: Value, s: Scopes) -> str:
    """The float32 of a value of 8 bits."""
    row, n = DTYPES[x.dtype], x.lanes
    word, half, wide = vector("i16", n), vector("half", n), vector(LLVM_TYPE["float32"], n)

    def all_lanes(number: int | str, scalar: str = "i16") -> str:
        return f"splat ({scalar} {number})" if n > 1 else str(number)

    up = _HALF.mantissa - row.mantissa
    most = (1 << row.exponent + row.mantissa) - 1 << up
    # The sign fills what lies above it, and so bit 15. What lies between is cleared.
    moved = s.emit(f"shl {word} {s.emit(f'sext {x} to {word}')}, {all_lanes(up)}")
    both = moved if most | _SIGN == -1 << up else s.emit(f"and {word} {moved}, {all_lanes(most | _SIGN)}")
    if not row.infinite:  # its largest mantissa alone is NaN
        minus = s.emit(f"or {word} {both}, {all_lanes(_SIGN)}")
        is_nan = s.emit(f"icmp eq {word} {minus}, {all_lanes(most | _SIGN)}")
        both = s.emit(f"select {vector('i1', n)} {is_nan}, {word} {all_lanes(_NAN)}, {word} {both}")
    out = s.emit(f"fpext {half} {s.emit(f'bitcast {word} {both} to {half}')} to {wide}")
    less = (1 << _HALF.exponent - 1) - (1 << row.exponent - 1)  # by which exponents are too small
    if not less:
        return out
    return s.emit(f"fmul {wide} {out}, {all_lanes(literal(2.0**less, 'float32'), 'float')}")

"""Functions of four bits, of which generators make tables.

A number of four bits has 16 values. So a function of it, such as the number that a code stands for, has 16
results, which fill a register of AVX-512 (`tables`). One instruction looks up 16 of them, where converting
and subtracting take two, and floats of four bits a dozen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import islice

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Cast, Compare, Const, Expr, Logic, Lookup, Select

# Values of four bits.
ENTRIES = 16
# Fewest operations that a look-up pays for.
OPERATIONS = 2
# Most codes of an expression that are looked at.
CODES = 8
# What may stand around a code: what is computed here, no load and no variable.
_EVALUATED = (Binary, Cast, Compare, Logic, Select)


def pays(features: Collection[str]) -> bool:
    """Whether one instruction of a target looks up 16 entries, whatever other bits an index has."""
    return "avx512f" in features


@lru_cache(1 << 12)
def table_of(e: Expr) -> Lookup | None:
    """A float32 as a table; None if it is no function of four bits, or so short that a table costs more."""
    if E.dtype_of(e) != "float32" or not any(is_byte(x) for x in E.loads(e)):
        return None
    for code in _codes(e):
        around = [x for x in _around(e, code) if not isinstance(x, Const)]
        if len(around) >= OPERATIONS and all(isinstance(x, _EVALUATED) for x in around):
            return Lookup(code, tuple(_value(e, code, n) for n in range(ENTRIES)))
    return None


def _around(e: Expr, code: Expr) -> Iterator[Expr]:
    """The parts of an expression that are not parts of ``code``."""
    if e != code:
        yield e
        for x in E.children(e):
            yield from _around(x, code)


def is_byte(x: E.Load) -> bool:
    """Whether a load is of an integer of 8 bits."""
    return DTYPES[x.dtype].itemsize == 1 and not E.is_float(x.dtype)


def _codes(e: Expr) -> list[Expr]:
    """Integers in an expression that are read and have four bits, the innermost first."""
    inside = reversed(list(E.walk(e)))
    found = (x for x in inside if E.dtype_of(x) == "int32" and E.loads(x) and _has_four_bits(x))
    return list(islice(found, CODES))


def _has_four_bits(x: Expr) -> bool:
    found = affine.value_bounds(x, {})
    return found is not None and found[0] >= 0 and found[1] < ENTRIES


def _value(e: Expr, code: Expr, n: int) -> Const:
    here = Const(n, E.dtype_of(code))
    return Const(float(E.evaluate(E.rewrite(e, lambda x: here if x == code else None), {})), "float32")

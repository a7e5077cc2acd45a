"""Functions of four bits as tables in a register.

A number of four bits has 16 values. So a function of it, such as the number that a code stands for, has 16
results, which fill a register of AVX-512. One instruction (vpermps) looks up 16 of them, where converting and
subtracting take two, and floats of four bits a dozen. It reads the lowest four bits of each lane alone, so
that a mask for them is left out.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPERMPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Cast, Compare, Const, Expr, Logic, Select

# What looks up, its lanes, and the feature that it is of.
LOOKUP = "@llvm.x86.avx512.permvar.sf.512"
ENTRIES = 16
FEATURE = "avx512f"
# Fewest operations that a look-up pays for.
OPERATIONS = 2
# Most codes of an expression that are looked at.
CODES = 8
# What may stand around a code: what is computed here, no load and no variable.
_EVALUATED = (Binary, Cast, Compare, Logic, Select)


@dataclass(frozen=True)
class Table:
    """An expression that is ``values[code]``. Of ``index`` the lowest four bits are the code."""

    index: Expr
    values: tuple[float, ...]


@lru_cache(1 << 12)
def table_of(e: Expr) -> Table | None:
    """A float32 as a table; None if it is no function of four bits, or so short that a table costs more."""
    if E.dtype_of(e) != "float32" or not any(is_byte(x) for x in E.loads(e)):
        return None
    for code in _codes(e):
        around = [x for x in _around(e, code) if not isinstance(x, Const)]
        if len(around) >= OPERATIONS and all(isinstance(x, _EVALUATED) for x in around):
            return Table(_unmasked(code), tuple(_value(e, code, n) for n in range(ENTRIES)))
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


def _unmasked(code: Expr) -> Expr:
    """A code without a mask for its lowest four bits."""
    match code:
        case Binary(op="&", a=a, b=Const(value=15)):
            return a
        case Binary(op="&", a=Const(value=15), b=b):
            return b
    return code


def _value(e: Expr, code: Expr, n: int) -> float:
    here = Const(n, E.dtype_of(code))
    return float(E.evaluate(E.rewrite(e, lambda x: here if x == code else None), {}))

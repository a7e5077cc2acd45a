"""Between which numbers a floating-point expression lies, unless it is NaN.

Rounding keeps order. So bounds of a result are the results of bounds, in its dtype.
"""

from __future__ import annotations

import math

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, is_storage
from schedules.expr import Binary, Call, Cast, Const, Expr, Select
from schedules.functions import FUNCTIONS

# (least, largest), both included.
Range = tuple[float, float]
EVERY: Range = (-math.inf, math.inf)


def float_range(e: Expr) -> Range:
    """Bounds of a floating-point expression whose value is not NaN. `EVERY` where nothing is known.

    Example: ``float_range(te.clip(te.round(x[i] / 3.0), -128.0, 127.0))`` is ``(-128.0, 127.0)``."""
    dtype = E.dtype_of(e)
    if is_storage(dtype):
        return EVERY
    with np.errstate(all="ignore"):
        ends = [float(DTYPES[dtype].numpy.type(x)) for x in _ends(e)]
    return EVERY if any(map(math.isnan, ends)) else (min(ends), max(ends))


def _ends(e: Expr) -> tuple[float, ...]:
    """Numbers between which an expression lies, before they are rounded. NaN: nothing is known."""
    match e:
        case Const(value=v):
            return (float(v),)
        case Cast(a=a) if not E.is_float(E.dtype_of(a)) and (found := affine.value_bounds(a, {})) is not None:
            return found
        case Select(a=a, b=b):
            return *float_range(a), *float_range(b)
        case Call(fn=fn, args=(x,)) if FUNCTIONS[fn].change is None:  # a step rises
            return tuple(FUNCTIONS[fn].of(np.float64(end)) for end in float_range(x))
        case Binary(op=op, a=a, b=b):
            (al, ah), (bl, bh) = float_range(a), float_range(b)
            match op:
                case "min" | "max":
                    f = min if op == "min" else max
                    return f(al, bl), f(ah, bh)
                case "+":
                    return al + bl, ah + bh
                case "-":
                    return al - bh, ah - bl
                case "*":
                    return al * bl, al * bh, ah * bl, ah * bh
    return EVERY

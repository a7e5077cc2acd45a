"""How a value changes with the maximum that it is relative to.

``exp(x - m) * v`` with ``M`` in place of ``m`` is the same times ``exp(m - M)``, whatever ``x`` and ``v``
are, and so is a sum of such values: it can be summed before the maximum is known (Milakov & Gimelshein,
2018). That is read off the expression alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from schedules import expr as E
from schedules.dtypes import DTYPES, holds
from schedules.expr import Binary, Call, Cast, Const, Expr, Select

Linear = dict[Expr | None, float]  # coefficients of what a sum consists of; of None: the constant


def degree(
    value: Expr, top: Expr, of: Expr, depends: Callable[[Expr], bool], *, rounded: bool = False
) -> float | None:
    """The ``p > 0`` for which ``value`` is proportional to ``exp(-p * top)``, or None where none is proved.

    Accepted is ``top`` in factors ``exp(p * (of - top))`` only: as long as ``of`` is one of the elements that
    ``top`` is the maximum of, these are at most 1 and cannot overflow. ``depends`` tells of a load whether it
    changes with the maximum. ``rounded``: a factor may be rounded to fewer bits, if the dtype has as many
    exponents. It is then proportional within that rounding."""
    wanted = linear(of)

    def free(e: Expr) -> bool:
        return not any(depends(x) for x in E.loads(e))

    def power(e: Expr) -> float | None:
        terms = linear(e)
        p = -terms.pop(top, 0.0)
        return p if 0 < p < math.inf and terms == {k: p * c for k, c in wanted.items()} else None

    def go(e: Expr) -> float | None:
        if free(e):
            return 0.0
        match e:
            case Call(fn="exp", args=(a,)):
                return power(a)
            case Binary(op="*", a=a, b=b):
                p, q = go(a), go(b)
                return None if p is None or q is None else p + q
            case Binary(op="/", a=a, b=b):
                return go(a) if free(b) else None
            case Binary(op="+" | "-", a=a, b=b):
                return same(a, b)
            case Select(cond=c, a=a, b=b):
                return same(a, b) if free(c) else None
            case Cast(dtype=d, a=a) if E.is_float(d) and (holds(d, E.dtype_of(a)) or may_round(d, a)):
                return go(a)  # with fewer bits it rounds otherwise relative to another maximum
        return None

    def may_round(dtype: str, e: Expr) -> bool:
        return rounded and DTYPES[dtype].exponent >= DTYPES[E.dtype_of(e)].exponent

    def same(a: Expr, b: Expr) -> float | None:
        """Of what is either of the two, or their sum; zero is proportional to anything."""
        degrees = {go(x) for x in (a, b) if not (isinstance(x, Const) and x.value == 0)}
        return degrees.pop() if len(degrees) == 1 else None

    return go(value) or None


def linear(e: Expr) -> Linear:
    """``e`` as a sum of multiples of what is no sum and no multiple by a constant; zeros are left out."""
    out: Linear = {}

    def add(x: Expr, by: float) -> None:
        match x:
            case Binary(op="+" | "-" as op, a=a, b=b):
                add(a, by)
                add(b, by if op == "+" else -by)
            case Binary(op="*", a=a, b=Const(value=c)) | Binary(op="*", a=Const(value=c), b=a):
                add(a, by * float(c))
            case Binary(op="/", a=a, b=Const(value=c)) if c != 0:
                add(a, by / float(c))
            case Const(value=c):
                out[None] = out.get(None, 0.0) + by * float(c)
            case _:
                out[x] = out.get(x, 0.0) + by

    add(e, 1.0)
    return {k: c for k, c in out.items() if c != 0}

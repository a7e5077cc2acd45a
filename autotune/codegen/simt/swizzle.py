"""Addresses in swizzled shared memory, so that unrolled accesses share a register.

A swizzle is linear over GF(2): where two offsets have no bit in common, that of their sum is that of one
changed by that of the other. What unrolled loops add to an offset is then a constant, which changes the bits
of the chunk in one of few ways, and adds the rest.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr


def parts(
    at: Expr, mask: int, above: int, ranges: affine.Ranges, unrolled: Collection[str]
) -> tuple[Expr, Expr, Expr]:
    """An offset as a sum of three: a multiple of the swizzle's period, which it leaves alone; one whose
    variables differ between threads or iterations; and one of the ``unrolled`` ones, which has no bit of the
    one before. ``mask``: the bits that the swizzle changes; ``above``: how far above are those that do.

    >>> from schedules.expr import Var
    >>> at = Var("k") * 1024 + Var("t") * 32 + Var("u") * 4
    >>> [E.show(x) for x in parts(at, 28, 3, {"k": (0, 2), "t": (0, 31), "u": (0, 7)}, {"u"})]
    ['k * 1024', 't * 32', 'u * 4']
    """
    period = mask + (mask & -mask) << above
    terms, const = affine.linear(at)
    nothing: Expr = Const(0)
    far = own = near = nothing
    for atom, c in terms.items():
        if isinstance(c, Const) and c.value % period == 0:
            far = far + atom * c
        elif E.variables(atom) <= set(unrolled):
            near = near + atom * c
        else:
            own = own + atom * c
    if isinstance(const, Const):
        far, near = far + const.value // period * period, near + const.value % period
    else:
        near = near + const
    mine, others = _bits(own, ranges), _bits(near, ranges)
    if mine is None or others is None or mine & others:
        return far, affine.simplify(own + near, ranges), Const(0)
    return far, own, near


def _bits(e: Expr, ranges: affine.Ranges) -> int | None:
    """The bits that an offset of at least 0 may have; None where it may be less, or nothing is known."""
    terms, const = affine.linear(e)
    spans = {a: affine.bounds(a, ranges) for a in terms}
    if not isinstance(const, Const) or any(s is None or s[0] < 0 for s in spans.values()):
        return None
    parts = [(int(const.value), 1)]  # a number, and how many times it may be there
    for a, c in terms.items():
        if not isinstance(c, Const):
            return None
        parts.append((int(c.value), spans[a][1]))  # type: ignore[index]
    if min(n for n, _ in parts) < 0:
        return None
    found = 0
    for n, times in parts:
        step = n & -n
        bits = _up_to(times) * n if step == n else _up_to(n * times) & -step
        if found & bits:  # a carry may reach every bit above the lowest of all
            every = functools.reduce(operator.or_, (x for x, _ in parts))
            return _up_to(sum(x * y for x, y in parts)) & -(every & -every)
        found |= bits
    return found


def _up_to(n: int) -> int:
    """All bits of the numbers up to ``n``."""
    return (1 << n.bit_length()) - 1

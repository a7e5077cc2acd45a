"""Normal forms of values: two terms are equal for all numbers where each element has one normal form.

A polynomial has one: the sum of its monomials with their factors. So products, sums and moves are proved. A
maximum is an atom of a monomial, known by the set of its polynomials: what they share is taken out of it, and
maxima of maxima are one. That proves more, but not all: two equal maxima may differ in form.

`RECORDED` keeps the operations instead. Where its forms are equal, an element is made by the same operations
of the same elements, and no rounding differs but by the order of one sum. A sum of products does not round
these. One that a stage of its own stores is rounded, and may overflow: that is another operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.substitutions.operators import TermArithmetic

Array = NDArray[Any]
# {monomial, its atoms sorted: its factor}, as sorted pairs. An atom is a text, or a set of polynomials.
Polynomial = tuple[tuple[tuple[Any, ...], int], ...]
MOST_MONOMIALS = 20_000


class TooLarge(ValueError):
    """A normal form of too many monomials."""


def variable(name: str) -> Polynomial:
    """The polynomial of one unknown number."""
    return (((name,), 1),)


ZERO: Polynomial = ()
ONE: Polynomial = (((), 1),)


def _of(parts: dict[tuple[Any, ...], int]) -> Polynomial:
    if len(parts) > MOST_MONOMIALS:
        raise TooLarge(f"a normal form has more than {MOST_MONOMIALS} monomials")
    return tuple(sorted(((m, n) for m, n in parts.items() if n), key=_order))


def _order(part: tuple[tuple[Any, ...], int]) -> str:
    return repr(part[0])


def _sum(every: Iterable[Polynomial]) -> Polynomial:
    found: dict[tuple[Any, ...], int] = {}
    for p in every:
        for m, n in p:
            found[m] = found.get(m, 0) + n
    return _of(found)


def _mul(a: Polynomial, b: Polynomial) -> Polynomial:
    found: dict[tuple[Any, ...], int] = {}
    for m, n in a:
        for m2, n2 in b:
            both = tuple(sorted(m + m2, key=repr)) if m and m2 else m or m2
            found[both] = found.get(both, 0) + n * n2
    return _of(found)


def _members(p: Polynomial) -> list[Polynomial]:
    """The polynomials of which one that adds a maximum to others is the maximum."""
    for n, (monomial, factor) in enumerate(p):
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], tuple):
            rest = p[:n] + p[n + 1 :]
            return [x for m in monomial[0] for x in _members(_sum((m, rest)))]
    return [p]


def _top(a: Polynomial, b: Polynomial) -> Polynomial:
    every = sorted({*_members(a), *_members(b)}, key=repr)
    if len(every) == 1:
        return every[0]
    shared = dict(every[0])
    for p in every[1:]:
        own = dict(p)
        shared = {m: n for m, n in shared.items() if own.get(m) == n}
    left = [_of({m: n for m, n in p if m not in shared}) for p in every]
    if ZERO in left and len(left) == 2 and _is_never_below_zero(left[0] or left[1]):
        return _sum((_of(shared), left[0] or left[1]))
    times = gcd(*(n for p in left for _, n in p))
    atom = tuple(sorted((tuple((m, n // times) for m, n in p) for p in left), key=repr))
    return _sum((_of(shared), (((atom,), times),)))


def _is_never_below_zero(p: Polynomial) -> bool:
    """Whether each monomial is a product of squares, and of maxima of 0 and others, a positive number of
    times."""
    return all(
        n > 0 and all((isinstance(a, tuple) and ZERO in a) or m.count(a) % 2 == 0 for a in m) for m, n in p
    )


def _each(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def applied(a: Any, b: Any) -> Array:
        x, y = (v if isinstance(v, np.ndarray) else whole((), v) for v in (a, b))
        x, y = np.broadcast_arrays(x, y)
        return objects(x.shape, map(f, x.flat, y.flat))

    return applied


def objects(shape: tuple[int, ...], values: Iterable[Any]) -> Array:
    """An array of these values, whatever they are."""
    made = np.empty(shape, object)
    flat = made.reshape(-1)
    for n, v in enumerate(values):
        flat[n] = v
    return made


def whole(shape: tuple[int, ...], value: Any) -> Array:
    """An array of one value."""
    return objects(shape, (value for _ in range(int(np.prod(shape)))))


def _along(f: Callable[[list[Any]], Any]) -> Callable[[Array, int], Array]:
    def applied(a: Array, axis: int) -> Array:
        moved = np.moveaxis(a, axis, -1)
        rows = moved.reshape(-1, a.shape[axis])
        return objects(moved.shape[:-1], (f(list(row)) for row in rows))

    return applied


def _dot(
    mul: Callable[[Any, Any], Any], total: Callable[[list[Any]], Any]
) -> Callable[[Array, Array], Array]:
    def applied(a: Array, b: Array) -> Array:
        rows, columns = a.reshape(-1, a.shape[-1]), b.T
        every = (total([mul(x, y) for x, y in zip(r, c)]) for r in rows for c in columns)
        return objects((*a.shape[:-1], b.shape[1]), every)

    return applied


def _arithmetic(
    add: Callable[[Any, Any], Any], mul: Callable[[Any, Any], Any], top: Callable[[Any, Any], Any],
    total: Callable[[list[Any]], Any], zero: Any, one: Any,
) -> TermArithmetic:  # fmt: skip
    greatest = _along(lambda row: reduce(top, row))
    many = (_each(add), _each(mul), _each(top), _dot(mul, total), _along(total), greatest)
    return TermArithmetic(*many, whole, zero, one)


POLYNOMIALS = _arithmetic(lambda a, b: _sum((a, b)), _mul, _top, _sum, ZERO, ONE)

# -- operations as they are ----------------------------------------------------------------------------


def _recorded_total(row: list[Any]) -> Any:
    """A sum whose order is free."""
    return row[0] if len(row) == 1 else ("+", *sorted(row, key=repr))


def _recorded_product(op: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: (op, *sorted((a, b), key=repr))


def _recorded_dot(row: list[Any]) -> Any:
    """A sum of products. One alone is rounded as a sum is."""
    return ("*", *row[0][1:]) if len(row) == 1 else _recorded_total(row)


def _recorded_top(a: Any, b: Any) -> Any:
    every = {y for x in (a, b) for y in (x[1:] if x[0] == "max" else (x,))}
    return a if len(every) == 1 else ("max", *sorted(every, key=repr))


_PLAIN = _arithmetic(
    lambda a, b: _recorded_total([a, b]),
    _recorded_product("*"),
    _recorded_top,
    _recorded_total,
    ("0",),
    ("1",),
)
RECORDED = replace(_PLAIN, dot=_dot(_recorded_product("unrounded *"), _recorded_dot))

"""Maxima that change no output: softmax subtracts the maximum of a row, and would be the same without.

A value is followed from a stage ``m`` on: it may be ``v + k m[row]`` (a shift by k) or ``v exp(k m[row])`` (a
scale of degree k), where ``v`` does not depend on ``m``. Where all outputs have k = 0, the gradient of ``m``
is 0 and need not be computed. The proof is read off the expressions alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from schedules import expr as E
from schedules.expr import Binary, Call, Cast, Const, Expr, Fma, Select, Var
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, key


@dataclass(frozen=True, slots=True)
class _Change:
    """How a value depends on ``m``; at most one of the two is not 0. ``constant``: the value, where it is a
    number of the expression."""

    shift: Fraction = Fraction(0)
    scale: Fraction = Fraction(0)
    constant: float | None = field(default=None, compare=False)


_NONE = _Change()


class _Unknown(Exception):
    """No proof."""


def without_effect(ops: Sequence[Op], outputs: Iterable[Tensor]) -> set[Key]:
    """Maxima and minima whose gradient is 0. ``ops``: all stages, in order."""
    ends = [key(t) for t in outputs]
    return {
        (op, n)
        for op in ops
        if op.reducer is not None
        for n in range(len(op.values))
        if op.reducer.operation(n) in ("max", "min") and (op, n) not in ends and _vanishes(ops, (op, n), ends)
    }


def _vanishes(ops: Sequence[Op], start: Key, ends: Sequence[Key]) -> bool:
    first = start[0]
    assert isinstance(first, Op)
    # {tensor: (its change, the dimensions that tell the row)}; a dimension of 1 tells nothing.
    known: dict[Key, tuple[_Change, tuple[int, ...]]] = {
        start: (_Change(shift=Fraction(1)), tuple(d for d, (_, n) in enumerate(first.axes) if n != 1))
    }
    try:
        for op in ops:
            for n, value in enumerate(op.values):
                change, row = _stage(op, n, value, known)
                if change != _NONE and (op, n) != start:
                    known[op, n] = change, row
    except _Unknown:
        return False
    return not any(k in known for k in ends)


def _stage(
    op: Op, n: int, value: Expr, known: dict[Key, tuple[_Change, tuple[int, ...]]]
) -> tuple[_Change, tuple[int, ...]]:
    """The change of an output of a stage."""
    hit = [x for x in E.loads(value) if isinstance(x, TensorLoad) and key(x.tensor) in known]
    if not hit:
        return _NONE, ()
    rows = {tuple(x.indices[d] for d in known[key(x.tensor)][1]) for x in hit}
    axes = [Var(v) for v, _ in op.axes]
    row = rows.pop()
    if rows or any(i not in axes for i in row):
        raise _Unknown  # of several rows, or summed over
    change = _change(value, known)
    if op.reducer is not None and change != _NONE:
        how = op.reducer.operation(n)
        times = math.prod(n for _, n in op.reduce_axes)
        if (op.where or op.places) and how not in ("max", "min"):
            raise _Unknown  # of as many terms as the row has
        if how == "+":
            change = _Change(change.shift * times, change.scale)
        elif how == "*" and not change.shift:
            change = _Change(scale=change.scale * times)
        elif how not in ("max", "min"):
            raise _Unknown
    return change, tuple(axes.index(i) for i in row)  # type: ignore[arg-type]


def _change(e: Expr, known: dict[Key, tuple[_Change, tuple[int, ...]]]) -> _Change:
    """The change of a value. Raises `_Unknown`."""
    if isinstance(e, Const):
        return _Change(constant=e.value)
    if not any(isinstance(x, TensorLoad) and key(x.tensor) in known for x in E.loads(e)):
        return _NONE
    if isinstance(e, TensorLoad) and key(e.tensor) in known:
        return known[key(e.tensor)][0]
    parts = [_change(x, known) for x in E.children(e)]
    match e:
        case Binary(op=rule) | Call(fn=rule) if rule in _RULES:
            return _RULES[rule](*parts)
        case Fma():
            return _sum(_product(*parts[:2]), parts[2])
        case Cast(dtype=d, a=a) if E.is_float(d) and E.is_float(E.dtype_of(a)):
            return parts[0]
        case Select() if parts[0] == _NONE:
            return _same(*parts[1:])
    raise _Unknown


def _same(a: _Change, b: _Change) -> _Change:
    """The change of both. 0 is scaled by anything, and an infinity shifted."""
    for x, other in ((a, b), (b, a)):
        if x.constant is not None and (
            (x.constant == 0 and not other.shift) or (math.isinf(x.constant) and not other.scale)
        ):
            return other
    if a != b:
        raise _Unknown
    return a


def _sum(a: _Change, b: _Change, sign: int = 1) -> _Change:
    return _same(a, b) if a.scale or b.scale else _Change(a.shift + sign * b.shift)


def _product(a: _Change, b: _Change) -> _Change:
    for x, other in ((a, b), (b, a)):
        if x.constant is not None:
            return _Change(other.shift * _literal(x.constant), other.scale)
    return _Change(scale=_degree(a) + _degree(b))


def _quotient(a: _Change, b: _Change) -> _Change:
    if b.constant:
        return _Change(a.shift / _literal(b.constant), a.scale)
    return _Change(scale=_degree(a) - _degree(b))


def _exponential(a: _Change) -> _Change:
    if a.scale:
        raise _Unknown
    return _Change(scale=a.shift)


def _literal(x: float) -> Fraction:
    if not math.isfinite(x):
        raise _Unknown
    return Fraction(x)


def _degree(a: _Change) -> Fraction:
    """By how much a value is scaled, which must not be shifted."""
    if a.shift:
        raise _Unknown
    return a.scale


# The change of an operation's result, from those of its operands.
_RULES: dict[str, Callable[..., _Change]] = {
    "+": _sum,
    "-": partial(_sum, sign=-1),
    "*": _product,
    "/": _quotient,
    "max": _same,
    "min": _same,
    "exp": _exponential,
    "log": lambda a: _Change(shift=_degree(a)),
    "sqrt": lambda a: _Change(scale=_degree(a) / 2),
    "abs": lambda a: _Change(scale=_degree(a)),
}

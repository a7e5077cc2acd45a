"""Maxima that change no output: softmax subtracts the maximum of a row, and would be the same without.

A value is followed from a stage ``m`` on: it may be ``v + k m[row]`` (a shift by k) or ``v exp(k m[row])`` (a
scale of degree k), where ``v`` does not depend on ``m``. Where all outputs have k = 0, the gradient of ``m``
is 0 and need not be computed. The proof is read off the expressions alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from schedules import expr as E
from schedules.expr import Binary, Call, Cast, Const, Expr, Fma, Select, Var
from schedules.te.reverse_mode.graph import Key, key
from schedules.te.tensors import Op, Tensor, TensorLoad


@dataclass(frozen=True, slots=True)
class _Change:
    """How a value depends on ``m``; at most one of the two is not 0."""

    shift: Fraction = Fraction(0)
    scale: Fraction = Fraction(0)


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
        if how == "+":
            change = _Change(change.shift * times, change.scale)
        elif how == "*" and not change.shift:
            change = _Change(scale=change.scale * times)
        elif how not in ("max", "min"):
            raise _Unknown
    return change, tuple(axes.index(i) for i in row)  # type: ignore[arg-type]


def _change(e: Expr, known: dict[Key, tuple[_Change, tuple[int, ...]]]) -> _Change:
    """The change of a value. Raises `_Unknown`."""

    def go(e: Expr) -> _Change:
        if not any(isinstance(x, TensorLoad) and key(x.tensor) in known for x in E.loads(e)):
            return _NONE
        match e:
            case TensorLoad():
                return known[key(e.tensor)][0]
            case Binary(op="+" | "-" as op, a=a, b=b):
                p, q = go(a), go(b)
                if p.scale or q.scale:
                    return same(a, b)
                return _Change(p.shift + q.shift if op == "+" else p.shift - q.shift)
            case Binary(op="max" | "min", a=a, b=b):
                return same(a, b)
            case Binary(op="*", a=a, b=b):
                return product(a, b)
            case Binary(op="/", a=a, b=b):
                p, q = go(a), go(b)
                if isinstance(b, Const) and b.value != 0:
                    return _Change(p.shift / literal(b), p.scale)
                return _Change(scale=unshifted(p) - unshifted(q))
            case Fma(a=a, b=b, c=c):
                p, q = product(a, b), go(c)
                if p.scale == q.scale:
                    return _Change(p.shift + q.shift, p.scale)
            case Call(fn="exp", args=(a,)):
                p = go(a)
                if not p.scale:
                    return _Change(scale=p.shift)
            case Call(fn="log", args=(a,)):
                return _Change(shift=unshifted(go(a)))
            case Call(fn="sqrt", args=(a,)):
                return _Change(scale=unshifted(go(a)) / 2)
            case Call(fn="abs", args=(a,)):
                return _Change(scale=unshifted(go(a)))
            case Cast(dtype=d, a=a) if E.is_float(d) and E.is_float(E.dtype_of(a)):
                return go(a)
            case Select(cond=c, a=a, b=b) if go(c) == _NONE:
                return same(a, b)
        raise _Unknown

    def same(a: Expr, b: Expr) -> _Change:
        """The change of both. 0 is scaled by anything, and an infinity shifted."""
        for x, other in ((a, b), (b, a)):
            if isinstance(x, Const):
                p = go(other)
                if (x.value == 0 and not p.shift) or (math.isinf(x.value) and not p.scale):
                    return p
        p, q = go(a), go(b)
        if p != q:
            raise _Unknown
        return p

    def product(a: Expr, b: Expr) -> _Change:
        for x, other in ((a, b), (b, a)):
            if isinstance(x, Const):
                p = go(other)
                return _Change(p.shift * literal(x), p.scale)
        return _Change(scale=unshifted(go(a)) + unshifted(go(b)))

    def literal(x: Const) -> Fraction:
        if not math.isfinite(x.value):
            raise _Unknown
        return Fraction(x.value)

    def unshifted(p: _Change) -> Fraction:
        if p.shift:
            raise _Unknown
        return p.scale

    return go(e)

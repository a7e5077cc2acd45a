"""Counts the operations of a block, and evaluates expressions as numbers or as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, reduce
from operator import mul
from typing import Any

import numpy as np

from schedules import conversions
from schedules import expr as E
from schedules.dtypes import STORED_FLOATS
from schedules.expr import Const, Expr
from schedules.functions import FUNCTIONS
from schedules.ir import Block
from schedules.ir.nest import bound
from schedules.space.holes import Columns

Number = Any  # a float, or a column of them
# Nodes from which on equal parts of an expression count once. Smaller ones count as they are written.
LARGE = 256
# Operations of the instructions that convert float16 (F16C). Other floats of storage have expressions.
HALF_STEPS = 2


def number(e: Expr, env: Columns) -> Number:
    """The value of an expression, in floating point."""
    value = E.evaluate(e, env, env.known)
    return value.astype(np.float64) if hasattr(value, "astype") else np.float64(value)


def product(xs: list[Expr]) -> Expr:
    """The product of expressions."""
    return reduce(mul, xs) if xs else Const(1)


def arithmetic(b: Block) -> tuple[int, int]:
    """(operations, special functions) of one instance, a reduction's own operation included. Operations of
    integers count in what computes integers: elsewhere they are indices."""
    ops = [x for v in b.values for x in _computed(v)]
    flops = sum(isinstance(x, (E.Binary, E.Fma)) and E.is_float(E.dtype_of(x)) for x in ops)
    special = sum(isinstance(x, E.Call) and not FUNCTIONS[x.fn].cheap for x in ops)
    return flops + len(_integers(b)) + len(b.writes) * (b.reducer is not None), special


def _computed(e: Expr) -> Iterable[Expr]:
    """The nodes of an expression. Of a large one, in which stages stand that are computed where they are
    read, equal ones count once: code computes them once."""
    return E.walk(e) if E.size(e)[0] <= LARGE else set(E.distinct(e))


def integer_steps(b: Block) -> int:
    """Vector operations of one instance that computes integers: no multiplication is fused with an addition,
    and it takes two. 0 of floats, and of what only moves integers."""
    ops = _integers(b)
    return sum(1 + (x.op == "*") for x in ops) + len(b.writes) * (b.reducer is not None) if ops else 0


def conversion_steps(b: Block) -> dict[str, int]:
    """{buffer: vector operations that convert an element}: floats of storage are widened where a block
    computes with them, and results are rounded to them."""
    found = {}
    for v, w in zip(b.values, b.writes, strict=True):
        if isinstance(v, E.Cast) and v.dtype in STORED_FLOATS:
            found[w.buffer] = _rounding(v.dtype)
    for cast in (x for v in b.values for x in E.walk(v) if isinstance(x, E.Cast)):
        if (dtype := E.dtype_of(cast.a)) in STORED_FLOATS:
            found.update((x.buffer, _widening(dtype)) for x in E.loads(cast.a) if x.dtype == dtype)
    return found


@cache
def _widening(dtype: str) -> int:
    return HALF_STEPS if dtype == "float16" else _operations(conversions.widened(dtype))


@cache
def _rounding(dtype: str) -> int:
    return HALF_STEPS if dtype == "float16" else _operations(conversions.narrowed(dtype))


def _operations(e: Expr) -> int:
    return len({x for x in E.walk(e) if isinstance(x, (E.Binary, E.Select, E.Compare))})


def _integers(b: Block) -> list[E.Binary]:
    if any(E.is_float(E.dtype_of(v)) for v in b.values):
        return []
    ops = [x for v in b.values for x in _computed(v) if isinstance(x, E.Binary)]
    return [x for x in ops if E.dtype_of(x) != E.INDEX and not E.is_float(E.dtype_of(x))]


def code(b: Block) -> int:
    """Operations of one point of a block with those of its indices and guards, as they are written."""
    places = [bound(b, i) for w in b.writes for i in w.indices]
    values = [bound(b, e) for e in (*b.values, *b.where)]
    twice = 2 if b.reducer is not None else 1  # a sum is read and written
    return twice * sum(map(E.code_size, places)) + sum(map(E.code_size, values))

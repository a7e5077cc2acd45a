"""What conditions on data say of indices: of a mask that other stages compute, of tables, of positions.

A proof about axes knows arithmetic of indices. A condition as ``table[t] <= pos[0] + s`` becomes one:
integers that other stages make are put in, a constant whose elements rise evenly is an expression, one of
booleans says where its true elements lie, and what is left of the data is an unknown of known bounds. """

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.expr import FALSE, INDEX, TRUE, Binary, Cast, Compare, Const, Expr, Load, Logic, Select, Var
from schedules.graph.graph import Array, Graph
from schedules.te.compute_dag import Stage
from schedules.te.infeasible import Range, impossible, interval, negation

# How far from 0 an integer of a call may be that a proof knows the bounds of. A call checks it.
FAR = 2**40
# Stages that are put into one another for one condition.
MOST_STAGES = 64


class Facts:
    """Conditions and integers of a graph, as arithmetic of indices.

    ``ranges``: bounds of the variables of what it returns. They grow: an unknown gets a variable the first
    time that it is met. ``near``: data that a call has looked at, which is at most `FAR` from 0."""

    def __init__(self, graph: Graph, near: frozenset[Load] = frozenset()) -> None:
        self.graph, self.near = graph, near
        self.ranges: dict[str, Range] = {}
        self.maps: dict[str, tuple[Stage, int]] = {
            t.name: (s, k) for s in graph.dag.stages if s.reducer is None for k, t in enumerate(s.outputs)
        }
        self._unknown: dict[Load, Var] = {}
        self._tables: dict[tuple[str, bool], list[Any]] = {}

    # -- integers ----------------------------------------------------------------------------

    def number(self, e: Expr, depth: int = MOST_STAGES) -> Expr | None:
        """An integer as an index of the same value, at which no operation wraps; None where that is not
        known."""
        d = E.dtype_of(e)
        if d != INDEX and not is_integer(d):
            return None
        found = self._number(e, depth)
        if found is None:
            return None
        found = affine.simplify(found, self.ranges)
        if d == INDEX:
            return found
        (low, high), held = interval(found, self.ranges), DTYPES[d].range
        return found if held[0] <= low and high <= held[-1] else None

    def _number(self, e: Expr, depth: int) -> Expr | None:
        match e:
            case Const(value=v):
                return Const(int(v))
            case Var():
                return e
            case Cast(a=a):
                return self.number(a, depth)
            case Load():
                return self._element(e, depth)
            case Select(cond=c, a=a, b=b):
                test, x, y = self._test(c, depth), self.number(a, depth), self.number(b, depth)
                return None if test is None or x is None or y is None else E.select(test, x, y)
            case Binary(op="+" | "-" | "*" | "min" | "max" as op, a=a, b=b):
                x, y = self.number(a, depth), self.number(b, depth)
                return None if x is None or y is None else E.binary(op, x, y)
            case Binary(op="//" | "%" as op, a=a, b=Const(value=by)) if by > 0:
                x = self.number(a, depth)
                return None if x is None else E.binary(op, x, int(by))
        return None

    def _test(self, e: Expr, depth: int) -> Expr | None:
        """A comparison of integers as one of indices."""
        if isinstance(e, Compare):
            a, b = self.number(e.a, depth), self.number(e.b, depth)
            return None if a is None or b is None else E.compare(e.op, a, b)
        return None

    def _element(self, e: Load, depth: int) -> Expr | None:
        inner = self.inlined(e, depth)
        if inner is not None:
            return self.number(inner, depth - 1)
        if e.buffer in self.graph.values:
            return self._even(e, depth)
        if e not in self._unknown:
            self._unknown[e] = v = Var(f"data{len(self._unknown)}")
            low, high = DTYPES[e.dtype].range[0], DTYPES[e.dtype].range[-1]
            self.ranges[v.name] = (max(low, -FAR), min(high, FAR)) if e in self.near else (low, high)
        return self._unknown[e]

    def _even(self, e: Load, depth: int) -> Expr | None:
        """An element of a constant that rises evenly along each of its dimensions."""
        found = even(self.graph.values[e.buffer])
        if found is None:
            return None
        first, steps = found
        out: Expr = Const(first)
        for ix, step in zip(e.indices, steps, strict=True):
            if step:
                i = self.number(ix, depth)
                if i is None:
                    return None
                out = out + i * step
        return out

    def inlined(self, e: Load, depth: int = MOST_STAGES) -> Expr | None:
        """What a stage without a reduction puts into an element; None for other elements."""
        if depth <= 0 or e.buffer not in self.maps:
            return None
        s, k = self.maps[e.buffer]
        return E.substitute(s.values[k], dict(zip((a.var for a in s.axes), e.indices, strict=True)))

    # -- conditions --------------------------------------------------------------------------

    def implied(self, cond: Expr, holds: bool = True, depth: int = MOST_STAGES) -> Expr:
        """A condition on indices that follows from ``cond``, or from its negation if not ``holds``."""
        match cond:
            case Const(value=v):
                return TRUE if bool(v) == holds else FALSE
            case Logic(op="not", args=args):
                return self.implied(args[0], not holds, depth)
            case Logic(op=op, args=args):
                parts = [self.implied(x, holds, depth) for x in args]
                return E.all_of(*parts) if (op == "and") == holds else E.any_of(*parts)
            case Select(cond=c, a=a, b=b):
                first = E.all_of(self.implied(c, True, depth), self.implied(a, holds, depth))
                return E.any_of(first, E.all_of(self.implied(c, False, depth), self.implied(b, holds, depth)))
            case Cast(dtype="bool", a=a) if E.dtype_of(a) == "bool":
                return self.implied(a, holds, depth)
            case (
                Compare(op="==" | "!=" as op, a=a, b=Const(value=v))
                | Compare(op="==" | "!=" as op, a=Const(value=v), b=a)
            ) if (inner := _condition(a)) is not None and v in (0, 1):
                return self.implied(inner, holds == ((op == "==") == bool(v)), depth)
            case Compare():
                test = self._test(cond, depth)
                return TRUE if test is None else test if holds else negation(test)
            case Load():
                inner = self.inlined(cond, depth)
                if inner is not None:
                    return self.implied(inner, holds, depth - 1)
                return self._table(cond, holds, depth) if cond.buffer in self.graph.values else TRUE
        return TRUE

    def _table(self, e: Load, holds: bool, depth: int) -> Expr:
        """Where an element of a constant of conditions lies that holds, or does not."""
        key = e.buffer, holds
        if key not in self._tables:
            self._tables[key] = list(map(np.asarray, np.nonzero(self.graph.values[e.buffer] == holds)))
        return self.among(e, self._tables[key], depth)

    def among(self, e: Load, where: list[Any], depth: int = MOST_STAGES) -> Expr:
        """A condition that the indices of an element meet if it is one of those that ``where`` lists, a row
        of indices for each dimension: bounds of each index, and of the difference of each two."""
        if where and not where[0].size:
            return FALSE
        known = [(self.number(ix, depth), w) for ix, w in zip(e.indices, where, strict=True)]
        lies = [(i, w) for i, w in known if i is not None]
        lies += [(i - j, w - v) for (i, w), (j, v) in combinations(lies, 2)]
        tests = []
        for i, w in lies:
            low, high = interval(i, self.ranges)
            tests += [E.compare("<=", int(w.min()), i)] if low < w.min() else []
            tests += [E.compare("<=", i, int(w.max()))] if high > w.max() else []
        return E.all_of(*tests)

    def bounded(self, conds: tuple[Expr, ...], most: int) -> None:
        """Narrow the ranges of data to what conditions leave of -``most`` to ``most``."""
        for v in self._unknown.values():
            low, high = self.ranges[v.name]
            for least in (0, -most):
                if self.never((*conds, E.compare("<", v, least))):
                    low = max(low, least)
                    break
            if self.never((*conds, E.compare("<", most, v))):
                high = min(high, most)
            self.ranges[v.name] = low, high

    def never(self, conds: tuple[Expr, ...]) -> bool:
        """Whether conditions on indices are proved to hold together nowhere."""
        return impossible(conds, self.ranges)


def even(value: Array) -> tuple[int, list[int]] | None:
    """(the first element, by how much the next one along each dimension is more) of an array of integers that
    has one such step for each dimension; None for others.

    >>> even(np.array([[3, 2, 1], [7, 6, 5]], "uint8"))
    (3, [4, -1])
    """
    whole = value.astype(np.int64)
    first = int(whole[(0,) * value.ndim])
    made: Any = np.int64(first)
    steps = []
    for d, n in enumerate(value.shape):
        after = int(whole[tuple(int(k == d) for k in range(value.ndim))]) if n > 1 else first
        steps.append(after - first)
        made = made + np.indices(value.shape, sparse=True)[d] * steps[d]
    return (first, steps) if np.array_equal(whole, made) else None


def _condition(e: Expr) -> Expr | None:
    """The condition that an expression is, or of which it is 1 where it holds and else 0."""
    if E.dtype_of(e) == "bool":
        return e
    return e.a if isinstance(e, Cast) and E.dtype_of(e.a) == "bool" else None

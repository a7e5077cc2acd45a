"""Gradients of expressions with open sizes.

The way back looks at numbers: how long an axis is, which places are inside. So it goes back at several sizes.
Where it gives the same expression but for numbers, a number that differs is taken for the linear form of the
sizes that it follows (anti-unification: Plotkin, *A note on inductive generalization*, 1970). What results is
compared with gradients at further sizes, and refused where one differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Cast, Compare, Const, Expr, Logic, Var
from schedules.loads import with_loads
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim, at_sizes, dims_of
from schedules.te.reverse_mode.graph import at
from schedules.te.scalars import cast
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, dag, discover, key

Sizes = Mapping[Dim, int]
# Gives gradients, of what has the form of each tensor at some sizes.
Derive = Callable[[Callable[[Tensor], Tensor]], list[Tensor]]


class _Unlike(Exception):
    """Expressions of two sizes differ in more than numbers."""


def sizes_in(roots: Sequence[Tensor]) -> list[Dim]:
    """The sizes that vary in tensors and the stages behind them."""
    ops, leaves = discover([t.op for t in roots if t.op is not None])
    shapes = (n for t in (*leaves, *roots) for n in t.shape)
    return dims_of([*shapes, *(x for op in ops for x in op.parts())])


def with_open_sizes(roots: Sequence[Tensor], dims: Sequence[Dim], derive: Derive) -> list[Tensor]:
    """What ``derive`` gives of tensors that have open sizes, for all sizes. ``roots``: all that it may ask
    for. Raises `WorkloadError` where that is another expression at some size, and what ``derive`` raises."""
    most = {d: d.hi for d in dims}
    points = [most, *({**most, d: _other(d)} for d in dims)]
    forms = [_Forms(roots, sizes) for sizes in points]
    made = [derive(f.of) for f in forms]
    try:
        results = _Merge(dims, points, forms).tensors(made)
        for sizes in ({d: _least(d) for d in dims}, {d: max(d.hi - 1, d.lo) for d in dims}):
            right = derive(_Forms(roots, sizes).of)
            if dag(_with_inputs(results), sizes) != _dag(right):
                raise _Unlike
        dag(_with_inputs(results))  # which proves its loads inside
    except (_Unlike, WorkloadError) as err:
        raise WorkloadError(
            "te.gradient: the expression has sizes that vary, and its gradient is not the same expression at "
            "all of them; differentiate it at each size, with numbers for its sizes"
        ) from err
    return results


def _least(d: Dim) -> int:
    """The least size above 1: of one element is no sum where that is written."""
    return min(max(d.lo, 2), d.hi)


def _other(d: Dim) -> int:
    """A size below the largest."""
    middle = (d.lo + d.hi) // 2 | 1
    return middle if middle < d.hi else d.hi - 1


def _with_inputs(results: Sequence[Tensor]) -> list[Tensor]:
    return [*discover([t.op for t in results if t.op is not None])[1], *results]


def _dag(results: Sequence[Tensor]) -> ComputeDAG:
    return dag(_with_inputs(results))


class _Forms:
    """Tensors, and what is behind them, at some sizes."""

    def __init__(self, roots: Sequence[Tensor], sizes: Sizes) -> None:
        self._now: dict[Key, Tensor] = {}
        self.origins: dict[Key, Tensor] = {}
        ops, leaves = discover([t.op for t in roots if t.op is not None])
        for t in dict.fromkeys([*leaves, *(t for t in roots if t.op is None)]):
            shape = tuple(_number(n, sizes) for n in t.shape)
            self._add(t, Tensor(shape, t.dtype, t.name, strides=t.strides))

        def read(x: TensorLoad) -> Expr:
            return at(self.of(x.tensor), [at_sizes(i, sizes) for i in x.indices])

        for op in ops:
            values = tuple(at_sizes(with_loads(v, read), sizes) for v in op.values)
            axes, reduce_axes = (
                tuple((v, _number(n, sizes)) for v, n in own) for own in (op.axes, op.reduce_axes)
            )
            new = Op(axes, reduce_axes, values, op.reducer, op.names)
            whole, shape = (tuple(n for _, n in own) for own in (op.axes, axes))
            for k, v in enumerate(op.values):
                dtype = E.dtype_of(v)
                old = Tensor(whole, dtype, op.names[k], op, k)
                self._add(old, Tensor(shape, dtype, op.names[k], new, k))

    def _add(self, old: Tensor, new: Tensor) -> None:
        self._now[key(old)], self.origins[key(new)] = new, old

    def of(self, t: Tensor) -> Tensor:
        """A tensor at the sizes."""
        return self._now[key(t)]


def _number(n: Any, sizes: Sizes) -> int:
    if not isinstance(n, Expr):
        return int(n)
    value = at_sizes(n, sizes)
    assert isinstance(value, Const)
    return int(value.value)


class _Merge:
    """One expression of those at several sizes. ``points``: the largest sizes, then these with another for
    each of ``dims``."""

    def __init__(self, dims: Sequence[Dim], points: Sequence[Sizes], forms: Sequence[_Forms]) -> None:
        self.dims, self.points = dims, points
        # {a tensor of the largest sizes: (those of the other sizes, what it is for all)}
        self.known: dict[Key, tuple[list[Key], Tensor]] = {}
        for k, old in forms[0].origins.items():
            self.known[k] = [key(f.of(old)) for f in forms[1:]], old

    def tensors(self, made: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What is made at each of the points, as one. Raises `_Unlike`."""
        orders = [discover([t.op for t in results if t.op is not None]) for results in made]
        for leaves in self._together([x[1] for x in orders]):
            self._take(leaves, None)
        for ops in self._together([x[0] for x in orders]):
            self._stage(ops)
        return [self._one(each) for each in self._together(made)]

    def _together(self, lists: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        if len({len(x) for x in lists}) > 1:
            raise _Unlike
        return list(zip(*lists, strict=True))

    def _one(self, each: Sequence[Tensor]) -> Tensor:
        others, found = self.known[key(each[0])]
        if others != [key(t) for t in each[1:]]:
            raise _Unlike
        return found

    def _take(self, each: Sequence[Tensor], op: Op | None) -> None:
        first = each[0]
        if key(first) not in self.known:
            shape = tuple(map(self._extent, *(t.shape for t in each))) if op is None else _lengths(op)
            new = Tensor(shape, first.dtype, first.name, op, first.index, first.strides)
            self.known[key(first)] = [key(t) for t in each[1:]], new

    def _stage(self, ops: Sequence[Op]) -> None:
        first = ops[0]
        if (first, 0) in self.known:
            return
        same = {(o.reducer, o.names, _names(o.axes), _names(o.reduce_axes)) for o in ops}
        if len(same) > 1:
            raise _Unlike
        axes, reduce_axes = (
            tuple((own[0][0], self._extent(*(n for _, n in own))) for own in zip(*each, strict=True))
            for each in ([o.axes for o in ops], [o.reduce_axes for o in ops])
        )
        values = tuple(self._value(*each) for each in self._together([o.values for o in ops]))
        op = Op(axes, reduce_axes, values, first.reducer, first.names)
        for k, v in enumerate(first.values):
            shape = _lengths(first)
            self._take([Tensor(shape, E.dtype_of(v), first.names[k], o, k) for o in ops], op)

    def _extent(self, *numbers: int) -> Any:
        e = self._linear(numbers)
        return int(e.value) if isinstance(e, Const) else e

    def _linear(self, numbers: Sequence[float]) -> Expr:
        """The linear form of the sizes that has these values at the points."""
        out: Expr = Const(0)
        rest = int(numbers[0])
        for d, point, n in zip(self.dims, self.points[1:], numbers[1:], strict=True):
            step, left = divmod(int(numbers[0]) - int(n), d.hi - point[d])
            if left or n != int(n):
                raise _Unlike
            out, rest = out + d * step, rest - step * d.hi
        return out + rest

    def _value(self, *each: Expr) -> Expr:
        first = each[0]
        if len({(E.kind(e), _label(e), len(E.children(e))) for e in each}) > 1:
            raise _Unlike
        if isinstance(first, Const):
            if all(e == first for e in each):
                return first
            values = [e.value for e in each if isinstance(e, Const)]
            return self._linear(values) if first.dtype == INDEX else cast(self._linear(values), first.dtype)
        kids = tuple(map(self._value, *map(E.children, each)))
        if isinstance(first, TensorLoad):
            return at(self._one([e.tensor for e in each if isinstance(e, TensorLoad)]), kids)
        return E.rebuild(first, kids) if kids else first


def _names(axes: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    return tuple(v for v, _ in axes)


def _lengths(op: Op) -> tuple[Any, ...]:
    return tuple(n for _, n in op.axes)


def _label(e: Expr) -> Any:
    """What an expression is, without its operands and numbers."""
    match e:
        case Binary(op=op) | Compare(op=op) | Logic(op=op):
            return op
        case Var(name=name):
            return name
        case E.Call(fn=fn):
            return fn
        case Cast(dtype=d) | Const(dtype=d):
            return d
    return ""

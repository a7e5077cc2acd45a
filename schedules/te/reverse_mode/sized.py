"""Gradients of expressions with open sizes.

The way back looks at numbers: how long an axis is, which places are inside. So it goes back at several sizes,
and the DAGs that it gives there are generalised (`schedules.te.generalise`). Those of the ends of the ranges
are among them, as there most is special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr, Hole, Load
from schedules.loads import with_loads
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim, at_sizes, dims_of
from schedules.te.generalise import Sample, generalised
from schedules.te.open_sizes import OpenSize, extents_of, variable
from schedules.te.reverse_mode.graph import at
from schedules.te.tensors import NO_SIZES, Key, Op, Tensor, TensorLoad, dag, discover, key, marked_dag

Sizes = Mapping[Dim, int]
# Gives gradients, of what has the form of each tensor at some sizes.
Derive = Callable[[Callable[[Tensor], Tensor]], list[Tensor]]


def sizes_in(roots: Sequence[Tensor]) -> list[Dim]:
    """The sizes that vary in tensors and the stages behind them."""
    ops, leaves = discover([t.op for t in roots if t.op is not None])
    shapes = (n for t in (*leaves, *roots) for n in t.shape)
    return dims_of([*shapes, *(x for op in ops for x in op.parts())])


def with_open_sizes(roots: Sequence[Tensor], dims: Sequence[Dim], derive: Derive) -> list[Tensor]:
    """What ``derive`` gives of tensors that have open sizes, for all sizes. ``roots``: all that it may ask
    for. Raises `WorkloadError` where that is another expression at some size, and what ``derive`` raises."""
    most = {d: d.hi for d in dims}
    varying = {f"n{k}": d for k, d in enumerate(dims) if d.lo < d.hi}
    points = [
        *({**most, d: _other(d)} for d in varying.values()),
        {d: _least(d) for d in dims},
        {d: max(d.hi - 1, d.lo) for d in dims},
    ]
    forms = _Forms(roots, most)
    made = derive(forms.of)
    try:
        right = [_dag(made), *(_dag(derive(_Forms(roots, sizes).of)) for sizes in points)]
        samples = [
            Sample({name: sizes[d] for name, d in varying.items()}, each)
            for sizes, each in zip([most, *points], right, strict=True)
        ]
        whole = generalised(samples, [OpenSize(name, d.lo, d.hi) for name, d in varying.items()])
        results = _tensors(whole, varying, made, forms.origins)
        if any(_dag(results, s) != d for s, d in zip(points[-2:], right[-2:], strict=True)):
            raise WorkloadError("a stage of the expression, which stays itself, is another one")
        marked_dag(_with_inputs(results))  # which proves its loads inside
    except WorkloadError as err:
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


def _dag(results: Sequence[Tensor], sizes: Sizes = NO_SIZES) -> ComputeDAG:
    return dag(_with_inputs(results), sizes)


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
            where = tuple(at_sizes(c, sizes) for c in op.where)
            new = replace(op, axes=axes, reduce_axes=reduce_axes, values=values, where=where)
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


def _tensors(
    whole: ComputeDAG, dims: Mapping[str, Dim], made: Sequence[Tensor], origins: Mapping[Key, Tensor]
) -> list[Tensor]:
    """The outputs of a DAG of open sizes as tensors. ``dims``: {size: its dimension}. ``made``: what the DAG
    is of, at the largest sizes. ``origins``: tensors that stay themselves, by those of ``made``."""
    ops, leaves = discover([t.op for t in made if t.op is not None])
    variables = {variable(name): d for name, d in dims.items()}
    shapes, lengths = extents_of(whole)
    known: dict[str, Tensor] = {}

    def extent(e: Expr) -> Any:
        return int(e.value) if isinstance(e, Const) else E.substitute(e, variables)

    def value(e: Expr) -> Expr:
        def visit(x: Expr) -> Expr | None:
            if isinstance(x, Load):
                return at(known[x.buffer], tuple(map(value, x.indices)))
            return variables[x.name] if isinstance(x, Hole) else None

        return E.rewrite(e, visit)

    for t, given in zip(leaves, whole.inputs, strict=True):
        shape = tuple(map(extent, shapes[given.name]))
        new = Tensor(shape, t.dtype, t.name, strides=t.strides)
        known[given.name] = origins.get(key(t), new)
    for op, s, own in zip(ops, whole.stages, lengths, strict=True):
        extents = list(map(extent, own))
        every = tuple((a.var, n) for a, n in zip((*s.axes, *s.reduce_axes), extents, strict=True))
        rank = len(s.axes)
        values, where = tuple(map(value, s.values)), tuple(map(value, s.where))
        stage = Op(every[:rank], every[rank:], values, s.reducer, op.names, where)
        for k, o in enumerate(s.outputs):
            new = Tensor(tuple(extents[:rank]), o.dtype, op.names[k], stage, k)
            known[o.name] = origins.get((op, k), new)
    return [known[name] for name in whole.outputs]

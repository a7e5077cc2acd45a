"""The gradient of a tensor from a reader that gathers from it: each point pushes what it has to the element
that it read. Which points read an element is in the data, so that an element would have to look at all."""

from __future__ import annotations

from collections.abc import Sequence

from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.te.inside import decide
from schedules.te.reverse_mode.graph import added, guarded, load, placed, reducer_of, targets, tidy
from schedules.te.reverse_mode.slopes import Term
from schedules.te.tensors import Op, Tensor, TensorLoad


def is_gathered(x: TensorLoad) -> bool:
    """Whether it is in the data which element a load reads."""
    return any(map(E.loads, x.indices))


def push(op: Op, x: TensorLoad, terms: Sequence[Term], name: str | None) -> Expr | None:
    """What the load ``x`` of a stage adds to the gradient of its tensor, over ``i0, i1, …``: the element of a
    new stage ``name`` whose terms go where ``x`` reads; None for nothing at all. ``terms``: over the axes of
    the stage."""
    shape = x.tensor.shape
    extents = dict((*op.axes, *op.reduce_axes))
    env: dict[str, Expr] = {}
    for i, to, n in zip(x.indices, targets(len(shape)), shape, strict=True):
        if isinstance(i, Var) and i.name not in env and extents.get(i.name) == n:
            env[i.name] = to  # free: a term stays in its row
    summed = [v for v in extents if v not in env]
    env |= {v: Var(f"r{k}") for k, v in enumerate(summed)}
    sizes = {f"r{k}": extents[v] for k, v in enumerate(summed)} or {"r0": 1}
    known = {e.name: extents[v] for v, e in env.items() if isinstance(e, Var)}
    ranges = {v: (0, n - 1) for v, n in known.items()}
    parts = (guarded([placed(c, env) for c in t.conditions], placed(t.value, env)) for t in terms)
    value = tidy(added(tidy(p, ranges) for p in parts), ranges)
    if isinstance(value, Const) and value.value == 0:
        return None
    places = tuple(_inside(placed(i, env), n, known) for i, n in zip(x.indices, shape, strict=True))
    axes = tuple((v.name, n) for v, n in zip(targets(len(shape)), shape, strict=True))
    made = Op(axes, tuple(sizes.items()), (value,), reducer_of(E.dtype_of(value)), (name,), (), places)
    return load(Tensor(tuple(shape), E.dtype_of(value), name, made))


def _inside(i: Expr, n: int, extents: dict[str, int]) -> Expr:
    """An index, cut off where only conditions around the load keep it inside: beyond, a term is 0."""
    within = tuple((v, k) for v, k in extents.items() if v in E.variables(i))
    return i if decide(i, n, within, ()) is None else E.minimum(E.maximum(i, 0), n - 1)

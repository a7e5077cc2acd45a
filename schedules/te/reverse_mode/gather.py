"""The gradient of a tensor from one of its readers: a sum over the points that read an element.

Instead of adding to the places that each point reads, every element gathers what its readers have for it:
`invert` tells which. So a gradient is a stage like others, that any schedule computes in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Var
from schedules.te.reverse_mode.graph import (
    Ranges,
    added,
    guarded,
    guards,
    load,
    loads,
    placed,
    stage,
    targets,
    tidy,
)
from schedules.te.reverse_mode.invert import invert
from schedules.te.reverse_mode.slopes import Term, times
from schedules.te.tensors import Op, TensorLoad


def gather(op: Op, x: TensorLoad, terms: Sequence[Term], name: str | None) -> Expr | None:
    """What the load ``x`` of a stage adds to the gradient of its tensor, over ``i0, i1, …``: a value, or the
    element of a new stage ``name`` that sums; None for nothing at all. ``terms``: over the stage's axes."""
    shape = x.tensor.shape
    element = {v.name: n for v, n in zip(targets(len(shape)), shape, strict=True)}
    # Names of the stage's axes may be those of ours.
    own: dict[str, Expr] = {v: Var(f"_a_{v}") for v, _ in (*op.axes, *op.reduce_axes)}
    extents = {f"_a_{v}": n for v, n in (*op.axes, *op.reduce_axes)}
    indices = [placed(i, own) for i in x.indices]
    found = invert(indices, extents, [f"_a_{v}" for v, _ in op.axes], element)
    if found is None:
        return None
    # Reduced axes first: taps before channels, as operators have them.
    spatial = {f"_a_{v}" for v, _ in op.axes}
    free = sorted((v for v, (lo, hi) in found.free.items() if lo < hi), key=lambda v: v in spatial)
    summed = {v: Var(f"r{n}") for n, v in enumerate(free)}
    sizes = {f"r{n}": found.free[v][1] - found.free[v][0] + 1 for n, v in enumerate(free)}
    start: dict[str, Expr] = {v: summed.get(v, Const(0)) + lo for v, (lo, _) in found.free.items()}
    env = {v: placed(found.places[a.name], start) for v, a in own.items() if isinstance(a, Var)}
    ranges = {v: (0, n - 1) for v, n in (element | sizes).items()}
    shared = [placed(c, start) for c in found.conditions]
    parts = (guarded([placed(c, env) for c in t.conditions], placed(t.value, env)) for t in terms)
    value = tidy(guarded(shared, added(tidy(x, ranges) for x in parts)), ranges)
    if isinstance(value, Const) and value.value == 0:
        return None
    times_read = 1
    for v in [v for v in sizes if v not in E.variables(value)]:
        times_read *= sizes.pop(v)  # all these points have the same
    if times_read > 1:
        value = times(value, Const(float(times_read), E.dtype_of(value)))
    if not sizes:
        return value
    renamed: dict[str, Expr] = {v: Var(f"r{n}") for n, v in enumerate(sizes)}
    sizes = {f"r{n}": k for n, k in enumerate(sizes.values())}
    conds, value = guards(placed(value, renamed))
    inner, rest = _constant_factors(value, frozenset(sizes), ranges)
    total: Expr = load(stage(shape, guarded(conds, inner), sizes, name))
    for outside in reversed(rest):
        total = outside(total)
    return total


def _times(x: Expr) -> Callable[[Expr], Expr]:
    return lambda total: times(total, x)


def _constant_factors(
    e: Expr, summed: frozenset[str], ranges: Ranges
) -> tuple[Expr, list[Callable[[Expr], Expr]]]:
    """A value as (what a sum adds up, what is done to the sum): factors and divisors that are the same for
    all points are taken out of it."""

    def same(x: Expr) -> bool:
        return not E.variables(x) & summed and all(map(inside, loads(x)))

    def inside(x: TensorLoad) -> bool:
        """Whether a load needs no condition."""
        reach = [affine.bounds(i, ranges) if not E.loads(i) else None for i in x.indices]
        return all(
            r is not None and 0 <= r[0] and r[1] < n for r, n in zip(reach, x.tensor.shape, strict=True)
        )

    match e:
        case Binary(op="*", a=a, b=b):
            for x, other in ((a, b), (b, a)):
                if same(x):
                    inner, rest = _constant_factors(other, summed, ranges)
                    return inner, [_times(x), *rest]
            (p, first), (q, second) = (_constant_factors(x, summed, ranges) for x in (a, b))
            return (times(p, q) if first or second else e), [*first, *second]
        case Binary(op="/", a=a, b=b):
            inner, rest = _constant_factors(a, summed, ranges)
            if same(b):
                return inner, [lambda total: E.binary("/", total, b), *rest]
            return (E.binary("/", inner, b) if rest else e), rest
    return e, []

"""What reductions hand on to the values that they reduce.

A sum hands its gradient to every value. A maximum or minimum hands it to the values that are equal to it, n
of them get an n-th each, as in torch.amax. A product hands on the product of the other values: where none is
0 the product divided by the value, where one is 0 the product of the others, to that one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Expr, Var
from schedules.te.reverse_mode.graph import at, like, placed, stage, targets
from schedules.te.tensors import Op, Tensor


def own_element(op: Op, n: int) -> Expr:
    """The element of a stage's output ``n`` at the stage's axes."""
    t = Tensor(tuple(k for _, k in op.axes), E.dtype_of(op.values[n]), op.names[n], op, n)
    return _over_own_axes(op, t)


def values_gradients(
    op: Op, heads: Mapping[int, Expr], values: Sequence[Expr], what: str = "te.gradient"
) -> dict[int, Expr]:
    """{output: the gradient of the value that a point of the stage has for it}, over the stage's axes, from
    the gradients of the outputs. ``values``: those of the stage over its whole box. ``what``: what errors
    name. Raises `WorkloadError` for reducers over tuples whose parts depend on each other."""
    if op.reducer is None:
        return dict(heads)
    out: dict[int, Expr] = {}
    for n, head in heads.items():
        how = op.reducer.operation(n)
        if not how:
            raise WorkloadError(
                f"{what}: stage {op.names[n] or '(unnamed)'} reduces by {op.reducer.name}, which has no "
                "derivative here; te.sum, te.prod, te.max and te.min have, and reducers that do such things "
                "to each of their values"
            )
        of_other = _product if how == "*" else _extreme
        out[n] = head if how == "+" else of_other(op, n, head, values[n])
    return out


def _over_own_axes(op: Op, t: Tensor) -> Expr:
    return at(t, op.places or [Var(v) for v, _ in op.axes])


def _reduced(op: Op, value: Expr, name: str, product: bool = False) -> Expr:
    """The reduction of another value over the axes of the stage."""
    spatial = zip(op.axes, targets(len(op.axes)), strict=True)
    reduce = [(v, Var(f"r{k}")) for k, (v, _) in enumerate(op.reduce_axes)]
    env: dict[str, Expr] = {**{v: to for (v, _), to in spatial}, **dict(reduce)}
    extents = {to.name: n for (_, to), (_, n) in zip(reduce, op.reduce_axes, strict=True)}
    shape = tuple(n for _, n in op.axes)
    made = stage(shape, placed(value, env), extents, name, product)
    if op.places:
        assert made.op is not None
        places = tuple(placed(p, env) for p in op.places)
        made = like(made.op, made.op.values[0], places=places)
    return _over_own_axes(op, made)


def _extreme(op: Op, n: int, head: Expr, value: Expr) -> Expr:
    hit = E.compare("==", value, own_element(op, n))
    one = E.wrap(1.0, E.dtype_of(value))
    ties = _reduced(op, E.select(hit, one, 0.0), "ties")
    # divided at each term where the element of both is in the data, and where a step of a scan that runs back
    # has not made the gradient yet
    if op.places or any(x.tensor.carry is not None for x in E.loads(head)):  # type: ignore[attr-defined]
        return E.select(hit, E.binary("/", head, ties), 0.0)
    spatial = dict(zip((v for v, _ in op.axes), targets(len(op.axes)), strict=True))
    share = placed(E.binary("/", head, ties), spatial)
    shares = stage(tuple(k for _, k in op.axes), share, name="share")
    return E.select(hit, _over_own_axes(op, shares), 0.0)


def _product(op: Op, n: int, head: Expr, value: Expr) -> Expr:
    none = E.compare("==", value, 0.0)
    one = E.wrap(1.0, E.dtype_of(value))
    others = _reduced(op, E.select(none, one, value), "others", product=True)
    zeros = _reduced(op, E.select(none, one, 0.0), "zeros")
    of_zero = E.select(E.compare("==", zeros, 1.0), others, 0.0)
    of_rest = E.select(E.compare("==", zeros, 0.0), E.binary("/", others, value), 0.0)
    return E.binary("*", head, E.select(none, of_zero, of_rest))

"""Stages as data: made from values, rewritten, and put in the place of others.

Axes of stages made here are called ``i0, i1, …``, reduction axes ``r0, r1, …``, so that equal stages have
equal values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.affine import Range
from schedules.dtypes import computed
from schedules.expr import INDEX, Compare, Const, Expr, Logic, Select, Var
from schedules.loads import with_loads
from schedules.te.compute_dag import Reducer, operand
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, discover, key, loops_of

# A pass: gets tensors and the stages that must stay as they are, and returns equal tensors.
Rewrite = Callable[[Sequence[Tensor], Collection[Op]], list[Tensor]]
# {axis: (least, largest)}.
Ranges = Mapping[str, Range]


def targets(rank: int) -> tuple[Var, ...]:
    """The axes of a stage made here."""
    return tuple(Var(f"i{d}") for d in range(rank))


def at(t: Tensor, indices: Sequence[Expr]) -> TensorLoad:
    """One element of a tensor."""
    return TensorLoad(t.name or "tensor", tuple(indices), t.dtype, t)


def load(t: Tensor) -> TensorLoad:
    """The element of a tensor at a stage's own axes."""
    return at(t, targets(t.ndim))


def stage(
    shape: Sequence[int],
    value: Expr,
    reduce: Mapping[str, int] | None = None,
    name: str | None = None,
    product: bool = False,
) -> Tensor:
    """A stage over ``i0, i1, …`` of ``value``; with ``reduce``, {axis: extent}, of its sums or products."""
    axes = tuple((v.name, n) for v, n in zip(targets(len(shape)), shape, strict=True))
    dtype = E.dtype_of(value)
    op = Op(
        axes, tuple((reduce or {}).items()), (value,), reducer_of(dtype, product) if reduce else None, (name,)
    )
    return Tensor(tuple(shape), dtype, name, op)


def reducer_of(dtype: str, product: bool = False) -> Reducer:
    """The reducer of `te.sum` or `te.prod`."""
    x, y = operand("x0", dtype), operand("y0", dtype)
    if product:
        return Reducer("prod", (Const(1.0, dtype),), (E.binary("*", x, y),))
    return Reducer("sum", (zero(dtype),), (E.binary("+", x, y),))


def zero(dtype: str) -> Const:
    """0 in the dtype that ``dtype`` is computed with."""
    return Const(0.0, computed(dtype))


def added(values: Iterable[Expr]) -> Expr:
    """The sum of one value or more, from left to right."""
    return functools.reduce(lambda a, b: E.binary("+", a, b), values)


def ranges_of(op: Op) -> dict[str, Range]:
    """{axis of a stage: (least, largest)}."""
    return {v: (0, n - 1) for v, n in (*op.axes, *op.reduce_axes)}


def placed(e: Expr, env: Mapping[str, Expr]) -> Expr:
    """``e`` with expressions for axes; loads keep their tensors."""

    def visit(x: Expr) -> Expr | None:
        if isinstance(x, Var):
            return env.get(x.name)
        if isinstance(x, TensorLoad):
            return TensorLoad(x.buffer, tuple(placed(i, env) for i in x.indices), x.dtype, x.tensor)
        return None

    return E.rewrite(e, visit)


def tidy(e: Expr, ranges: Ranges) -> Expr:
    """An equal value: indices are simplified, and selects are decided where the ranges of axes do."""

    def visit(x: Expr) -> Expr | None:
        if isinstance(x, TensorLoad):
            indices = tuple(i if isinstance(i, Var) else tidy(i, ranges) for i in x.indices)
            return TensorLoad(x.buffer, indices, x.dtype, x.tensor)
        if isinstance(x, Select):
            cond = tidy(x.cond, ranges)
            if isinstance(cond, Const):
                return tidy(x.a if cond.value else x.b, ranges)
            return Select(cond, tidy(x.a, ranges), tidy(x.b, ranges))
        if isinstance(x, Compare) or E.dtype_of(x) == INDEX:
            return None if E.loads(x) else affine.simplify(x, ranges)
        if isinstance(x, Logic):
            return E.rebuild(x, tuple(tidy(k, ranges) for k in x.args))
        return None

    return E.rewrite(e, visit)


def guarded(conditions: Iterable[Expr], value: Expr) -> Expr:
    """``value`` where all hold, else 0. Conditions on axes alone come first, because they keep what others
    load inside its tensor; each of the others may do so for the next."""
    inner, value = guards(value)
    conds = [*conditions, *inner]
    for c in reversed([c for c in conds if E.loads(c)]):
        value = E.select(c, value, zero(E.dtype_of(value)))
    return E.select(E.all_of(*(c for c in conds if not E.loads(c))), value, zero(E.dtype_of(value)))


def guards(value: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """(conditions on axes alone, value where they hold) of a value that is 0 elsewhere: the inverse of
    `guarded`."""
    if isinstance(value, Select) and value.b == zero(E.dtype_of(value)) and not E.loads(value.cond):
        inner, rest = guards(value.a)
        return (*E.conjuncts(value.cond), *inner), rest
    return (), value


def replaced(e: Expr, now: Mapping[Key, Tensor]) -> Expr:
    """``e`` reading other tensors."""
    if not any(key(x.tensor) in now for x in loads(e)):
        return e
    return with_loads(e, lambda x: at(now[key(x.tensor)], x.indices) if key(x.tensor) in now else None)


def loads(e: Expr) -> list[TensorLoad]:
    """All loads, parents first."""
    return [x for x in E.loads(e) if isinstance(x, TensorLoad)]


def reads(op: Op) -> list[TensorLoad]:
    """All loads of a stage."""
    return [x for v in (*op.values, *op.places) for x in loads(v)]


def stages(roots: Sequence[Tensor]) -> list[Op]:
    """All stages behind tensors, in topological order."""
    return discover([t.op for t in roots if t.op is not None])[0]


def active(ops: Sequence[Op], wanted: Iterable[Key]) -> set[Key]:
    """What changes with ``wanted`` tensors: these, and outputs of stages."""
    found = set(wanted)
    before = -1
    while len(found) > before:  # a state of a scan is read before it is stored
        before = len(found)
        for op in ops:
            if any(key(x.tensor) in found and E.is_float(x.dtype) for v in op.values for x in loads(v)):
                found |= {(op, n) for n, v in enumerate(op.values) if E.is_float(E.dtype_of(v))}
    return found


def states_of(group: Collection[Op]) -> dict[Key, Tensor]:
    """The states that stages read and one of them stores: of a scan, whose stages go together."""
    read = {key(x.tensor): x.tensor for op in group for x in reads(op) if x.tensor.carry is not None}
    return {k: t for k, t in read.items() if k[0] in group}


def in_groups(ops: Sequence[Op]) -> list[list[Op]]:
    """Stages in topological order, those of a scan together."""
    states = any(x.tensor.carry is not None for op in ops for x in reads(op))
    return loops_of(ops) if states else [[op] for op in ops]


def like(op: Op, value: Expr, **how: Any) -> Tensor:
    """A stage of one output as another, with another value, and other ``axes``, ``reduce_axes`` or
    ``names``."""
    new = replace(op, values=(value,), **how)
    if not new.reduce_axes:
        new = replace(new, reducer=None)
    return Tensor(tuple(n for _, n in new.axes), E.dtype_of(value), new.names[0], new)


def rebuilt(
    roots: Sequence[Tensor],
    change: Callable[[Op, Op], Tensor | None] = lambda old, new: None,
    given: Mapping[Key, Tensor] | None = None,
) -> list[Tensor]:
    """The roots over changed stages. ``change``: gets every stage as it was and reading what others became.
    It returns what takes the place of the stage's only output, or None. A stage stays itself where nothing
    changed. ``given``: tensors that take the place of others."""
    now: dict[Key, Tensor] = dict(given or {})
    ops, _ = discover([t.op for t in roots if t.op is not None])
    # Stages of a scan read what later ones store: they become others together.
    for group in in_groups(ops):
        outer = [x.tensor for op in group for x in reads(op) if key(x.tensor)[0] not in group]
        states = {k: t for k, t in states_of(group).items() if k not in now}
        if states and any(key(t) in now for t in outer):
            now |= {k: replace(t, carry=replace(t.carry, stored=[])) for k, t in states.items() if t.carry}
        for op in group:
            _rebuild(op, now, change if not states else lambda old, new: None, states)
    return [now.get(key(t), t) for t in roots]


def _rebuild(
    op: Op, now: dict[Key, Tensor], change: Callable[[Op, Op], Tensor | None], states: Mapping[Key, Tensor]
) -> None:
    """Put in ``now`` what a stage becomes. ``states``: those of its scan, in ``now`` if it changes."""
    if all((op, o) in now and (op, o) not in states for o in range(len(op.values))):
        return
    values, where, places = (tuple(replaced(v, now) for v in x) for x in (op.values, op.where, op.places))
    was = (*op.values, *op.where, *op.places)
    same = all(a is b for a, b in zip((*values, *where, *places), was, strict=True))
    new = op if same else replace(op, values=values, where=where, places=places)
    other = change(op, new)
    if other is not None:
        now.setdefault((op, 0), other)
    elif not same:
        shape = tuple(n for _, n in op.axes)
        for o, v in enumerate(values):
            made = Tensor(shape, E.dtype_of(v), op.names[o], new, o)
            if (op, o) in states and (state := now.get((op, o))) is not None and state.carry is not None:
                state.carry.stored.append(made)
                now[op, o] = made
            now.setdefault((op, o), made)

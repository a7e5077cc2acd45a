"""Stages that only move what one other stage makes become that stage, and equal stages become one.

The gradient of a padded input is a part of the gradient of the padding: computed where it is wanted, nothing
is made that is dropped afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from schedules import affine
from schedules.expr import Const, Expr, Var
from schedules.te.reverse_mode.graph import like, placed, ranges_of, reads, rebuilt, stages, targets, tidy
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, key


def without_copies(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors with fewer stages."""
    readers: Counter[Key] = Counter()
    for op in stages(roots):
        readers.update({key(x.tensor) for x in reads(op)})
    kept = {key(t) for t in roots}
    equal: dict[object, Tensor] = {}

    def change(old: Op, new: Op) -> Tensor | None:
        if old in fixed:
            return None
        (was,), (value,) = old.values, new.values
        made = like(new, value)
        if isinstance(was, TensorLoad) and isinstance(value, TensorLoad) and new.reducer is None:
            source = was.tensor.op
            if source is not None and source not in fixed:
                if value.indices == targets(len(new.axes)) and value.tensor.shape == made.shape:
                    return value.tensor
                if readers[key(was.tensor)] == 1 and key(was.tensor) not in kept:
                    made = _moved(new, value) or made
        op = made.op
        assert op is not None
        return equal.setdefault((op.axes, op.reduce_axes, op.values, op.places, op.reducer), made)

    return rebuilt(roots, change)


def _moved(copy: Op, x: TensorLoad) -> Tensor | None:
    """The stage that makes ``x``, at the places where ``copy`` reads it; None unless each is an axis plus a
    number."""
    source = x.tensor.op
    assert source is not None
    if source.places:
        return None
    env: dict[str, Expr] = {}
    for (v, _), i in zip(source.axes, x.indices, strict=True):
        terms, _ = affine.linear(i)
        if any(not isinstance(a, Var) or c != Const(1) for a, c in terms.items()) or len(terms) > 1:
            return None
        env[v] = i
    moved = like(source, source.values[0], axes=copy.axes, names=copy.names)
    assert moved.op is not None
    value = tidy(placed(source.values[0], env), ranges_of(moved.op))
    return like(moved.op, value)

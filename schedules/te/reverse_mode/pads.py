"""Sums of products whose factors end at a border get padded factors instead of conditions.

A condition such as ``0 <= i - t < n`` around a product with ``g[i - t]`` asks nothing if ``g`` is 0 beyond
its ends. So ``g`` is copied into the middle of zeros, which costs a copy of one operand and makes the sum
plain. All that read a tensor share one copy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.affine import Range
from schedules.expr import Binary, Cast, Compare, Const, Expr, Fma, Select
from schedules.loads import with_loads
from schedules.te.reverse_mode.graph import (
    Ranges,
    at,
    guarded,
    guards,
    like,
    loads,
    ranges_of,
    rebuilt,
    stage,
    stages,
    targets,
    tidy,
)
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, key

Box = list[Range]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of a stage: the conditions that stay, and which of the tensors that it reads are
    padded."""

    conditions: tuple[Expr, ...]
    padded: frozenset[Key]


def padded(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors; sums read padded copies where that saves them conditions."""
    boxes: dict[Key, Box] = {}
    plans = {
        op: plan
        for op in stages(roots)
        if op not in fixed
        and op.reducer is not None
        and not op.places
        and (plan := _plan(op, boxes)) is not None
    }
    origin: dict[Key, Key] = {}
    copies: dict[Key, Tensor] = {}

    def change(old: Op, new: Op) -> Tensor | None:
        plan = plans.get(old)
        if plan is None:
            return None
        for was, now in zip(loads(old.values[0]), loads(new.values[0]), strict=True):
            origin[key(now.tensor)] = key(was.tensor)

        def from_copy(x: TensorLoad) -> Expr | None:
            k = origin[key(x.tensor)]
            if k not in plan.padded:
                return None
            if k not in copies:
                copies[k] = _copy(x.tensor, boxes[k])
            return at(copies[k], [i - lo for i, (lo, _) in zip(x.indices, boxes[k], strict=True)])

        value = with_loads(guards(new.values[0])[1], from_copy)
        return like(new, guarded(plan.conditions, tidy(value, ranges_of(new))))

    return rebuilt(roots, change)


def _copy(t: Tensor, box: Box) -> Tensor:
    """``t`` over a box of places, with 0 where it has none."""
    axes = targets(t.ndim)
    conds: list[Expr] = []
    for v, n, (lo, hi) in zip(axes, t.shape, box, strict=True):
        conds += [v >= -lo] if lo < 0 else []
        conds += [v < n - lo] if hi >= n else []
    value = at(t, [v - -lo if lo < 0 else v + lo for v, (lo, _) in zip(axes, box, strict=True)])
    copy = E.select(E.all_of(*conds), value, 0.0)
    return stage([hi - lo + 1 for lo, hi in box], copy, name=f"{t.name}_pad" if t.name else "pad")


def _plan(op: Op, boxes: dict[Key, Box]) -> _Plan | None:
    """How to do without conditions of a stage; adds to ``boxes`` what is then read of tensors."""
    conds, value = guards(op.values[0])
    ranges = ranges_of(op)
    every = loads(value)
    free = {x: _box(x, (), ranges) for x in every}
    zeros = [x for x in free if _vanishes(value, key(x.tensor))]
    stay = tuple(c for c in conds if not any(_tells(c, x) for x in zeros))
    if len(stay) == len(conds):
        return None
    outside: dict[Key, Box] = {}
    for x in every:
        box = _box(x, stay, ranges)
        if box is None:
            return None
        if all(0 <= lo and hi < n for (lo, hi), n in zip(box, x.tensor.shape, strict=True)):
            continue
        if x not in zeros and not _only_asked(value, key(x.tensor)):
            return None
        outside[key(x.tensor)] = _hull(outside.get(key(x.tensor)), box)
    for x in every:  # whatever reads a tensor that is padded reads the copy
        if key(x.tensor) in outside:
            box = _box(x, stay, ranges)
            assert box is not None
            outside[key(x.tensor)] = _hull(outside[key(x.tensor)], box)
    for k, box in outside.items():
        boxes[k] = _hull(boxes.get(k), box)
    return _Plan(stay, frozenset(outside))


def _box(x: TensorLoad, conds: tuple[Expr, ...], ranges: Ranges) -> Box | None:
    """The places that a load reads where the conditions hold, or None where that can't be told."""
    box: Box = []
    for i in x.indices:
        r = None if E.loads(i) else affine.refine(conds, i, affine.bounds(i, ranges), ranges)
        if r is None:
            return None
        box.append(r)
    return box


def _hull(a: Box | None, b: Box) -> Box:
    return b if a is None else list(map(affine.hull, a, b))


def _tells(c: Expr, x: TensorLoad) -> bool:
    """Whether the load is outside of its tensor wherever the condition doesn't hold."""
    if not isinstance(c, Compare) or c.op not in ("<", "<="):
        return False
    left = c.b - c.a - (1 if c.op == "<" else 0)  # at least 0 where it holds
    for i, n in zip(x.indices, x.tensor.shape, strict=True):
        for inside in (i, Const(n - 1) - i):  # both are at least 0 inside
            terms, more = affine.linear(left - inside)
            if not terms and isinstance(more, Const) and more.value >= 0:
                return True
    return False


def _vanishes(e: Expr, t: Key) -> bool:
    """Whether a value is 0 where all that it reads of a tensor is, if its other parts are finite."""
    match e:
        case TensorLoad():
            return key(e.tensor) == t
        case Const(value=v):
            return v == 0
        case Binary(op="*", a=a, b=b):
            return _vanishes(a, t) or _vanishes(b, t)
        case Binary(op="/", a=a, b=b):
            return _vanishes(a, t) and not any(key(x.tensor) == t for x in loads(b))
        case Binary(op="+" | "-", a=a, b=b) | Select(a=a, b=b):
            return _vanishes(a, t) and _vanishes(b, t)
        case Fma(a=a, b=b, c=c):
            return (_vanishes(a, t) or _vanishes(b, t)) and _vanishes(c, t)
        case Cast(a=a):
            return _vanishes(a, t)
    return False


def _only_asked(e: Expr, t: Key) -> bool:
    """Whether a tensor is read by conditions of selects alone."""
    match e:
        case TensorLoad():
            return key(e.tensor) != t
        case Select(a=a, b=b):
            return _only_asked(a, t) and _only_asked(b, t)
    return all(_only_asked(k, t) for k in E.children(e))

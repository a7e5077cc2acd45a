"""Stages compute what is read of them, and no more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.affine import Range
from schedules.expr import Expr, Var
from schedules.loads import with_loads
from schedules.te.reverse_mode.graph import (
    at,
    guards,
    like,
    loads,
    placed,
    ranges_of,
    reads,
    rebuilt,
    stages,
    tidy,
)
from schedules.te.tensors import Key, Op, Tensor, TensorLoad, key

# A range of places along each dimension.
Box = list[Range]


def trimmed(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors; a stage behind them computes the smallest box that holds all that is read of it."""
    boxes = _boxes(roots, fixed)
    starts: dict[Key, list[int]] = {}

    def change(old: Op, new: Op) -> Tensor | None:
        if old in fixed:
            return None
        value = _moved(new.values[0], starts)
        if new.places:
            new = replace(new, places=tuple(_moved(p, starts) for p in new.places))
        box = boxes.get(old)
        if box is None or all(r == (0, n - 1) for r, (_, n) in zip(box, old.axes, strict=True)):
            same = value is new.values[0] and not new.places
            return None if same else like(new, tidy(value, ranges_of(new)))
        env: dict[str, Expr] = {v: Var(v) + lo for (v, _), (lo, _) in zip(new.axes, box, strict=True)}
        axes = tuple((v, hi - lo + 1) for (v, _), (lo, hi) in zip(new.axes, box, strict=True))
        ranges = {v: (0, n - 1) for v, n in (*axes, *new.reduce_axes)}
        made = like(new, tidy(placed(value, env), ranges), axes=axes)
        starts[key(made)] = [lo for lo, _ in box]
        return made

    return rebuilt(roots, change)


def _moved(e: Expr, starts: dict[Key, list[int]]) -> Expr:
    """``e`` with indices that count from where tensors now begin."""

    def moved(x: TensorLoad) -> Expr | None:
        first = starts.get(key(x.tensor))
        return at(x.tensor, [i - lo for i, lo in zip(x.indices, first, strict=True)]) if first else None

    return with_loads(e, moved) if any(key(x.tensor) in starts for x in loads(e)) else e


def _boxes(roots: Sequence[Tensor], fixed: Collection[Op]) -> dict[Op, Box]:
    """What is read of each stage that may change; stages that nothing is read of are left out."""
    whole = {t.op for t in roots}
    boxes: dict[Op, Box] = {}
    for op in reversed(stages(roots)):
        if op in whole or op in fixed or op.places:
            box = [(0, n - 1) for _, n in op.axes]
        else:
            box = boxes[op]
        ranges = {v: r for (v, _), r in zip(op.axes, box, strict=True)}
        ranges |= {v: (0, n - 1) for v, n in op.reduce_axes}
        conds = guards(op.values[0])[0]
        for x in reads(op):
            source = x.tensor.op
            if source is None:
                continue
            read = [_reach(i, n, conds, ranges) for i, n in zip(x.indices, x.tensor.shape, strict=True)]
            old = boxes.get(source)
            boxes[source] = read if old is None else list(map(affine.hull, read, old))
    return {op: box for op, box in boxes.items() if op not in whole and op not in fixed and not op.places}


def _reach(index: Expr, n: int, conds: tuple[Expr, ...], ranges: dict[str, Range]) -> Range:
    """The places that an index may have within a dimension."""
    found = affine.refine(conds, index, affine.bounds(index, ranges), ranges) if not E.loads(index) else None
    lo, hi = found if found is not None else (0, n - 1)
    lo, hi = max(lo, 0), min(hi, n - 1)
    return (lo, hi) if lo <= hi else (0, 0)

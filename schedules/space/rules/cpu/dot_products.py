"""Rule for products of one or few rows with a matrix that is contiguous along the reduction (A times B
transposed, and A times a few columns).

Results are dot products, in vectors along the reduction, of a few rows of both operands at a time. The larger
operand is not packed, because packing takes longer than multiplying few rows. It is read once. A much smaller
one that lies across the reduction is transposed before. Reasons: ADR 32.
"""

from __future__ import annotations

import math

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.ir import Block
from schedules.ir.strides import known_strides
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    operands,
    reduction_length,
    spatial,
    unit_stride_vars,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Most uses of an element of the larger operand.
FEW = 8
# Fewest steps of a reduction: adding up the lanes at its end then costs little;
LONG = 256
# and where each element of the larger operand is used once, as transposing that costs more.
ONCE = 32
# Rows of a tile that are offered, and all where they are few.
ROWS = (1, 2, 3, 4, 6, 8)
# Times by which an operand is smaller than the larger one, at least, so that transposing it costs little.
TURNED = 16
# Vectors of sums for each result that are offered, where the larger operand is used once.
VECTORS = (1, 2, 4)


def dot_product_axes(d: SketchBuilder, b: Block, apart: bool = False) -> list[str]:
    """The spatial axes of such a product, first those along which the larger operand moves; empty for other
    blocks, and for an operand known ahead, which is better packed. ``apart``: of a product that row-wise
    stages read: its axes are in the order in which the larger operand lies, and its sums may be short, as
    else the operand would be transposed in each call."""
    n, own, axes = extents(b), operands(b), spatial(b)
    if len(own) < 2 or len(b.writes) > 1:
        return []
    larger = _larger(b)
    across = _across(d, b)
    if larger in across or any(not _is_turned_cheaply(b, x) for x in across):
        return []
    still = [a for a in axes if n[a] == 1 or not depends(larger, a)]
    uses = math.prod(n[a] for a in still)
    few = uses <= FEW and reduction_length(b) >= (ONCE if uses == 1 or apart else LONG)
    moving = [a for a in axes if a not in still]
    if apart:
        moving.sort(key=lambda a: -_step(d, larger, a))
    return [*moving, *still] if few and moving and larger.buffer not in d.s.dag.constants else []


def _step(d: SketchBuilder, x: Load, axis: str) -> int:
    """How far in memory an access moves along an axis, at least (elements)."""
    steps = known_strides(d.s.nest.buffer(x.buffer))
    return min(k for i, k in zip(x.indices, steps, strict=True) if axis in E.variables(i))


def _larger(b: Block) -> Load:
    """The operand of which the product reads more elements."""
    return max(operands(b), key=lambda x: _rows(b, x))


def _rows(b: Block, x: Load) -> int:
    """Rows along the reduction that the product reads of an operand."""
    n = extents(b)
    return math.prod(n[a] for a in spatial(b) if depends(x, a))


def _across(d: SketchBuilder, b: Block) -> list[Load]:
    """Operands that are not contiguous along the reduction."""
    last = [i.var for i in b.iters if i.kind == "reduce"][-1]
    return [x for x in operands(b) if last not in unit_stride_vars(d.s.nest, x)]


def _is_turned_cheaply(b: Block, x: Load) -> bool:
    """Whether an operand is much smaller than the larger one, and a copy of it could be contiguous along the
    reduction."""
    last = [i.var for i in b.iters if i.kind == "reduce"][-1]
    alone = x.indices.count(Var(last)) == 1 and sum(last in E.variables(i) for i in x.indices) == 1
    return alone and not is_gathered(x) and TURNED * _rows(b, x) <= _rows(b, _larger(b))


def _turn(d: SketchBuilder, name: str, x: Load) -> None:
    """Let the product read a copy of an operand that is contiguous along the reduction."""
    last = [i.var for i in d.block(name).iters if i.kind == "reduce"][-1]
    at = x.indices.index(Var(last))
    copy = copy_read(d, name, x)
    d.done.add(copy)
    d.s.reorder_storage(copy, [*(k for k in range(len(x.indices)) if k != at), at])
    loops = [v.var for v in d.own_loops(copy)]
    outer, lanes = d.s.split(loops.pop(at), (None, d.lanes_of(d.dtype(d.block(copy)))), "shift")
    d.s.reorder(outer, *loops, lanes)
    d.s.vectorize(lanes)
    d.parallel(outer)


def schedule_dot_products(d: SketchBuilder, name: str, axes: list[str]) -> None:
    """Keep partial results in the lanes of vectors (rfactor) for each point of a tile, and add them up at its
    end. ``axes``: as of `dot_product_axes`."""
    for x in dict.fromkeys(_across(d, d.block(name))):
        _turn(d, name, x)
    b, last = d.block(name), d.loops(name)[-1]
    n, w = extents(b), d.lanes_of(d.dtype(b))
    once = all(n[a] == 1 or depends(_larger(b), a) for a in axes)
    wide = [w * k for k in VECTORS if w * k <= extent(last)] if once else []
    _, step = d.s.split(last.var, (None, d.choice(f"{name}.lanes", wide or [w])))
    partial = d.s.rfactor(name, step)
    d.done.add(name)
    *points, lane = (x.var for x in d.loops(name))
    loop = dict(zip(spatial(d.block(name)), points, strict=True))
    outer, inner = [], []
    opened = []
    for a in axes:
        o, i = d.s.split(loop[a], (None, d.choice(f"{name}.{a}", _row_counts(n[a]))))
        outer.append(o)
        inner.append(i)
        opened += [o] if (name, a) in d.open else []
    d.s.reorder(*outer, *inner, lane)
    d.s.compute_at(partial, outer[-1])
    d.s.decompose_reduction(name, lane)
    for i in inner:
        d.s.unroll(i)
    d.s.vectorize(lane)
    _schedule_partial(d, partial)
    for o in opened:
        d.s.partition(o)
    d.parallel(outer[0])


def _row_counts(n: int) -> list[int]:
    return sorted({k for k in ROWS if n % k == 0} | ({n} if n <= FEW else set()))


def _schedule_partial(d: SketchBuilder, partial: str) -> None:
    """Put the reduction outside a tile of unrolled vectors."""
    reduce, (*points, lanes) = d.own_apart(partial)
    d.s.reorder(*reduce, *points, lanes)
    for x in points:
        d.s.unroll(x)
    d.s.vectorize(lanes)
    d.s.partition(reduce[-1])
    d.s.decompose_reduction(partial, reduce[0])

"""Rule for products of one or few rows with a matrix that is contiguous along the reduction (A times B
transposed).

Results are dot products, in vectors along the reduction, of a few rows of both operands at a time. Nothing is
packed, because packing takes longer than multiplying few rows. The larger operand is read once. Reasons: ADR
32.
"""

from __future__ import annotations

import math

from schedules.expr import Load
from schedules.ir import Block
from schedules.ir.nest import vars_bound
from schedules.space.rules.patterns import (
    depends,
    extents,
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
# Rows of a tile that are offered.
ROWS = (1, 2, 3, 4, 6, 8)
# Vectors of sums for each result that are offered, where the larger operand is used once.
VECTORS = (1, 2, 4)


def dot_product_axes(d: SketchBuilder, b: Block) -> list[str]:
    """The spatial axes of such a product, first those along which the larger operand moves; empty for other
    blocks, and for an operand known ahead, which is better packed."""
    n, own, axes = extents(b), operands(b), spatial(b)
    reduce = [i.var for i in b.iters if i.kind == "reduce"]
    if len(own) < 2 or len(b.writes) > 1 or not all(reduce[-1] in unit_stride_vars(d.s.nest, x) for x in own):
        return []
    larger = _larger(b)
    still = [a for a in axes if n[a] == 1 or not depends(larger, a)]
    uses = math.prod(n[a] for a in still)
    few = uses <= FEW and reduction_length(b) >= (ONCE if uses == 1 else LONG)
    moving = [a for a in axes if a not in still]
    return [*moving, *still] if few and moving and larger.buffer not in d.s.dag.constants else []


def _larger(b: Block) -> Load:
    """The operand of which the product reads more elements."""
    n, axes = extents(b), spatial(b)
    return max(operands(b), key=lambda x: math.prod(n[a] for a in axes if depends(x, a)))


def schedule_dot_products(d: SketchBuilder, name: str, axes: list[str]) -> None:
    """Keep partial results in the lanes of vectors (rfactor) for each point of a tile, and add them up at its
    end. ``axes``: as of `dot_product_axes`."""
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
    for a in axes:
        o, i = d.s.split(loop[a], (None, d.choice(f"{name}.{a}", [k for k in ROWS if n[a] % k == 0])))
        outer.append(o)
        inner.append(i)
    d.s.reorder(*outer, *inner, lane)
    d.s.compute_at(partial, outer[-1])
    d.s.decompose_reduction(name, lane)
    for i in inner:
        d.s.unroll(i)
    d.s.vectorize(lane)
    _schedule_partial(d, partial)
    if d.threads > 1:
        d.s.parallel(outer[0])


def _schedule_partial(d: SketchBuilder, partial: str) -> None:
    """Put the reduction outside a tile of unrolled vectors."""
    own = [x.var for x in d.own_loops(partial)]
    reduce = [x for x in own if x in vars_bound(d.block(partial), "reduce")]
    *points, lanes = (x for x in own if x not in reduce)
    d.s.reorder(*reduce, *points, lanes)
    for x in points:
        d.s.unroll(x)
    d.s.vectorize(lanes)
    d.s.partition(reduce[-1])
    d.s.decompose_reduction(partial, reduce[0])

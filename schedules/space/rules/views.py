"""Views are seen as what they are, before other rules look: a dimension that holds several axes, such as the
heads of q, k and v side by side in one row, becomes a dimension for each, and an axis that is cut into its
parts in every index becomes an axis for each part. A stage that reads another with its axes in another order,
as where heads are joined to rows, gets its axes in that order.

This is the inverse of `schedules.space.rules.merge`, for long axes that stand for several.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import reads, writers
from schedules.primitives.cache_read_part import places_read
from schedules.primitives.split_axis import axis_ranges
from schedules.primitives.split_dim import SplitDim
from schedules.space.rules.patterns import SHORT_WINDOW, extents, spatial, vector_axis
from schedules.space.sketch_builder import SketchBuilder

# Most dimensions and axes that are split: an expression has few, and each split makes more.
MOST = 16


def split_views(d: SketchBuilder) -> None:
    """Split axes and dimensions that stand for several. Call it before any stage is scheduled."""
    for _ in range(MOST):
        if not (_split_an_axis(d) or _split_a_dimension(d)):
            return


def order_axes(d: SketchBuilder) -> None:
    """Give elementwise stages the axes of the reductions that they read, in the same order. The axis in which
    results are contiguous stays the last. Call it after neighbouring axes were merged."""
    for b in blocks(d.s.nest.body):
        order = _order(d.s.nest, b)
        if order is not None and order != spatial(b):
            loop = dict(zip(spatial(b), [x.var for x in d.loops(b.name)], strict=True))
            d.s.reorder_axes(*(loop[v] for v in order))


def _split_an_axis(d: SketchBuilder) -> bool:
    """Split an axis whose parts are indices of their own: ``x[n // d, i, n % d]``. Not of a stage whose
    result other stages read, as these go along the whole axis."""
    nest = d.s.nest
    for b in blocks(nest.body):
        loops = [x.var for x in d.loops(b.name)]
        for n, it in enumerate(b.iters):
            if it.kind == "spatial" and any(_is_read(nest, w.buffer) for w in b.writes):
                continue
            if not isinstance(it.extent, Const) or len(loops) != len(b.iters):
                continue
            inner = _divisor(d, b, it.var)
            if not 1 < inner < int(it.extent.value) or int(it.extent.value) % inner:
                continue
            written = [
                (w.buffer, k) for w in b.writes for k, i in enumerate(w.indices) if it.var in E.variables(i)
            ]
            d.s.split_axis(loops[n], inner)
            for buffer, k in written:
                d.s.split_dim(buffer, k, inner)
            return True
    return False


def _divisor(d: SketchBuilder, b: Block, axis: str) -> int:
    """The number by which an axis is divided in two indices of one load, the quotient in one and the rest in
    another; 0 if there is none. The axis that fills vectors is not divided by less than a vector has, unless
    what it reads goes on in memory along the rest."""
    last = axis == vector_axis(b) and not any(
        w.reducer is not None for x in reads(b) for w in writers(d.s.nest, x.buffer)
    )
    for x in reads(b):
        for i in x.indices:
            match i:
                case Binary(op="//", a=Var(name=name), b=Const(value=k)) if name == axis:
                    rest = Binary("%", i.a, i.b)
                    if rest in x.indices and not (
                        last and k < d.lanes_of(d.dtype(b)) and rest != x.indices[-1]
                    ):
                        return int(k)
    return 0


def _is_read(nest: Nest, buffer: str) -> bool:
    return any(x.buffer == buffer for b in blocks(nest.body) for x in reads(b))


def _split_a_dimension(d: SketchBuilder) -> bool:
    """Split a dimension of an argument in which every index is a multiple of a number and an axis that is
    shorter: ``x[i, h * d + k]``."""
    for buffer, dim, inner in dict.fromkeys(_composite(d.s.nest)):
        split = SplitDim(buffer, dim, inner)
        if not writers(d.s.nest, buffer) and all(
            _is_plain(i)
            for b in blocks(d.s.nest.body)
            for x in places_read(b, buffer)
            for i in split.parts(x.indices[dim], axis_ranges(b.iters))
        ):
            d.s.split_dim(buffer, dim, inner)
            return True
    return False


def _composite(nest: Nest) -> Iterator[tuple[str, int, int]]:
    """(argument, dimension, length of its inner part) wherever an index is such a sum. Windows are none: they
    are short, and overlap or are read whole."""
    for b in blocks(nest.body):
        n = extents(b)
        for x in reads(b):
            buffer = nest.buffer(x.buffer)
            if x.buffer not in nest.params or buffer.strides is not None:
                continue
            for dim, (i, whole) in enumerate(zip(x.indices, buffer.shape, strict=True)):
                terms, start = affine.linear(i)
                for low, step in terms.items():
                    inner = n.get(low.name, 0) if isinstance(low, Var) and step == Const(1) else 0
                    rest = [c for a, c in terms.items() if a != low] + [start]
                    more = any(c != Const(0) for c in rest)
                    fits = isinstance(whole, Const) and inner and int(whole.value) % inner == 0
                    if more and fits and inner > SHORT_WINDOW and all(_divides(inner, c) for c in rest):
                        yield x.buffer, dim, inner


def _divides(k: int, c: Expr) -> bool:
    return isinstance(c, Const) and int(c.value) % k == 0


def _is_plain(index: Expr) -> bool:
    """Whether nothing is divided in an index."""
    return not any(isinstance(x, Binary) and x.op in ("//", "%") for x in E.walk(index))


def _order(nest: Nest, b: Block) -> list[str] | None:
    """The axes in the order in which a stage reads a reduction at all of them, if its other reads of
    intermediate results agree; None if there is none."""
    if b.reducer is not None:
        return None
    axes, n = spatial(b), extents(b)
    made = [x for x in reads(b) if x.buffer not in nest.params]
    whole = [x for x in made if any(w.reducer is not None for w in writers(nest, x.buffer))]
    order = next((v for x in whole if (v := _axes_of(x)) is not None and sorted(v) == sorted(axes)), None)
    if order is None or not axes or order[-1] != axes[-1] or n[axes[-1]] == 1:
        return None
    place = {v: k for k, v in enumerate(order)}
    for x in made:
        at = [place[v] for i in x.indices for v in sorted(E.variables(i))]
        if at != sorted(at):
            return None
    return order


def _axes_of(x: Load) -> list[str] | None:
    """The axes that are the indices of a load, each once; None if others are."""
    names = [i.name for i in x.indices if isinstance(i, Var)]
    return names if len(names) == len(x.indices) == len(set(names)) else None

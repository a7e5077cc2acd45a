"""Views are seen as what they are, before other rules look: a dimension that holds several axes, such as the
heads of q, k and v side by side in one row, becomes a dimension for each, and an axis that is cut into its
parts in every index becomes an axis for each part. A stage that reads another with its axes in another order,
as where heads are joined to rows, gets its axes in that order.

This is the inverse of `schedules.space.rules.merge`, for long axes that stand for several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import axis_ranges, loops_of, readers, reads, writers
from schedules.ir.strides import known_strides
from schedules.primitives.cache_read_part import places_read
from schedules.primitives.cache_read_view import StagedRead, view_of
from schedules.primitives.split_dim import SplitDim
from schedules.space.rules.patterns import (
    SHORT_WINDOW,
    extents,
    is_row_reduction,
    operands,
    spatial,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder
from schedules.strides import inner_first

# Fewest steps of a reduction for each element that it reads divided, for which a copy of these may pay.
READ_AGAIN = 4
# Most dimensions and axes that are split: an expression has few, and each split makes more.
MOST = 16


def split_views(d: SketchBuilder) -> None:
    """Split axes and dimensions that stand for several. Call it before any stage is scheduled."""
    for _ in range(MOST):
        if not (_split_an_axis(d) or _split_a_sum(d) or _split_groups(d) or _split_a_dimension(d)):
            return


def order_axes(d: SketchBuilder) -> None:
    """Give elementwise stages the axes of the reductions that they read, in the same order, and those that
    read arguments alone the order of their results in memory. The axis in which results are contiguous is the
    last. Call it after neighbouring axes were merged."""
    for b in blocks(d.s.nest.body):
        order = _order(d.s.nest, b) or _order_in_memory(d.s.nest, b)
        if order is not None and order != spatial(b):
            loop = dict(zip(spatial(b), [x.var for x in d.loops(b.name)], strict=True))
            d.s.reorder_axes(*(loop[v] for v in order))


def copy_views(d: SketchBuilder) -> None:
    """Let reductions read what they would have to divide for, and read again and again, through copies that
    are divided once. Call it after axes were split, as then less is divided."""
    for b in blocks(d.s.nest.body):
        if b.reducer is None or d.is_nested(b.name):
            continue
        steps = prod(extents(b).values())
        for x in dict.fromkeys(operands(b)):  # each once, however often it is read
            view = view_of(d.s.nest, b, x)
            axes = {(b.name, v) for i in x.indices for v in E.variables(i)}
            opened = axes & d.open or {(x.buffer, k) for k in range(len(x.indices))} & d.open_dims
            if view is None or opened:  # a copy has numbers for extents
                continue
            if steps < READ_AGAIN * prod(view.extents) and x.buffer not in d.s.dag.constants:
                continue
            if d.choose(f"{b.name}.{x.buffer}", ("copy", "")):
                place = places_read(d.block(b.name), x.buffer).index(x)
                _with_lanes_last(d, b, d.s.cache_read_view(b.name, x.buffer, place), view)


def _with_lanes_last(d: SketchBuilder, b: Block, copy: str, view: StagedRead) -> None:
    """Store a copy so that it goes on in memory along the axis in which the block's results do."""
    lanes, rank = vector_axis(b), len(view.place)
    last = next((k for k, i in enumerate(view.place) if lanes and i == Var(lanes)), rank - 1)
    if last != rank - 1:
        order = [*(k for k in range(rank) if k != last), last]
        loops = [x.var for x in d.loops(copy)]
        d.s.reorder_axes(*(loops[k] for k in order))
        d.s.reorder_storage(copy, order)


def _split_an_axis(d: SketchBuilder) -> bool:
    """Split an axis whose parts are indices of their own: ``x[n // d, i, n % d]``. Not of a stage whose
    result other stages read, as these go along the whole axis."""
    nest = d.s.nest
    for b in blocks(nest.body):
        loops = [x.var for x in d.loops(b.name)]
        for n, it in enumerate(b.iters):
            if (b.name, it.var) in d.open:  # as long as its parts at the largest size alone
                continue
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
                d.split_dim(buffer, k, inner)
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


def _split_a_sum(d: SketchBuilder) -> bool:
    """Split an axis that is summed and divided by a number in an index: ``x[k % d, k // d]``."""
    for b in blocks(d.s.nest.body):
        if b.reducer is None or is_row_reduction(d.s.nest, b):
            continue
        loops, n = [x.var for x in d.loops(b.name)], extents(b)
        for it, loop in zip(b.iters, loops, strict=True):
            if it.kind == "reduce" and (b.name, it.var) not in d.open:
                every = (e for x in operands(b) for i in x.indices for e in E.walk(i))
                by = {k for e in every if (k := _divided(e, it.var, "//", "%"))}
                inner = next((k for k in sorted(by) if 1 < k < n[it.var] and n[it.var] % k == 0), 0)
                if inner:
                    d.s.split_axis(loop, inner)
                    return True
    return False


def _split_groups(d: SketchBuilder) -> bool:
    """Split an axis of a reduction along which an operand is the same for a group of neighbours, as channels
    of a grouped convolution read those of their group: ``x[n // d * e + c]``. So no tile lies in two groups.
    The stages that read the result elementwise are split with it."""
    for b in blocks(d.s.nest.body):
        if b.reducer is None or is_row_reduction(d.s.nest, b):
            continue
        n, least = extents(b), d.lanes_of(d.dtype(b)) // 2
        for axis in spatial(b):
            inner = next((k for x in operands(b) if (k := _group(x, axis))), 0)
            if not least <= inner < n[axis] or n[axis] % inner:
                continue
            stages = _alike(d.s.nest, b, axis)
            if stages is None or any((s, spatial(d.block(s))[k]) in d.open for s, k in stages.items()):
                continue
            for name, dim in stages.items():
                d.s.split_axis(d.loops(name)[dim].var, inner)
            written = {w.buffer: dim for name, dim in stages.items() for w in d.block(name).writes}
            for buffer, dim in written.items():
                d.split_dim(buffer, dim, inner)
            return True
    return False


def _group(x: Load, axis: str) -> int:
    """The number by which a load divides an axis that it has nowhere else; 0 if there is none."""
    every = [e for i in x.indices for e in E.walk(i)]
    uses = sum(e == Var(axis) for e in every)
    by = {k: sum(e == Var(axis) // k for e in every) for e in every if (k := _divided(e, axis, "//"))}
    return next((k for k, times in by.items() if times == uses), 0)


def _divided(e: Expr, axis: str, *ops: str) -> int:
    """The number by which an expression divides an axis; 0 if it does not."""
    match e:
        case Binary(op=op, a=Var(name=name), b=Const(value=k)) if op in ops and name == axis:
            return int(k)
    return 0


def _alike(nest: Nest, b: Block, axis: str) -> dict[str, int] | None:
    """{stage: its axis, by number} of a stage and all that need it, whose axis is the same. None where one
    reads it otherwise, or has loops that are no axes."""
    found = {b.name: spatial(b).index(axis)}
    todo = [b]
    while todo:
        p = todo.pop()
        dim = found[p.name]
        if not _is_whole(nest, p, dim):
            return None
        for u in (u for w in p.writes for u in readers(nest, w.buffer) if u is not p):
            own = {x.indices for x in reads(u) if x.buffer in {w.buffer for w in p.writes}}
            along = {at[dim] for at in own}
            one = next(iter(along))
            if u.reducer is not None or len(along) > 1 or not isinstance(one, Var):
                return None
            if any(one.name in E.variables(i) for at in own for k, i in enumerate(at) if k != dim):
                return None
            if found.setdefault(u.name, place := spatial(u).index(one.name)) != place:
                return None
            todo.append(u)
    return found


def _is_whole(nest: Nest, b: Block, dim: int) -> bool:
    """Whether a stage writes its results at its own axes, in order, in loops that are these."""
    at = tuple(Var(v) for v in spatial(b))
    same = all(nest.buffer(w.buffer).shape[dim] == b.iters[dim].extent for w in b.writes)
    return same and all(w.indices == at for w in b.writes) and len(loops_of(nest, b.name)) == len(b.iters)


def _is_read(nest: Nest, buffer: str) -> bool:
    return any(x.buffer == buffer for b in blocks(nest.body) for x in reads(b))


def _split_a_dimension(d: SketchBuilder) -> bool:
    """Split a dimension of an argument in which every index is a multiple of a number and an axis that is
    shorter: ``x[i, h * d + k]``."""
    for buffer, dim, inner in dict.fromkeys(_composite(d.s.nest, d.open)):
        if (buffer, dim) in d.open_dims:
            continue
        split = SplitDim(buffer, dim, inner)
        if not writers(d.s.nest, buffer) and all(
            _is_plain(i)
            for b in blocks(d.s.nest.body)
            for x in places_read(b, buffer)
            for i in split.parts(x.indices[dim], axis_ranges(b.iters))
        ):
            d.split_dim(buffer, dim, inner)
            return True
    return False


def _composite(nest: Nest, opened: Collection[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
    """(argument, dimension, length of its inner part) wherever an index is such a sum. Windows are none: they
    are short, and overlap or are read whole. ``opened``: (stage, axis) whose length is no number."""
    for b in blocks(nest.body):
        n = {v: k for v, k in extents(b).items() if (b.name, v) not in opened}
        for x in reads(b):
            buffer = nest.buffer(x.buffer)
            if x.buffer not in nest.params:
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


def _order_in_memory(nest: Nest, b: Block) -> list[str] | None:
    """The axes in the order in which results with strides lie; None where a stage has none, or reads what
    others make, whose order it keeps."""
    made = any(x.buffer not in nest.params for x in reads(b))
    if b.reducer is not None or made or len(b.writes) != 1 or nest.buffer(b.writes[0].buffer).strides is None:
        return None
    axes = [i.name for i in b.writes[0].indices if isinstance(i, Var)]
    strides = known_strides(nest.buffer(b.writes[0].buffer))
    if sorted(axes) != sorted(spatial(b)) or len(axes) != len(strides):
        return None
    return [axes[k] for k in reversed(inner_first(strides))]


def _axes_of(x: Load) -> list[str] | None:
    """The axes that are the indices of a load, each once; None if others are."""
    names = [i.name for i in x.indices if isinstance(i, Var)]
    return names if len(names) == len(x.indices) == len(set(names)) else None

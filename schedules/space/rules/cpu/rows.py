"""Rule for row reductions: stages that reduce along memory, fused row by row.

All stages of a row run while it is in the cache (softmax, norms, row sums). Each reduction keeps several
vectors of partial results (rfactor over lanes), which a horizontal reduction combines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import takewhile
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Var
from schedules.ir import Block, Loop, Nest, blocks
from schedules.ir.nest import apart, behind, bound, loops_of, reads, vars_bound, writers
from schedules.ir.strides import buffer_strides
from schedules.space.estimate.counting import arithmetic
from schedules.space.rules.cpu.prefetching import prefetch_rows
from schedules.space.rules.cpu.streaming import beyond_caches
from schedules.space.rules.patterns import (
    extents,
    is_joined_along,
    is_map,
    is_read_anywhere,
    is_row_reduction,
    operands,
    read_only_inside,
    rows_of_group,
    spatial,
)
from schedules.space.sketch_builder import SketchBuilder, extent, innermost

# Fewest steps of a reduction that is split among threads.
LONG_REDUCTION = 1 << 15
# Vectors of partial results of a reduction.
CHAINS = (1, 2, 4, 8)
# How often rows may compute a stage again that they share.
MOST_AGAIN = 4


def split_long_reduction(d: SketchBuilder, name: str) -> bool:
    """Split a reduction with too few rows for the threads: parallel partial results (rfactor) as a stage of
    their own. Split is its first axis with enough steps, else the longest. Returns whether it was split."""
    b = d.block(name)
    if d.threads == 1 or b.reducer is None:
        return False
    rows = total = 1
    red = []
    for it, loop in zip(b.iters, d.loops(name), strict=True):
        if it.kind == "spatial":
            rows *= max(1, extent(loop))
        else:
            total *= max(1, extent(loop))
            red.append(loop)
    if rows >= 4 * d.threads or total < LONG_REDUCTION or not red:
        return False
    enough = 4 * d.threads
    axis = next((x for x in red if extent(x) >= enough), max(red, key=extent))
    counts = [p for p in (d.threads, enough, 4 * enough) if p <= extent(axis)]
    outer, _ = d.s.split(axis.var, (d.choice(f"{name}.parts", counts or [1]), None))
    if before := [x.var for x in takewhile(lambda x: x is not axis, red)]:
        d.s.reorder(outer, *before)
    d.roots.add(d.s.rfactor(name, outer))
    return True


def schedule_rows(d: SketchBuilder, root: str) -> None:
    """Schedule ``root`` and all that it reads and that can be computed row by row."""
    b = d.block(root)
    rank = row_rank(d, b)
    if b.reducer is None:
        split_groups(d, root, rank)
    partials = lanes_of_reduction(d, root) if b.reducer is not None else []
    loops = [x.var for x in d.loops(root)]
    rows = loops[:rank]
    row = None
    if rows:
        row = d.fused(rows)
    if row is not None:
        compute_stages_at(d, root, row)
        inside = [x for x in d.s.blocks() if row in {y.var for y in d.loops(x)}]
        inside = [x for x in inside if x not in (root, *partials, f"{root}_init")]
        maps = [x for x in inside if is_map(d.block(x))]
        for name in inside:
            if name not in maps:
                maps = reduce_row(d, name, maps)
        for name in maps:
            vectorize_last(d, name)
    if b.reducer is None:
        vectorize_last(d, root, skip=1 if row is not None else 0)
    vectorize_partials(d, partials)
    if row is not None:
        walk_rows(d, row, root)


def split_groups(d: SketchBuilder, root: str, rank: int) -> None:
    """Split axes of ``root`` that are rows, ``rank`` of them, where several of its rows read one row of a
    reduction: the channels of a group, whose mean is then computed once."""
    b = d.block(root)
    for k, (axis, loop) in enumerate(zip(spatial(b)[:rank], d.loops(root)[:rank], strict=True)):
        places = [x.indices[k] for x in reads(b) if _is_reduced(d, x.buffer) and k < len(x.indices)]
        sizes = {rows_of_group(i, axis) for i in places}
        if len(sizes) == 1 and (n := sizes.pop()) > 1 and extent(loop) % n == 0 and extent(loop) > n:
            d.s.split(loop.var, (None, n))


def _is_reduced(d: SketchBuilder, buffer: str) -> bool:
    """Whether a buffer has a value a row: a reduction of rows, or a map of nothing but such values, as a mean
    is."""
    made = [w for w in writers(d.s.nest, buffer) if w.name not in d.done and w.name not in d.roots]
    if any(is_row_reduction(d.s.nest, w) for w in made):
        return True
    return any(is_map(w) and any(_is_reduced(d, x.buffer) for x in reads(w)) for w in made)


def walk_rows(d: SketchBuilder, row: str, root: str) -> None:
    """Make the loop over rows parallel, and offer prefetching of the next row or storing of a row
    meanwhile."""
    late = d.block(root).reducer is None and calls_functions(d, row, root) and beyond_caches(d)
    rows = extent(d.loops(root)[0])
    if d.threads > 1:
        parts = next((p for p in (4 * d.threads, d.threads) if late and rows % p == 0 and rows >= 2 * p), 0)
        outer = row
        if parts:
            outer, row = d.s.split(row, (parts, None))
        d.s.parallel(outer)
        late = parts > 0
    prefetch_rows(d, row, rows, root)
    if late and rows > 1:
        d.s.annotate(row, "software_pipeline", d.choice(f"{root}.late", (0, 1)))


def calls_functions(d: SketchBuilder, row: str, root: str) -> bool:
    """Whether a stage of the row calls special functions for as many elements as ``root`` has. That takes
    long enough to store another row meanwhile."""
    rank = len(d.block(root).iters)
    inside = [x for x in blocks(d.s.nest.body) if row in {y.var for y in d.loops(x.name)}]
    return any(len(x.iters) == rank and arithmetic(x)[1] for x in inside if x.name != root)


def compute_stages_at(d: SketchBuilder, root: str, loop: str) -> None:
    """Compute in ``loop``, around ``root``, all that only ``root`` and stages computed there read."""
    for name in reversed(d.s.blocks()):
        if name == root or name in d.done or name in d.roots or loop in {x.var for x in d.loops(name)}:
            continue
        b = d.block(name)
        if not read_only_inside(d.s.nest, b, loop) or is_read_anywhere(d.s.nest, b):
            continue  # it stays a stage of its own
        trial = copy(d.s)
        try:
            trial.compute_at(name, loop)
        except ScheduleError:
            continue  # what it reads is not there
        if _steps(d, trial.nest, name) > MOST_AGAIN * _steps(d, d.s.nest, name):
            continue  # many rows share it
        d.s.compute_at(name, loop)
        d.done.add(name)


def _steps(d: SketchBuilder, nest: Nest, name: str) -> int:
    """How often a block runs, with some decisions for holes."""
    decided = d.some_decisions()
    return prod(max(1, int(E.evaluate(x.extent, decided))) for x in loops_of(nest, name))


def row_rank(d: SketchBuilder, b: Block) -> int:
    """Number of leading axes of the root that are rows: those of the reductions behind it, as far as it reads
    what is computed in a row in their order. Else each of its rows would compute several of theirs."""
    n_spatial = len([i for i in b.iters if i.kind == "spatial"])
    if b.reducer is not None:
        return n_spatial
    ranks = [
        len([i for i in x.iters if i.kind == "spatial"])
        for x in blocks(d.s.nest.body)
        if is_row_reduction(d.s.nest, x) and x.name not in d.done and x.name not in d.roots
    ]
    rank, axes = min([n_spatial, *ranks]), [Var(v) for v in spatial(b)]
    made = [x for x in reads(b) if any(w.name not in d.done for w in writers(d.s.nest, x.buffer))]
    for x in made:
        turned = (
            k for k, (i, own) in enumerate(zip(x.indices, axes, strict=False)) if i in axes and i != own
        )
        rank = min([rank, *turned])
    return rank


def lanes_of_reduction(d: SketchBuilder, name: str, unit: int = 0) -> list[str]:
    """rfactor over lanes of the last reduction axes, for vectors of partial results. Returns the new blocks
    in the order in which they run; none if these axes are shorter than a vector. ``unit``: number that
    divides an open extent, 0 if not known."""
    last = _last_axis(d, name)
    b = d.block(name)
    # The rest of a long reduction is long for any number of parts. The parts are few.
    n = extent(last) or unit or (LONG_REDUCTION if isinstance(last.extent, E.Binary) else 0)
    w = d.lanes_of(d.dtype(b))
    options = [w * k for k in CHAINS if w * k <= n]
    if not options:
        return []
    if not apart(b):
        return _lanes_of_tuple(d, name, last, [n // w for n in options], w)
    lanes = d.choice(f"{name}.lanes", options)
    _, inner = d.s.split(last.var, (None, lanes))
    partial = d.s.rfactor(name, inner)
    lane = d.loops(name)[-1].var
    d.s.decompose_reduction(name, lane)
    d.s.vectorize(lane)
    return [partial]


def _lanes_of_tuple(d: SketchBuilder, name: str, last: Loop, chains: list[int], w: int) -> list[str]:
    """The same of a reducer whose outputs need each other. No instruction reduces its lanes, so that they are
    reduced one by one: several vectors of partial results become one before."""
    if chains == [1]:
        _, inner = d.s.split(last.var, (None, w))
        return [d.s.rfactor(name, inner)]
    _, vector, inner = d.s.split(last.var, (None, d.choice(f"{name}.chains", chains), w))
    one = d.s.rfactor(name, inner)
    return [d.s.rfactor(one, vector), one]


def _last_axis(d: SketchBuilder, name: str) -> Loop:
    """The innermost loop of a reduction. If it is shorter than a vector, it is fused with loops around it
    that continue in memory, if they are long enough together."""
    b = d.block(name)
    w = d.lanes_of(d.dtype(b))
    *outer, last = d.loops(name)
    together, n = [last], extent(last)
    while 0 < n < w and outer and _goes_on(d, b, outer[-1], together[0]):
        together.insert(0, outer.pop())
        n *= extent(together[0])
    if len(together) > 1 and not 0 < n < w:
        d.s.fuse(*(x.var for x in together))
    return d.loops(name)[-1]


def _goes_on(d: SketchBuilder, b: Block, outer: Loop, inner: Loop) -> bool:
    """Whether a step of ``outer`` in memory is as long as all of ``inner`` (two loops of a reduction) in
    every read of the block."""
    if outer.var not in vars_bound(b, "reduce"):
        return False
    for x in operands(b):
        place: E.Expr = Const(0)
        for i, step in zip(x.indices, buffer_strides(d.s.nest.buffer(x.buffer)), strict=True):
            place = place + bound(b, i) * step
        steps, _ = affine.linear(place)
        if steps.get(Var(outer.var), Const(0)) != steps.get(Var(inner.var), Const(0)) * extent(inner):
            return False
    return True


def vectorize_partials(d: SketchBuilder, names: Sequence[str]) -> None:
    """Vectorize blocks of partial results as `lanes_of_reduction` gives them."""
    for n, name in enumerate(names, 1):
        _vectorize_partial(d, name, n < len(names))


def _vectorize_partial(d: SketchBuilder, name: str, several: bool) -> None:
    """Vectorize partial results: the first values in vectors, then whole vectors until the tail. ``several``:
    their last axis counts vectors, and lanes are the axis before."""
    b = d.block(name)
    lane = spatial(b)[-2 if several else -1]
    own = [x.var for x in d.own_loops(name)]
    reduce = [v for v in own if v in vars_bound(b, "reduce")]
    last = [v for v in own if v in behind(b, lane)]
    vectors = [v for v in own if several and v in behind(b, spatial(b)[-1])]
    if f"{name}_ax0" in own:  # moved into a row: loops are ax*, then r*
        rest = [v for v in own if v not in (*reduce, *vectors, *last)]
        d.s.reorder(*rest, *reduce, *vectors, *last)
    for v in vectors:
        d.s.unroll(v)
    for x in b.writes if several else ():  # the lanes of a vector lie side by side
        rank = len(x.indices)
        d.s.reorder_storage(x.buffer, [*range(rank - 2), rank - 1, rank - 2])
    d.s.vectorize(last[-1])
    if reduce:
        d.s.decompose_reduction(name, reduce[0])
        d.s.partition(reduce[-1])


def reduce_row(d: SketchBuilder, name: str, maps: Sequence[str], unit: int = 0) -> list[str]:
    """Make partial results of reduction ``name``, and compute in their loop those of ``maps`` (stages of the
    same rows) that it reads first. Returns the other maps."""
    partials = [] if _goes_along_results(d, d.block(name)) else lanes_of_reduction(d, name, unit)
    vectorize_partials(d, partials)
    if not partials:
        _lanes_of_results(d, name)
    return [x for x in maps if not reduce_as_computed(d, x, partials[0] if partials else "")]


def _goes_along_results(d: SketchBuilder, b: Block) -> bool:
    """Whether lanes of a sum belong to its results: they fill a vector, lie side by side in what is summed,
    and a call tells how many terms there are, so that these may fill none. So does attention of one token
    with values."""
    if is_row_reduction(d.s.nest, b) or not apart(b):
        return False
    terms = [i.var for i in b.iters if i.kind == "reduce" and (b.name, i.var) in d.open]
    return bool(terms) and extents(b)[spatial(b)[-1]] >= d.lanes_of(d.dtype(b))


def _lanes_of_results(d: SketchBuilder, name: str) -> None:
    """Vectorize a reduction along its results in the row: one that is shorter than a vector, as those of
    windows are, and one of which a call tells the length. Nothing is done where the row has one of them."""
    b = d.block(name)
    own = {x.var: x for x in d.own_loops(name)}
    along = behind(b, spatial(b)[-1]) & own.keys() if spatial(b) else set()
    reduce = [v for v in own if v in vars_bound(b, "reduce")]
    if len(along) != 1 or not reduce or not apart(b):
        return
    (lane,) = along
    n, w = extent(own[lane]), d.lanes_of(d.dtype(b))
    if n < 2:
        return
    rest = [v for v in own if v not in (lane, *reduce)]
    if n > w:
        outer, lane = d.s.split(
            lane, (None, d.choice(f"{name}.vec", [w * k for k in (1, 2, 4) if w * k <= n]))
        )
        rest.append(outer)
    d.s.reorder(*rest, *reduce, lane)
    d.s.vectorize(lane)
    d.s.decompose_reduction(name, reduce[0])


def reduce_as_computed(d: SketchBuilder, name: str, partial: str) -> bool:
    """Compute ``name``, an elementwise stage, in the loop of the partial results that read it first. This
    saves a pass over the row and keeps values in registers. Returns whether it was done."""
    at = {w.buffer for w in d.block(name).writes}
    own = d.own_loops(partial) if partial else []
    b = d.block(partial) if partial else d.block(name)
    places = [i for x in reads(b) if x.buffer in at for i in x.indices]
    # Values of the whole row, such as its mean, are computed before the loop.
    if len(own) < 2 or not any(own[-2].var in E.variables(bound(b, i)) for i in places):
        return False
    try:
        d.s.compute_at(name, own[-2].var)
    except ScheduleError:
        return False
    d.s.vectorize(innermost(d, d.own_loops(name)).var)
    return True


def _with_neighbour(d: SketchBuilder, b: Block, own: Sequence[Loop], last: Loop) -> Loop:
    """The last loop of a stage, fused with the one directly around it: functions of several short rows are
    computed together."""
    every = [x.var for x in d.loops(b.name)]
    around = every[every.index(last.var) - 1]
    in_order = b.writes[0].indices == tuple(Var(i.var) for i in b.iters)
    if not in_order or not any(x.var == around and extent(x) > 1 for x in own):
        return last
    fused = d.s.fuse(around, last.var)
    return next(x for x in d.loops(b.name) if x.var == fused)


def vectorize_last(
    d: SketchBuilder, name: str, skip: int = 0, units: Mapping[str, int] | None = None
) -> None:
    """Vectorize the last loop of a stage that does not reduce over it. ``units``: {loop: number that divides
    its extent}, for extents with a hole."""
    b = d.block(name)
    own = d.loops(name)[skip:] if skip else d.own_loops(name)
    last = innermost(d, own) if own else None
    if last is None or last.var in vars_bound(b, "reduce"):
        return
    w = d.lanes_of(d.dtype(b))
    if is_map(b) and 0 < extent(last) < w and arithmetic(b)[1]:
        last = _with_neighbour(d, b, own, last)
    n = extent(last)
    wide = [w * k for k in (1, 2, 4)]
    unit = next((k for hole, k in (units or {}).items() if hole in E.holes(last.extent)), 0)
    if unit:
        fit, tail = [k for k in wide if k <= unit], "guard"
    elif is_map(b):
        fit, tail = [k for k in wide if k <= n] or [n], "shift"
    else:  # a stage that adds to its output must not do a point twice
        fit, tail = [k for k in wide if n and n % k == 0][-1:], "guard"
    if not fit or fit in ([0], [1]):
        return
    if all(isinstance(v, Const) for v in b.values):
        fit = fit[-1:]
    if fit != [n]:
        along = [i.var for i, e in zip(b.iters, b.binds, strict=True) if last.var in E.variables(e)]
        joined = any(is_joined_along(b, v) for v in along)
        outer, lanes = d.s.split(last.var, (None, d.choice(f"{name}.vec", fit)), "guard" if joined else tail)
        d.s.vectorize(lanes)
        if joined:
            d.s.partition(outer)
    else:
        d.s.vectorize(last.var)

"""Sums in the steps of a scan in panels: what a panel of steps does not wait for is a product of its own.

Factorisations of matrices sum, in each step, over all steps before. For a panel of steps most of that is
there before the panel begins, and is done for all its steps together: tiles of sums stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedules.errors import ScheduleError
from schedules.ir.nest import vars_bound
from schedules.ir.unread import made_where, read_where
from schedules.primitives.base import Factor
from schedules.space.rules.patterns import depends, operands, spatial, unit_stride_vars, vector_axis
from schedules.space.sketch_builder import SketchBuilder, extent
from schedules.te.compute_dag import Stage

# Steps of a panel, vectors in a row of a tile of sums, and most rows of one.
PANELS = (8, 16, 20, 24, 32, 40, 48, 64)
VECTORS = (1, 2, 3, 4)
MOST_ROWS = 8


def split_in_panels(d: SketchBuilder, group: Sequence[Stage], step: str) -> str:
    """Do the sums of a scan in panels, if they may be and that is chosen. Returns the loop over the steps
    inside, which is ``step`` else."""
    sums = [s.name for s in group if s.reducer is not None]
    loop = next(x for x in d.loops(group[0].name) if x.var == step)
    n = extent(loop)
    if n < 2 * PANELS[0] or not sums or not all(_in_rows(d, x) for x in sums):
        return step
    if not d.choose(f"{group[-1].name}.sums", ("", "ahead")):
        return step
    fits = [p for p in PANELS if 2 * p <= n]
    exact = [p for p in fits if n % p == 0]
    outer, inner = d.s.split(step, (None, d.choice(f"{group[-1].name}.panel", exact or fits)))
    if not exact:
        d.s.partition(outer)
    for ahead in [d.s.reduce_ahead(name, inner) for name in sums]:
        _schedule_ahead(d, ahead)
    return inner


def _in_rows(d: SketchBuilder, name: str) -> bool:
    """Whether a sum has an axis beside the steps along which what it reads lies side by side, or is the
    same."""
    b = d.block(name)
    v = vector_axis(b)
    if v is None or len(spatial(b)) < 2:
        return False
    return all(v in unit_stride_vars(d.s.nest, x) or not depends(x, v) for x in operands(b))


def _schedule_ahead(d: SketchBuilder, name: str) -> None:
    """Tiles of sums in registers: some steps of a panel, and vectors of the last axis."""
    b = d.block(name)
    loops = d.own_loops(name)
    reduce = [x.var for x in loops if x.var in vars_bound(b, "reduce")]
    steps, *rest = [x for x in loops if x.var not in reduce]
    if not rest or not reduce:
        raise ScheduleError(f"block {name} has no rows to add up")
    w, last = d.lanes_of(d.dtype(b)), rest[-1]
    vec = d.choice(f"{name}.vec", [w * k for k in VECTORS if w * k <= extent(last)] or [extent(last)])
    rows = d.divisor(f"{name}.rows", steps.extent, MOST_ROWS)
    o, lanes = d.s.split(last.var, (None, vec))
    c, row = d.s.split(steps.var, (None, rows))
    d.s.reorder(*(x.var for x in rest[:-1]), o, c, *reduce, row, lanes)
    start = d.s.decompose_reduction(name, reduce[0])
    for x in (name, start):
        *_, row, lanes = (y.var for y in d.loops(x))
        d.s.unroll(row)
        d.s.vectorize(lanes)
    d.s.partition(o)
    skip_unread(d, name, {spatial(b)[0]: rows, spatial(b)[-1]: vec})
    d.done |= {name, start}


def is_read_in_part(d: SketchBuilder, name: str) -> bool:
    """Whether there are points of a block that nothing reads."""
    return bool(made_where(d.block(name), read_where(d.s.nest)))


def skip_unread(d: SketchBuilder, name: str, tiles: dict[str, Factor]) -> None:
    """Leave out the tiles of a block that nothing reads, if there are some."""
    if is_read_in_part(d, name):
        d.s.skip_unread(name, [tiles.get(v, 1) for v in spatial(d.block(name))])

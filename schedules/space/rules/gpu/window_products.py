"""Convolutions as products: the rows of one operand are what windows read.

``y[n, p, q, o] += x[n, p + r, q + s, c] * w[r, s, c, o]`` becomes ``y[m, o] += u[m, k] * w[k, o]``, where
``u[m, k]`` is ``x[m // (P * Q), m // Q % P + k // (S * C), m % Q + k // C % S, k % C]``. No one stores
``u``: the rules of products copy a tile of it to shared memory, and read ``x`` for that, with zeros beyond
its edges.

Source: cuDNN: Chetlur et al., "Efficient Primitives for Deep Learning", 2014, section 3.1 (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Load, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import reads
from schedules.primitives.merge_dims import MergeDims
from schedules.primitives.unfold import Unfolding
from schedules.space.rules.cpu.merged_sums import digits
from schedules.space.rules.parts import copy_read, inline_copies
from schedules.space.rules.patterns import (
    depends,
    extents,
    has_product,
    is_gathered,
    is_placed,
    operands,
    reads_identity,
    sole_reader,
    spatial,
)
from schedules.space.sketch_builder import SketchBuilder


@dataclass(frozen=True)
class WindowProduct:
    """A sum of products of ``window``, the operand that windows read, and ``other``. ``rows``: axes of the
    result that the window moves with. ``terms``: axes of the sum."""

    window: Load
    other: Load
    rows: tuple[str, ...]
    terms: tuple[str, ...]

    @staticmethod
    def of(b: Block) -> WindowProduct | None:
        """How a block is one; None if it is none. Each axis of its result belongs to one operand then, and
        each axis of its sum to both."""
        read = list(dict.fromkeys(operands(b)))
        if b.reducer is None or b.where or is_placed(b) or len(read) != 2 or not has_product(b):
            return None
        windows = [x for x in read if any(not isinstance(i, Var) and E.variables(i) for i in x.indices)]
        if len(windows) != 1 or any(is_gathered(x) for x in read):
            return None
        (x,) = windows
        (other,) = (y for y in read if y != x)
        rows = tuple(v for v in spatial(b) if depends(x, v))
        terms = tuple(i.var for i in b.iters if i.kind == "reduce")
        apart = all(depends(x, v) != depends(other, v) for v in spatial(b))
        if not (rows and apart and all(depends(y, v) for y in read for v in terms)):
            return None
        return WindowProduct(x, other, rows, terms) if x.buffer != other.buffer else None

    def can_be_opened(self, nest: Nest, b: Block) -> bool:
        """Whether all that a window reads is known to lie inside, and how many steps its axes have."""
        axes = self.opened(b)
        return 0 not in extents(b).values() and Unfolding.of(b, self.window, axes).leaving(nest, b) is None

    def opened(self, b: Block) -> list[str]:
        """Axes of the block that stand in an index with something else."""
        mixed = {v for i in self.window.indices if not isinstance(i, Var) for v in E.variables(i)}
        return [i.var for i in b.iters if i.var in mixed]

    @property
    def ordered(self) -> list[str]:
        """Axes that the window moves with: last those along which it goes on in memory."""
        terms_last = E.variables(self.window.indices[-1]) <= set(self.terms)
        return [*self.rows, *self.terms] if terms_last else [*self.terms, *self.rows]


def window_products(d: SketchBuilder) -> None:
    """Let convolutions be products, where that is chosen. Call it before any stage is scheduled."""
    for name in d.s.blocks():
        b = d.block(name)
        found = WindowProduct.of(b) if b.reducer is not None else None
        if found is not None and not any(name == x for x, _ in d.open) and found.can_be_opened(d.s.nest, b):
            if d.choose(f"{name}.window", ("", "product")):
                as_product(d, name, found)


def as_product(d: SketchBuilder, name: str, p: WindowProduct) -> None:
    """Make block ``name``, which is ``p``, a product of matrices. A stage that alone reads it, elementwise,
    gets its axes."""
    b = d.block(name)
    made, reader = b.writes[0].buffer, sole_reader(d.s.nest, b)
    axes = p.opened(b)
    loops = dict(zip([i.var for i in b.iters], _own(d, name), strict=True))
    copy = copy_read(d, name, p.window)
    d.s.unfold(copy, [loops[v] for v in axes])
    inline_copies(d, copy, p.window.buffer)
    order = p.ordered
    at = [next(x for x in reads(d.block(name)) if x.buffer == copy).indices.index(Var(v)) for v in order]
    if at != sorted(at):
        d.s.reorder_axes(*(_own(d, copy)[k] for k in at))
        d.s.reorder_storage(copy, at)
    runs = [*_runs(b, p.rows), *_runs(b, p.terms)]
    for run in sorted(runs, key=lambda x: order.index(x[0]), reverse=True):
        first = order.index(run[0])
        d.s.merge_axes(*_own(d, copy)[first : first + len(run)])
    for run in runs:
        d.s.merge_axes(*(loops[v] for v in run))
    written = {made}
    if reader is not None and reader.reducer is None and reads_identity(reader, made):
        own, place = _own(d, reader.name), spatial(b)
        for run in _runs(b, p.rows):
            d.s.merge_axes(*(own[place.index(v)] for v in run))
        written |= {w.buffer for w in reader.writes}
    for run in sorted(runs, key=lambda x: order.index(x[0]), reverse=True):
        d.s.merge_dims(copy, order.index(run[0]), len(run))
    while (k := digits(d.s.nest, name, p.other.buffer)) is not None:
        d.s.merge_dims(p.other.buffer, k, 2)
    for run in reversed(_runs(b, p.rows)):
        for x in sorted(written):
            _merge_where_legal(d, MergeDims(x, spatial(b).index(run[0]), len(run)))


def _merge_where_legal(d: SketchBuilder, merge: MergeDims) -> None:
    """Merge dimensions. Else what writes them divides."""
    try:
        merge.check(d.s.nest)
    except ScheduleError:  # others write it, or there are gaps
        return
    d.s.apply(merge)


def _runs(b: Block, axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Two or more of ``axes`` that are neighbours in a block, in order."""
    out: list[list[str]] = [[]]
    for i in b.iters:
        if i.var in axes:
            out[-1].append(i.var)
        else:
            out.append([])
    return [tuple(x) for x in out if len(x) > 1]


def _own(d: SketchBuilder, name: str) -> list[str]:
    return [x.var for x in d.own_loops(name)]

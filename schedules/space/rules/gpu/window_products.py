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

# Which of two operands move with an axis.
BOTH, FIRST, SECOND = (True, True), (True, False), (False, True)


@dataclass(frozen=True)
class WindowProduct:
    """A sum of products of two operands, ``reads``, of which windows read the first. ``groups``: axes that
    are rows or columns of a matrix together: those of the result that both operands move with, a product
    each; those of either operand; those of the sum, last."""

    reads: tuple[Load, Load]
    groups: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(b: Block) -> WindowProduct | None:
        """How a block is one; None if it is none. Both operands have axes of the result for themselves then,
        and both have all axes of the sum."""
        read = list(dict.fromkeys(operands(b)))
        if b.reducer is None or b.where or is_placed(b) or len(read) != 2 or not has_product(b):
            return None
        terms = tuple(i.var for i in b.iters if i.kind == "reduce")
        windows = [x for x in read if not set(terms).isdisjoint(_mixed(b, x))]
        if len(windows) != 1 or any(map(is_gathered, read)) or read[0].buffer == read[1].buffer:
            return None
        (x,) = windows
        (other,) = (y for y in read if y != x)
        n = extents(b)
        by = {v: (depends(x, v), depends(other, v)) for v in spatial(b)}
        parts = [tuple(v for v in by if by[v] == k) for k in (BOTH, FIRST, SECOND)]
        known = all(n[v] == 1 or any(by[v]) for v in by) and all(depends(y, v) for y in read for v in terms)
        return WindowProduct((x, other), (*parts, terms)) if known and all(parts[1:]) else None

    def can_be_opened(self, nest: Nest, b: Block) -> bool:
        """Whether all that is read is known to lie inside, and how many steps axes have."""
        mixed = [(x, axes) for x in self.reads if (axes := _mixed(b, x))]
        inside = all(Unfolding.of(b, x, axes).leaving(nest, b) is None for x, axes in mixed)
        return inside and 0 not in extents(b).values()

    def merged(self, b: Block) -> list[tuple[str, ...]]:
        """Neighbouring axes of the block that become one."""
        return [x for group in self.groups for x in _runs(b, group)]

    def ordered(self, x: Load) -> list[str]:
        """Axes that a read moves with: last those along which it goes on in memory."""
        last = E.variables(x.indices[-1])
        groups = sorted(self.groups[1:], key=lambda g: not last.isdisjoint(g))
        return [v for g in (self.groups[0], *groups) for v in g if depends(x, v)]


def window_products(d: SketchBuilder) -> None:
    """Let convolutions be products, where that is chosen. Call it before any stage is scheduled."""
    for name in d.s.blocks():
        b = d.block(name)
        found = WindowProduct.of(b) if b.reducer is not None else None
        if found is not None and not any(name == x for x, _ in d.open) and found.can_be_opened(d.s.nest, b):
            if d.choose(f"{name}.window", ("", "product")):
                d.products.add(name)
                as_product(d, name, found)
            else:
                d.windows_of_taps.add(name)


def as_product(d: SketchBuilder, name: str, p: WindowProduct) -> None:
    """Make block ``name``, which is ``p``, a product of matrices. A stage that alone reads it, elementwise,
    gets its axes. Raises ScheduleError where results have gaps between rows."""
    b = d.block(name)
    runs = p.merged(b)
    lie = {x.buffer: order for x in p.reads if (order := _dims(d.s.nest, x, runs)) is not None}
    for x in p.reads:
        if x.buffer not in lie:
            copy, order = _opened_copy(d, name, x, p.ordered(x), runs)
            lie[copy] = order
    _merge_axes(d, name, [i.var for i in b.iters], runs)
    written, axes = [b.writes[0].buffer], spatial(b)
    reader = sole_reader(d.s.nest, b)
    if reader is not None and reader.reducer is None and reads_identity(reader, written[0]):
        _merge_axes(d, reader.name, axes, runs)
        written += [w.buffer for w in reader.writes]
    for buffer, order in (*lie.items(), *((x, axes) for x in written)):
        for merge in _merges(buffer, order, runs):
            d.s.apply(merge)


def _opened_copy(
    d: SketchBuilder, name: str, x: Load, order: Sequence[str], runs: Sequence[tuple[str, ...]]
) -> tuple[str, list[str]]:
    """Let a block read an operand through a copy with a dimension for each axis, in order, of which the
    ``runs`` are one loop each. Returns the copy, and the axes of its dimensions; "": of one that stands
    still."""
    b = d.block(name)
    loops = dict(zip([i.var for i in b.iters], _own(d, name), strict=True))
    mixed = _mixed(b, x) or [v for run in runs for v in run if v in order]
    copy = copy_read(d, name, x)
    d.s.unfold(copy, [loops[v] for v in mixed])
    inline_copies(d, copy, x.buffer)
    (now,) = (y for y in dict.fromkeys(reads(d.block(name))) if y.buffer == copy)
    at = [now.indices.index(Var(v)) for v in order]
    still = [k for k in range(len(now.indices)) if k not in at]
    if still + at != sorted(at + still):
        d.s.reorder_axes(*(_own(d, copy)[k] for k in still + at))
        d.s.reorder_storage(copy, still + at)
    dims = ["" for _ in still] + list(order)
    _merge_axes(d, copy, dims, runs)
    return copy, dims


def _mixed(b: Block, x: Load) -> list[str]:
    """Axes of a block that stand in an index of a read with something else."""
    mixed = {v for i in x.indices if not isinstance(i, Var) for v in E.variables(i)}
    return [i.var for i in b.iters if i.var in mixed]


def _dims(nest: Nest, x: Load, runs: Sequence[tuple[str, ...]]) -> list[str] | None:
    """The axes along which a read moves through its dimensions, if those of ``runs`` can be merged as they
    lie; else None."""
    if not all(isinstance(i, Var) for i in x.indices):
        return None
    axes = [i.name for i in x.indices if isinstance(i, Var)]
    whole = all(list(run) == axes[k : k + len(run)] for run in runs for k in [_place(axes, run)] if k >= 0)
    return axes if whole and all(_is_legal(nest, m) for m in _merges(x.buffer, axes, runs)) else None


def _place(axes: Sequence[str], run: Sequence[str]) -> int:
    """The place of the first of ``run``; -1 if none of it is there."""
    return min((axes.index(v) for v in run if v in axes), default=-1)


def _merges(buffer: str, axes: Sequence[str], runs: Sequence[tuple[str, ...]]) -> list[MergeDims]:
    """Steps that merge the dimensions of a buffer that lie along ``axes``, the last first: the others keep
    their places."""
    found = [(k, len(run)) for run in runs if (k := _place(axes, run)) >= 0]
    return [MergeDims(buffer, k, n) for k, n in sorted(found, reverse=True)]


def _merge_axes(d: SketchBuilder, name: str, axes: Sequence[str], runs: Sequence[tuple[str, ...]]) -> None:
    """Merge the loops of a block that are those of ``axes``."""
    own = _own(d, name)
    for run in runs:
        if (k := _place(axes, run)) >= 0 and k < len(own):
            d.s.merge_axes(*own[k : k + len(run)])


def _is_legal(nest: Nest, merge: MergeDims) -> bool:
    try:
        merge.check(nest)
    except ScheduleError:  # it is written along several axes, or there are gaps
        return False
    return True


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

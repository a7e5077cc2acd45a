"""Sums whose neighbouring axes are one, so that terms of an instruction are taken from all of them.

An image of 3 channels has 3 terms at each place of a window, and an instruction adds 4 or 32. A row of the
window has 21 of them, side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Expr, Var
from schedules.instructions import Instruction
from schedules.instructions.match import Fit, fits
from schedules.ir import Block, Nest
from schedules.ir.nest import find_block
from schedules.primitives.base import Primitive
from schedules.primitives.merge_axes import MergeAxes
from schedules.primitives.merge_dims import MergeDims
from schedules.space.rules.cpu.instructed_operands import term_axis
from schedules.space.rules.patterns import operands

Sum = tuple[tuple[str, ...], Nest]  # loops that are merged, and the nest with one axis in their place


def merged_sums(nest: Nest, p: Block) -> list[Sum]:
    """The nest with each run of neighbouring axes of the sum of a block as one."""
    reduce = [k for k, i in enumerate(p.iters) if i.kind == "reduce"]
    out = []
    for first, last in itertools.combinations(range(len(reduce)), 2):
        binds = [p.binds[k] for k in reduce[first : last + 1]]
        loops = tuple(x.name for x in binds if isinstance(x, Var))
        if len(loops) == len(binds):
            try:
                MergeAxes(loops).check(nest)
            except ScheduleError:  # inside of other loops, or not nested
                continue
            merged = nest
            for step in merging(nest, p.name, loops):
                merged = step.apply(merged)
            out.append((loops, merged))
    return out


def merging(nest: Nest, name: str, loops: tuple[str, ...]) -> Iterator[Primitive[Any]]:
    """Steps that merge axes of a block, and those dimensions of arguments that it reads by them alone. None
    without ``loops``."""
    if not loops:
        return
    axes = MergeAxes(loops)
    yield axes
    nest = axes.apply(nest)
    for x in operands(find_block(nest, name)):
        while (k := _digits(nest, name, x.buffer)) is not None:
            dims = MergeDims(x.buffer, k, 2)
            yield dims
            nest = dims.apply(nest)


def _digits(nest: Nest, name: str, buffer: str) -> int | None:
    """The first of two dimensions of an argument that a block reads by digits of one axis; None if there are
    none that can be merged."""
    reads = [x.indices for x in operands(find_block(nest, name)) if x.buffer == buffer]
    if buffer not in nest.params or len(set(reads)) != 1:
        return None
    (at,) = set(reads)
    for k, (i, j) in enumerate(itertools.pairwise(at)):
        n = nest.buffer(buffer).shape[k + 1]
        both = affine.from_linear(*affine.rejoined(Binary("+", Binary("*", i, n), j)))
        if _is_plain(both) and not (_is_plain(i) and _is_plain(j)):
            try:
                MergeDims(buffer, k, 2).check(nest)
            except ScheduleError:  # with gaps between them
                continue
            return k
    return None


def merged_fits(p: Block, merged: Sum, ins: Instruction) -> list[Fit]:
    """How a block with a merged axis is an instruction whose terms are of that axis."""
    loops, nest = merged
    b = find_block(nest, p.name)
    new = {i.var for i in b.iters} - {i.var for i in p.iters}
    return [replace(fit, merged=loops) for fit in fits(b, ins, changed=True) if term_axis(fit) in new]


def _is_plain(e: Expr) -> bool:
    """Whether nothing is divided in an index."""
    return not any(isinstance(x, Binary) and x.op in ("//", "%") for x in E.walk(e))

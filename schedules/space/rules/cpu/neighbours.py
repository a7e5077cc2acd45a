"""Which axes a stage reads neighbours along, as a stencil does, and whether vectors stay in registers.

What one point reads, the next one reads again. Along the axis of vectors it stays in registers from vector to
vector. Along the axis before it does so from row to row, where a few rows are computed together.
"""

from __future__ import annotations

from collections import defaultdict

from schedules import affine
from schedules.dtypes import DTYPES
from schedules.expr import Const, Var
from schedules.ir import Block
from schedules.space.rules.patterns import extents, operands, spatial, unit_stride_vars
from schedules.space.sketch_builder import SketchBuilder

# Rows that are computed together.
ROWS = (1, 2, 4)
# Shortest axis that has more than borders.
SHORTEST = 8
# Bytes of vectors that are cheaper to put together of two than to load across lines of the cache, and of the
# elements that one instruction does it for.
WIDE, ELEMENTS = 64, (4, 8)


def near_axes(b: Block) -> set[str]:
    """Long axes along which one tensor is read at several places a known number of elements apart."""
    n = extents(b)
    axes = [v for v in spatial(b) if n[v] >= SHORTEST]
    places = defaultdict(set)
    for x in operands(b):
        forms = [affine.linear(i) for i in x.indices]
        if all(isinstance(const, Const) for _, const in forms):
            along = tuple(frozenset(terms.items()) for terms, _ in forms)
            places[x.buffer, along].add(tuple(const for _, const in forms))
    found = set()
    for (_, along), consts in places.items():
        for terms, there in zip(along, zip(*consts, strict=True), strict=True):
            if len(set(there)) > 1:
                found |= {v for v in axes if (Var(v), Const(1)) in terms}
    return found


def keeps_vectors(d: SketchBuilder, b: Block, last: str, near: set[str]) -> bool:
    """Whether vectors along ``last`` are put together of those that were loaded before."""
    wide = d.target.limit("vector_bytes", 16) >= WIDE
    sizes = {DTYPES[x.dtype].itemsize for x in operands(b) if last in unit_stride_vars(d.s.nest, x)}
    return wide and last in near and any(n in ELEMENTS for n in sizes)

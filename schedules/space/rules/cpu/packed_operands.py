"""Operands of tiles: which are packed, in what form, and which are read where they lie."""

from __future__ import annotations

from schedules import expr as E
from schedules import ir
from schedules.expr import Hole, Load, Var
from schedules.ir import Block
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    operands,
    spatial,
    unit_stride_vars,
    uses,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder

# Smallest operand that is packed (bytes): a fraction of the first cache.
TOO_SMALL_TO_PACK = 2048
# Most uses of an operand of open extent that is read where it lies, and once.
MAX_STREAMED = 8


def packed_read(d: SketchBuilder, p: Block, v: str) -> Load | None:
    """The input to pack: one dimension is indexed by the vector axis alone, and it is reused along another
    axis or known ahead. None if there is none."""
    n = extents(p)
    for x in operands(p):
        if x.buffer not in d.s.nest.params:
            continue
        if is_gathered(x):  # a copy of what any tile may read would be all of it
            continue
        if any(i == Var(v) for i in x.indices) and sum(v in E.variables(i) for i in x.indices) == 1:
            reused = any(n[a] > 1 and not depends(x, a) for a in spatial(p) if a != v)
            if n[v] > 1 and (reused or x.buffer in d.s.dag.constants):
                return x
    return None


def pack_options(d: SketchBuilder, x: Load | None, v: str) -> tuple[str, ...]:
    if x is None:
        return ("none",)
    if v not in unit_stride_vars(d.s.nest, x):
        return ("root", "at")
    if x.buffer in d.s.dag.constants:
        return ("root", "none")
    buffer = d.s.nest.buffer(x.buffer)
    held = ir.nbytes(buffer)
    return ("none",) if held < TOO_SMALL_TO_PACK else ("root", "at", "none")


def is_streamed(d: SketchBuilder, p: Block) -> bool:
    """Whether an operand of a sum lies along the lanes, the sum goes along its open extent, and one register
    tile has all that read it. A copy of it would be read once, and so are parts of it. So are the values of
    attention of one token."""
    v = vector_axis(p)
    return v is not None and any(
        1 < uses(p, x) <= MAX_STREAMED and v in unit_stride_vars(d.s.nest, x)
        for x in operands(p)
        if any(depends(x, i.var) and (p.name, i.var) in d.open for i in p.iters if i.kind == "reduce")
    )


def pack_operand(d: SketchBuilder, producer: str, x: Load, v: str, vec: int | Hole) -> tuple[str, int]:
    """Copy the input in panels as wide as the register tile, other dimensions in the order of the reduction.
    Returns (name of the copy, position of the loop over panels)."""
    p = d.block(producer)
    name = copy_read(d, producer, x)
    at = next(k for k, i in enumerate(x.indices) if i == Var(v))
    rank = len(x.indices)
    reduce = [i.var for i in p.iters if i.kind == "reduce"]

    def depth(k: int) -> int:
        used = [reduce.index(r) for r in reduce if r in E.variables(x.indices[k])]
        return max(used) if used else -1

    others = [k for k in range(rank) if k != at]
    if v in unit_stride_vars(d.s.nest, x):
        others.sort(key=depth)  # else in their order: a copy that gathers should read whole lines
    batch = [k for k in others if depth(k) < 0]
    walked = [k for k in others if depth(k) >= 0]
    d.s.pack(name, [vec if k == at else 0 for k in range(rank)], [*batch, at, *walked, rank])
    return name, len(batch)

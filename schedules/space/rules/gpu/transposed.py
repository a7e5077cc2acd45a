"""Rule for elementwise stages that read along another axis than they write: squares transposed in shared
memory.

Neighbouring threads fetch neighbouring elements where the input is read, and write neighbours where the
output is written. The square is padded, so that a column does not lie in one bank (Ruetsch and Micikevicius,
2009).
"""

from __future__ import annotations

from schedules.expr import Const, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import reads
from schedules.ir.strides import as_row_major, known_strides
from schedules.space.rules.patterns import extents, spatial
from schedules.space.sketch_builder import SketchBuilder
from schedules.strides import inner_first

# Sides of a square (elements) that are offered.
SIDES = (32, 64)
# Threads of a block that are offered; each divides a square.
THREADS = (128, 256, 512)
# Shortest axis (elements) that is worth a square: shorter ones lie in one sector of memory.
LEAST = 8
# Padding of a row of the square (elements).
PAD = 1


def read_across(nest: Nest, b: Block) -> tuple[str, str] | None:
    """(buffer that is read once along another axis than the stage's last, that axis); None if there is
    none."""
    axes = spatial(b)
    n = extents(b)
    if not axes or n[axes[-1]] < LEAST:
        return None
    every = list(reads(b))
    for x in every:
        moving = [i.name for i in x.indices if isinstance(i, Var)]
        plain = len(set(moving)) == len(moving) and all(isinstance(i, (Var, Const)) for i in x.indices)
        once = sum(y.buffer == x.buffer for y in every) == 1
        if not plain or not once or nest.buffer(x.buffer).scope != "global":
            continue
        at = as_row_major(nest.buffer(x.buffer), x.indices)[1]
        last = at[-1] if at else None
        moves = Var(axes[-1]) in at  # not one element for all
        if isinstance(last, Var) and last.name in axes[:-1] and n[last.name] >= LEAST and moves:
            return x.buffer, last.name
    return None


def schedule_transposed(d: SketchBuilder, name: str, buffer: str, axis: str) -> None:
    """Let a block make a square of ``axis``, in which ``buffer`` is contiguous, and of the last axis."""
    loops = dict(zip(spatial(d.block(name)), [x.var for x in d.loops(name)], strict=True))
    *others, last = loops
    side = d.choice(f"{name}.side", SIDES)
    threads = d.choice(f"{name}.threads", THREADS)
    outer, inner = d.s.split(loops[axis], (None, side))
    outer_last, inner_last = d.s.split(loops[last], (None, side))
    blocks = [outer if a == axis else loops[a] for a in others] + [outer_last]
    d.s.reorder(*blocks, inner, inner_last)
    block = d.s.fuse(*blocks)
    d.s.bind(block, "blockIdx.x")
    copy = d.s.cache_read(name, buffer, "shared")
    d.s.compute_at(copy, block)
    d.s.annotate(copy, "pad", PAD)
    fetched = [x.var for x in d.own_loops(copy)]
    in_memory = [fetched[k] for k in reversed(inner_first(known_strides(d.s.nest.buffer(buffer))))]
    if in_memory != fetched:
        d.s.reorder(*in_memory)
    for own in (in_memory, [inner, inner_last]):
        flat = d.fused(own)
        turns, thread = d.s.split(flat, (None, threads))
        d.s.reorder(thread, turns)
        d.s.bind(thread, "threadIdx.x")
        d.s.unroll(turns)

"""Rule for rows: stages that reduce along memory, and all that is made of the results, fused in one kernel.

A block takes a few rows. Each thread of a row reduces every n-th element, then the threads reduce together
(`Bind` of a reduction). Values that a later stage needs again stay in the registers of the thread that made
them.
"""

from __future__ import annotations

import math

from schedules.expr import Const, Hole, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import apart, find_loop, readers, reads, vars_bound
from schedules.space.holes import Choice
from schedules.space.rules.cpu.rows import compute_stages_at
from schedules.space.rules.gpu.maps import lanes_of
from schedules.space.rules.patterns import extents, is_row_reduction, reduction_length, spatial
from schedules.space.sketch_builder import SketchBuilder, extent

# Threads of a row and rows of a block that are offered.
THREADS = (8, 32, 64, 128, 256, 512, 1024)
ROWS = (1, 2, 4, 8)
# Longest row (elements) for which the following are offered instead: few threads a row, many rows a block.
SHORT = 32
FEW = (1, 2, 4, 8)
MANY = (16, 32, 64, 128, 256)
# Parts of a split reduction that are offered, and its fewest steps.
PARTS = (16, 64, 256, 1024)
LONG = 1 << 14
# Most elements of a row that a thread keeps.
MOST_KEPT = 64


def split_among_blocks(d: SketchBuilder, name: str) -> None:
    """Split a long reduction with too few rows for the processors: partial results by blocks of their own, in
    a kernel before the one that adds them up."""
    b = d.block(name)
    if not _joins(d.s.nest, b):
        return
    n = extents(b)
    rows = math.prod(n[i.var] for i in b.iters if i.kind == "spatial")
    first = next(x for x in d.loops(name) if x.var in vars_bound(b, "reduce"))
    parts = [p for p in PARTS if p <= extent(first)]
    if rows < 2 * d.target.limit("sms", 1) and reduction_length(b) >= LONG and parts:
        outer, _ = d.s.split(first.var, (d.choice(f"{name}.parts", parts), None))
        d.roots.add(d.s.rfactor(name, outer))


def schedule_rows(d: SketchBuilder, root: str, rank: int) -> None:
    """Schedule ``root``, whose first ``rank`` axes are rows, and all that it reads and that is made row by
    row."""
    b = d.block(root)
    loops = [x.var for x in d.loops(root)]
    n = max(_row_length(d, x) for x in d.s.blocks() if x not in d.done)
    width = max(n, math.prod(extent(x) or LONG for x in d.loops(root)[rank:]))  # or of what is made of a row
    height = extent(d.loops(root)[rank - 1])
    across, down = (FEW, MANY) if width <= SHORT and height >= MANY[0] else (THREADS, ROWS)
    # With rows of one element, readers would not know which of several threads made it.
    threads = d.choice(f"{root}.threads", [t for t in across if t <= max(8, 2 * width)] if n != 1 else [1])
    rows = d.choice(f"{root}.rows", [k for k in down if k <= max(height, 1) or not height])
    lanes = d.choice(f"{root}.vec", lanes_of(_last(d, root), d.dtype(b)))
    outer, inner = d.s.split(loops[rank - 1], (None, rows))
    block = d.fused([*loops[: rank - 1], outer])
    d.s.bind(block, "blockIdx.x")
    blocks = [d.block(name) for name in d.s.blocks()]
    # A reduction with more axes than rows is spread over threads by its readers. A stage with fewer axes is
    # not made row by row. A kernel of its own makes them.
    d.roots |= {
        x.name
        for x in blocks
        if len(spatial(x)) < rank
        or (x.reducer is not None and not (_joins(d.s.nest, x) and len(spatial(x)) == rank))
    }
    # Buffers of which a thread reads another thread's elements are shared, or made by an earlier kernel.
    shared = {x.name for x in blocks if not all(_read_in_place(d, w.buffer, rank) for w in x.writes)}
    d.roots |= {x.name for x in blocks if x.reducer is not None and x.name in shared}
    compute_stages_at(d, root, block)
    for name in list(d.s.blocks()):
        if name == root or block not in {x.var for x in d.loops(name)}:
            continue
        if f"{name}_rf" in d.roots:  # its parts come from another kernel: a thread takes one
            _local(d, name)
            _thread_total(d, name)
        elif d.block(name).reducer is not None:
            partial = _partial(d, name, threads, lanes)
            _local(d, partial)
            _local(d, name)
            _thread_partial(d, partial)
            _thread_total(d, name)
        else:
            d.s.set_scope(d.block(name).writes[0].buffer, "shared" if name in shared else "local")
            own = [x.var for x in d.own_loops(name)]
            _thread_map(d, own[rank - 1], own[rank:], threads, lanes, n)
    _thread_map(d, inner, loops[rank:], threads, lanes, n)


def _joins(nest: Nest, b: Block) -> bool:
    """Whether a reduction can be done by rows."""
    return is_row_reduction(nest, b) and apart(b)


def _read_in_place(d: SketchBuilder, buffer: str, rank: int) -> bool:
    """Whether all readers of a buffer go over it in its own order, so that a thread needs only what it made
    itself. Their indices name rows only, or all axes, which are fused; of several axes of a reduction threads
    have the last."""
    for b in readers(d.s.nest, buffer):
        order = tuple(Var(i.var) for i in b.iters)
        whole = len(vars_bound(b, "reduce")) < 2
        for at in (x.indices for x in reads(b) if x.buffer == buffer):
            alike = len(at) <= rank or (len(at) == len(order) and whole)
            if not alike or at != order[: len(at)]:
                return False
    return True


def _local(d: SketchBuilder, name: str) -> None:
    for w in d.block(name).writes:
        d.s.set_scope(w.buffer, "local")


def _row_length(d: SketchBuilder, name: str) -> int:
    """Most elements that a stage reduces to one; `LONG` for a part of a row, which may have any length."""
    b = d.block(name)
    if not is_row_reduction(d.s.nest, b):
        return 1
    most = {h.name: max(h.options) for h in d.holes if isinstance(h, Choice)}
    out = 1
    for i in b.iters:
        if i.kind == "reduce":
            out *= most.get(i.extent.name, LONG) if isinstance(i.extent, Hole) else extents(b)[i.var] or LONG
    return out


def _last(d: SketchBuilder, root: str) -> int:
    """The length of the innermost loop over a row."""
    for name in [root, *d.s.blocks()]:
        b = d.block(name)
        if b.reducer is None and name == root and len(d.loops(name)) > 1:
            return extent(d.loops(name)[-1])
        if is_row_reduction(d.s.nest, b) and name not in d.done:
            return extent(d.loops(name)[-1])
    return 1


def _partial(d: SketchBuilder, name: str, threads: int | Hole, lanes: int | Hole) -> str:
    """Make partial results, one a thread (rfactor). Returns the name of their block."""
    rest, _ = d.s.split(d.loops(name)[-1].var, (None, lanes))
    _, across = d.s.split(rest, (None, threads))
    return d.s.rfactor(name, across)


def _thread_partial(d: SketchBuilder, name: str) -> None:
    """Order the loops: rows, the thread, and the reduction of its part."""
    reduce, (*rows, thread) = d.own_apart(name)
    d.s.reorder(*rows, thread, *reduce)
    d.s.decompose_reduction(name, reduce[0])
    _bind_rows(d, rows)
    d.s.bind(thread, "threadIdx.x")
    d.s.vectorize(reduce[-1])


def _thread_total(d: SketchBuilder, name: str) -> None:
    """Let the threads of a row reduce its partial results together."""
    reduce, rows = d.own_apart(name)
    d.s.decompose_reduction(name, reduce[0])
    _bind_rows(d, rows)
    d.s.bind(reduce[-1], "threadIdx.x")


def _thread_map(
    d: SketchBuilder, rows: str, rest: list[str], threads: int | Hole, lanes: int | Hole, n: int
) -> None:
    """Distribute an elementwise stage: rows over blocks, the ``rest`` of the loops over the threads of a
    row."""
    if rest:
        flat = d.fused(rest)
        whole, v = d.s.split(flat, (None, lanes))
        outer, thread = d.s.split(whole, (None, threads))
        d.s.reorder(thread, outer, v)
        d.s.bind(thread, "threadIdx.x")
        if n <= MOST_KEPT * THREADS[-1]:
            d.s.unroll(outer)
        d.s.vectorize(v)
    _bind_rows(d, [rows])


def _bind_rows(d: SketchBuilder, rows: list[str]) -> None:
    """Bind the last loop over rows to the rows of a block. The others have extent 1 there."""
    if rows and find_loop(d.s.nest, rows[-1]).extent != Const(1):
        d.s.bind(rows[-1], "threadIdx.y")

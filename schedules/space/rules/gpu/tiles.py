"""Rule for products and convolutions: a block computes a tile of the output, each thread a few elements of
it.

The structure is that of Ansor's GPU sketches and of fast SGEMM kernels. All threads of a block together fetch
parts of the operands into shared memory. Accumulators stay in registers. Every spatial axis is cut into
blocks, virtual threads (apart, so that neighbouring threads use neighbouring banks), threads, and a thread's
own elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Load
from schedules.gpu_architectures import features
from schedules.ir import Block, Loop
from schedules.ir.nest import reads, vars_bound
from schedules.ir.strides import SWIZZLES
from schedules.primitives.base import Factor
from schedules.space.rules.gpu.cuts import LEAST, AxisPart, Cut, in_lines, in_warps, threads_in_order
from schedules.space.rules.gpu.maps import USED_ONCE, lanes_of
from schedules.space.rules.parts import copy_read, inline_copies
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    is_placed,
    is_row_reduction,
    operands,
    reduction_length,
    spatial,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Blocks that share a processor that are offered; the compiler bounds registers accordingly.
TOGETHER = (1, 2, 4)
# Turns of unrolled reduction steps, all fetched together, that are offered.
TURNS = (1, 2, 4, 8)
# Unrolled reduction steps that are offered: neighbouring reads become a vector, loaded before it is needed.
UNROLLED = (4, 8)
# Most reduction steps beside the longest axis, those of a window, that are fetched together.
TAPS = 49
# Padding of rows in shared memory (bytes): it keeps them in different banks, and vectors aligned.
PAD = 16
# Most unrolled steps of a reduction.
MOST_UNROLLED = 32
# Parts of a long reduction with few tiles that are offered (split-k).
PARTS = (2, 4, 8, 16, 32)
# Usual number of output elements of a block, by which tiles are counted.
TILE = 64 * 64
# Fewest steps of a reduction that is split.
LONG = 1024
# Iterations whose operands lie in shared memory at a time, which copies in the background allow.
STAGES = (1, 2, 3, 4, 5)
# Rows of tiles that blocks take together that are offered, and for how many tiles a processor they are.
GROUPS = (1, 4, 8, 16)
GROUPED = 4


def split_reduction(d: SketchBuilder, name: str) -> None:
    """Split-k: split a long reduction with too few tiles for the processors. Its parts are made by blocks of
    their own, in a kernel before the one that adds them up."""
    b = d.block(name)
    if b.reducer is None or is_placed(b) or len(b.writes) != 1 or is_row_reduction(d.s.nest, b):
        return
    n = extents(b)
    tiles = math.prod(n[a] for a in spatial(b)) // TILE
    loop = max((x for x in d.loops(name) if x.var in vars_bound(b, "reduce")), key=extent)
    if tiles >= 2 * d.target.limit("sms", 1) or reduction_length(b) < LONG or extent(loop) < 2 * PARTS[-1]:
        return
    if d.choose(f"{name}.reduction", ("whole", "split")) == "split":
        outer, _ = d.s.split(loop.var, (d.choice(f"{name}.parts", PARTS), None))
        parts = d.s.rfactor(name, outer)
        d.roots.add(parts)
        d.products |= {parts} if name in d.products else set()


def schedule_tiles(d: SketchBuilder, producer: str, consumer: str) -> None:
    """Tile reduction ``producer`` and write ``consumer``, its only reader, from registers."""
    p = d.block(producer)
    d.done.add(producer)
    if p.writes[0].buffer not in d.s.nest.params:
        d.s.set_scope(p.writes[0].buffer, "local")
    n = extents(d.block(consumer))
    axes = spatial(d.block(consumer))
    long = _by_reuse(p, dict(zip(axes, spatial(p)[-len(axes) :])), [a for a in reversed(axes) if n[a] > 1])
    lanes = lanes_of(n[long[0]], d.dtype(d.block(consumer))) if long and long[0] == axes[-1] else [1]
    shared = _operands_to_share(p) if _worth_sharing(p) else []
    ways = ("shared",) if producer in d.products else ("shared", "direct")  # directly, each read would divide
    ways = ("direct",) if producer in d.in_parts else ways  # none is read twice
    share = bool(shared) and d.choose(f"{producer}.operands", ways) == "shared"
    warps = (
        share
        and _in_background(d)
        and min([n[a] for a in long[:2]]) >= LEAST
        and len(long) > 1
        and d.choose(f"{producer}.threads", ("", "warps")) == "warps"
    )
    cut = in_warps if warps else in_lines
    cuts = {a: cut(d, producer, n[a], place, lanes) for place, a in enumerate(long)}
    block = _tile(d, producer, consumer, cuts, long)
    d.s.compute_at(producer, block)
    where = _accumulate(d, producer, block, cuts, axes, share, warps)
    if share:
        if _in_background(d):
            once = all(extent(x) == 1 for x in serial_to(d, producer, where))
            d.s.annotate(where, "stages", d.choice(f"{producer}.stages", STAGES[:1] if once else STAGES))
        else:
            d.s.annotate(where, "prefetch", d.choice(f"{producer}.prefetch", (0, 1)))
        for k, read in enumerate(shared, 1):
            again = any(y.buffer == read.buffer for y in shared[k:])
            _fetch(d, producer, read, where, [cuts[a] for a in axes if a in cuts], again, warps)
    else:
        _inline_paddings(d, producer)


def _in_background(d: SketchBuilder) -> bool:
    """Whether the target copies to shared memory in the background."""
    return "sm_80" in features(d.target)


def _tile(d: SketchBuilder, producer: str, consumer: str, cuts: Mapping[str, Cut], long: list[str]) -> str:
    """Cut the loops of the consumer and bind them. Returns the loop over blocks."""
    n, axes = extents(d.block(consumer)), spatial(d.block(consumer))
    loops = dict(zip(axes, [x.var for x in d.loops(consumer)], strict=True))
    blocks: dict[str, str] = {}
    threads: list[tuple[AxisPart, str]] = []
    rest: list[str] = []
    vectors: list[str] = []
    for a, loop in loops.items():
        if a not in cuts or not cuts[a].parts:
            blocks[a] = loop
            continue
        blocks[a], *own = d.s.split(loop, (None, *cuts[a].sizes))
        for part, x in zip(cuts[a].parts, own, strict=True):
            if part.kind == "thread":
                threads.append((part, x))
            else:
                (vectors if part.kind == "own" and cuts[a].vector else rest).append(x)
    d.s.reorder(*blocks.values(), *(numbered := threads_in_order(threads)), *rest, *vectors)
    tiles = math.prod(n[a] for a in axes) // TILE
    if long and long[0] == axes[-1] and tiles >= GROUPED * d.target.limit("sms", 1):
        block = _grouped(d, producer, list(blocks.values()))
        if d.target.bounds_launches:  # operands are read again, results are not
            d.s.annotate(consumer, "store_cache", d.choice(f"{producer}.store_cache", USED_ONCE))
    else:
        block = d.fused([*blocks.values()])
    d.s.bind(block, "blockIdx.x")
    if d.target.bounds_launches:
        d.s.annotate(block, "min_blocks", d.choice(f"{producer}.min_blocks", TOGETHER))
    _bind(d, numbered)
    for x in rest:
        d.s.unroll(x)
    for x in vectors:
        d.s.vectorize(x)
    return block


def _grouped(d: SketchBuilder, producer: str, blocks: list[str]) -> str:
    """Let blocks that run at a time share rows and columns of tiles: a few rows of tiles at a time, column by
    column, so that the second cache holds what they read."""
    *rows, column = blocks
    if not rows:
        return column
    group, row = d.s.split(d.fused(rows), (None, d.choice(f"{producer}.group", GROUPS)))
    d.s.reorder(group, column, row)
    return d.fused([group, column, row])


def _by_reuse(p: Block, of_product: Mapping[str, str], axes: list[str]) -> list[str]:
    """Axes from the last to the first, but second the next one that some operand has without the last. A
    thread with elements along both reuses its reads of either operand."""
    if not axes:
        return axes
    first, *rest = axes
    others = [x for x in operands(p) if not depends(x, of_product[first])]
    second = next((a for a in rest if any(depends(x, of_product[a]) for x in others)), None)
    return axes if second is None else [first, second, *(a for a in rest if a != second)]


def _worth_sharing(p: Block) -> bool:
    return reduction_length(p) != 1  # 0: its length is a hole


def _operands_to_share(p: Block) -> list[Load]:
    """The operands that threads fetch together: none that has one element, nor any part of which may be
    read."""
    anywhere = {x.buffer for x in reads(p) if is_gathered(x)}
    shared = dict.fromkeys(x for x in operands(p) if x.indices and x.buffer not in anywhere)
    return sorted(shared, key=lambda x: x.buffer)


def serial_to(d: SketchBuilder, name: str, where: str) -> list[Loop]:
    """The serial loops around a block from the outermost to loop ``where``."""
    loops = d.loops(name)
    return [x for x in loops[: 1 + [x.var for x in loops].index(where)] if x.kind == "serial"]


def _accumulate(
    d: SketchBuilder,
    producer: str,
    block: str,
    cuts: Mapping[str, Cut],
    axes: list[str],
    share: bool,
    warps: bool,
) -> str:
    """Cut the producer as the consumer is. Returns the loop in which operands are fetched."""
    p = d.block(producer)
    loops = [x for x in d.loops(producer) if x.var != block]
    reduce = [x for x in loops if x.var in vars_bound(p, "reduce")]
    own = [x.var for x in loops if x not in reduce]
    threads: list[tuple[AxisPart, str]] = []
    rest, still = [], []
    for a, loop in zip(axes, own[-len(axes) :], strict=True):
        if a not in cuts or not cuts[a].parts:
            still.append(loop)
            continue
        parts = cuts[a].parts
        for part, x in zip(parts, d.s.split(loop, cuts[a].sizes) if len(parts) > 1 else [loop], strict=True):
            if part.kind == "thread":
                threads.append((part, x))
            else:
                rest.append(x)
    outer, long, taps = _in_order(d, producer, reduce, share)
    where, turn, inner = d.s.split(long.var, (None, *_steps(d, producer, extent(long), len(reduce) == 1)))
    numbered = threads_in_order(threads)
    d.s.reorder(*outer, where, *numbered, *still, turn, *taps, inner, *rest)
    _bind(d, numbered)
    for x in (turn, inner, *rest) if warps else (inner, *rest):
        d.s.unroll(x)
    d.s.decompose_reduction(producer, outer[0] if outer else where)
    return where


def _in_order(
    d: SketchBuilder, producer: str, reduce: list[Loop], share: bool
) -> tuple[list[str], Loop, list[str]]:
    """(loops around the one along which operands are fetched, that loop, loops within a fetch). The taps of a
    window may be around it or within. Around it, each tap is fetched along the last axis."""
    *others, last = reduce
    name = _longest({x.var: extent(x) for x in reduce})
    (long,) = (x for x in reduce if x.var == name)
    rest = [x for x in reduce if x is not long]
    taps = math.prod(extent(x) or LONG for x in rest)
    if taps == 1:
        return [x.var for x in rest], long, []
    if share and taps <= TAPS and extent(long):
        if d.choose(f"{producer}.taps", ("apart", "together")) == "together":
            return [], long, [x.var for x in rest]
    return [x.var for x in others], last, []


def _longest(lengths: Mapping[str, int]) -> str:
    """The last of the longest loops. 0, a length that is a hole, counts as long."""
    return max(reversed([*lengths]), key=lambda name: lengths[name] or LONG)


def _steps(d: SketchBuilder, producer: str, n: int, alone: bool) -> tuple[Factor, Factor]:
    """(turns, unrolled steps) of the last axis of a reduction of length ``n`` (0: a hole). Operands of all
    turns are fetched together. ``alone``: whether it is the only axis."""
    if 0 < n <= (MOST_UNROLLED if alone else UNROLLED[-1]):
        return 1, n
    unrolled = [k for k in UNROLLED if n % k == 0] or [k for k in UNROLLED if k <= n]
    turns = [k for k in TURNS if n % (k * unrolled[0]) == 0] or [k for k in TURNS if k * unrolled[0] <= n]
    return d.choice(f"{producer}.turns", turns), d.choice(f"{producer}.unrolled", unrolled)


def _bind(d: SketchBuilder, threads: list[str]) -> None:
    if threads:
        d.s.bind(d.fused(threads), "threadIdx.x")


def _fetch(
    d: SketchBuilder, producer: str, x: Load, where: str, cuts: Sequence[Cut], again: bool, warps: bool
) -> None:
    """Let all threads of the block copy what one iteration of the loop reads. Padding is made on the way.
    ``again``: another operand of the same buffer comes later."""
    rows = _along_reduction(d.block(producer), x)
    copy = copy_read(d, producer, x, "shared", moved=True)
    d.s.compute_at(copy, where)
    if not again:
        inline_copies(d, copy, x.buffer)
    if rows and warps:
        d.s.annotate(copy, "swizzle", SWIZZLES[-1])
    elif rows:
        d.s.annotate(copy, "pad", PAD // DTYPES[d.dtype(d.block(copy))].itemsize)
    if _in_background(d):
        d.s.annotate(copy, "async", 1)
    own = [x.var for x in d.own_loops(copy)]
    flat = d.fused(own)
    last = extents(d.block(copy))
    contiguous = last[d.block(copy).iters[-1].var]
    lanes = d.choice(f"{copy}.vec", lanes_of(contiguous, d.dtype(d.block(copy))))
    sizes = [(p, p.size) for c in cuts for p in c.parts if p.kind == "thread" and p.size != 1]
    outer, *threads, v = d.s.split(flat, (None, *threads_in_order(sizes), lanes))
    d.s.reorder(*threads, outer, v)
    _bind(d, threads)
    d.s.unroll(outer)
    d.s.vectorize(v)


def _along_reduction(b: Block, x: Load) -> bool:
    """Whether the last index of an operand moves with the longest reduction axis only. Neighbouring threads
    then read different rows."""
    n = extents(b)
    long = _longest({i.var: n[i.var] for i in b.iters if i.kind == "reduce"})
    return bool(x.indices) and E.variables(x.indices[-1]) == {long}


def _inline_paddings(d: SketchBuilder, producer: str) -> None:
    for x in operands(d.block(producer)):
        inline_copies(d, producer, x.buffer)

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
from dataclasses import dataclass

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Load
from schedules.ir import Block, Loop
from schedules.ir.nest import reads, vars_bound
from schedules.primitives.base import Factor
from schedules.space.rules.gpu.maps import lanes_of
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

# Virtual threads along an axis that are offered.
ACROSS = (1, 2, 4)
# Blocks that share a processor that are offered; the compiler bounds registers accordingly.
TOGETHER = (1, 2, 4)
# Threads along an axis that are offered.
THREADS = (1, 2, 4, 8, 16, 32)
# Elements of a thread along an axis that are offered.
OWN = (1, 2, 4, 8)
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


@dataclass(frozen=True)
class Cut:
    """How an axis is cut: virtual threads, threads, and a thread's own elements. ``vector``: whether these
    are one vector in memory."""

    across: Factor
    threads: Factor
    own: Factor
    vector: bool = False


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
    cuts = {a: _cut(d, producer, n[a], place, lanes) for place, a in enumerate(long)}
    shared = _operands_to_share(p) if _worth_sharing(p) else []
    ways = ("shared",) if producer in d.products else ("shared", "direct")  # directly, each read would divide
    share = bool(shared) and d.choose(f"{producer}.operands", ways) == "shared"

    loops = dict(zip(axes, [x.var for x in d.loops(consumer)], strict=True))
    blocks, threads, rest = [], [], []
    vectors: list[str] = []
    for a, loop in loops.items():
        if a not in cuts:
            blocks.append(loop)
            continue
        c = cuts[a]
        b, v, t, i = d.s.split(loop, (None, c.across, c.threads, c.own))
        blocks.append(b)
        threads.append(t)
        rest.append(v)
        (vectors if c.vector else rest).append(i)
    d.s.reorder(*blocks, *threads, *rest, *vectors)
    block = d.fused(blocks)
    d.s.bind(block, "blockIdx.x")
    if d.target.bounds_launches:
        d.s.annotate(block, "min_blocks", d.choice(f"{producer}.min_blocks", TOGETHER))
    _bind(d, threads)
    for x in rest:
        d.s.unroll(x)
    for x in vectors:
        d.s.vectorize(x)
    d.s.compute_at(producer, block)
    where = _accumulate(d, producer, block, cuts, axes, share)
    if share:
        d.s.annotate(where, "prefetch", d.choice(f"{producer}.prefetch", (0, 1)))
        for k, read in enumerate(shared, 1):
            again = any(y.buffer == read.buffer for y in shared[k:])
            _fetch(d, producer, read, where, list(cuts.values()), again)
    else:
        _inline_paddings(d, producer)


def _by_reuse(p: Block, of_product: Mapping[str, str], axes: list[str]) -> list[str]:
    """Axes from the last to the first, but second the next one that some operand has without the last. A
    thread with elements along both reuses its reads of either operand."""
    if not axes:
        return axes
    first, *rest = axes
    others = [x for x in operands(p) if not depends(x, of_product[first])]
    second = next((a for a in rest if any(depends(x, of_product[a]) for x in others)), None)
    return axes if second is None else [first, second, *(a for a in rest if a != second)]


def _cut(d: SketchBuilder, producer: str, n: int, place: int, lanes: Sequence[int]) -> Cut:
    """Cut an axis of length ``n``. ``place``: its position in `_by_reuse`; 0 is contiguous in memory, in
    vectors of ``lanes``."""
    name = f"{producer}.{place}"
    if place > 2:
        return Cut(1, 1, 1)
    across = d.choice(f"{name}.vthread", [k for k in ACROSS if k <= n]) if place < 2 else 1
    most = 32 if place == 0 else 16 if place == 1 else 8
    threads = d.choice(f"{name}.threads", _sizes(THREADS, n, min(2 * n, most)))
    vector = place == 0 and len(lanes) > 1
    own = d.choice(f"{name}.own", lanes if vector else _sizes(OWN, n, min(n, OWN[-1]))) if place < 2 else 1
    return Cut(across, threads, own, vector)


def _sizes(usual: Sequence[int], n: int, most: int) -> list[int]:
    """The ``usual`` sizes and those that divide an axis such as 7 or 14, up to ``most``."""
    return [k for k in range(1, most + 1) if k in usual or n % k == 0]


def _worth_sharing(p: Block) -> bool:
    return reduction_length(p) != 1  # 0: its length is a hole


def _operands_to_share(p: Block) -> list[Load]:
    """The operands that threads fetch together: none that has one element, nor any part of which may be
    read."""
    anywhere = {x.buffer for x in reads(p) if is_gathered(x)}
    shared = dict.fromkeys(x for x in operands(p) if x.indices and x.buffer not in anywhere)
    return sorted(shared, key=lambda x: x.buffer)


def _accumulate(
    d: SketchBuilder, producer: str, block: str, cuts: dict[str, Cut], axes: list[str], share: bool
) -> str:
    """Cut the producer as the consumer is. Returns the loop in which operands are fetched."""
    p = d.block(producer)
    loops = [x for x in d.loops(producer) if x.var != block]
    reduce = [x for x in loops if x.var in vars_bound(p, "reduce")]
    own = [x.var for x in loops if x not in reduce]
    threads, rest, still = [], [], []
    for a, loop in zip(axes, own[-len(axes) :], strict=True):
        if a not in cuts:
            still.append(loop)
            continue
        c = cuts[a]
        v, t, i = d.s.split(loop, (c.across, c.threads, c.own))
        threads.append(t)
        rest += [v, i]
    outer, long, taps = _in_order(d, producer, reduce, share)
    where, turn, inner = d.s.split(long.var, (None, *_steps(d, producer, extent(long), len(reduce) == 1)))
    d.s.reorder(*outer, where, *threads, *still, turn, *taps, inner, *rest)
    _bind(d, threads)
    for x in (inner, *rest):
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


def _fetch(d: SketchBuilder, producer: str, x: Load, where: str, cuts: Sequence[Cut], again: bool) -> None:
    """Let all threads of the block copy what one iteration of the loop reads. Padding is made on the way.
    ``again``: another operand of the same buffer comes later."""
    rows = _along_reduction(d.block(producer), x)
    copy = copy_read(d, producer, x, "shared", moved=True)
    d.s.compute_at(copy, where)
    if not again:
        inline_copies(d, copy, x.buffer)
    if rows:
        d.s.annotate(copy, "pad", PAD // DTYPES[d.dtype(d.block(copy))].itemsize)
    own = [x.var for x in d.own_loops(copy)]
    flat = d.fused(own)
    last = extents(d.block(copy))
    contiguous = last[d.block(copy).iters[-1].var]
    lanes = d.choice(f"{copy}.vec", lanes_of(contiguous, d.dtype(d.block(copy))))
    factors = [c.threads for c in reversed(cuts) if c.threads != 1]
    outer, *threads, v = d.s.split(flat, (None, *factors, lanes))
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

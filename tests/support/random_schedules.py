"""Random schedules: random primitives one after another, and the smallest part of them that fails."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from schedules import expr as E
from schedules.dtypes import NUMBERS, holds
from schedules.errors import ScheduleError
from schedules.expr import dtype_of
from schedules.ir import Block, Loop, Nest, Stmt, blocks, kids, walk
from schedules.ir.nest import find_block, readers, reads
from schedules.model import Target, Trace
from schedules.primitives import PRIMITIVES
from schedules.primitives.annotate import Annotate
from schedules.primitives.base import Primitive
from schedules.primitives.bind import Bind
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_read_offset import CacheReadOffset
from schedules.primitives.cache_read_part import CacheReadPart
from schedules.primitives.cache_read_view import CacheReadView
from schedules.primitives.cache_write import CacheWrite
from schedules.primitives.compute_ahead import ComputeAhead
from schedules.primitives.compute_at import ComputeAt
from schedules.primitives.decompose_reduction import DecomposeReduction
from schedules.primitives.fuse import Fuse
from schedules.primitives.inline import Inline
from schedules.primitives.merge_axes import MergeAxes
from schedules.primitives.merge_dims import MergeDims
from schedules.primitives.online import Online, OnlineRounded
from schedules.primitives.pack import Pack
from schedules.primitives.parallel import Parallel
from schedules.primitives.partition import Partition
from schedules.primitives.reduce_ahead import ReduceAhead
from schedules.primitives.reorder import Reorder
from schedules.primitives.reorder_axes import ReorderAxes
from schedules.primitives.reorder_storage import ReorderStorage
from schedules.primitives.reverse_compute_at import ReverseComputeAt
from schedules.primitives.rfactor import Rfactor
from schedules.primitives.set_scope import SetScope
from schedules.primitives.skip_unread import SkipUnread
from schedules.primitives.skip_zeros import SkipZeros
from schedules.primitives.split import Split
from schedules.primitives.split_axis import SplitAxis
from schedules.primitives.split_dim import SplitDim
from schedules.primitives.stage_factor import StageFactor, factors
from schedules.primitives.tile import Tile
from schedules.primitives.unfold import Unfold
from schedules.primitives.unroll import Unroll
from schedules.primitives.vectorize import Vectorize
from schedules.primitives.widen import Widen
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

FACTORS = (1, 2, 2, 3, 4, 4, 5, 8, 16)
SCOPES = ("global", "local")


def _loops(s: Schedule) -> list[Loop]:
    return [x for x in walk(s.nest.body) if isinstance(x, Loop)]


def _loop(s: Schedule, rng: Random) -> str:
    names = [x.var for x in _loops(s)]
    return rng.choice(names) if names else "none"


def _split(s: Schedule, rng: Random) -> Primitive:
    n = rng.choice((2, 2, 2, 3))
    factors: list[int | None] = [rng.choice(FACTORS) for _ in range(n)]
    if rng.random() < 0.9:
        factors[0 if rng.random() < 0.8 else rng.randrange(n)] = None
    return Split(_loop(s, rng), tuple(factors), rng.choice(("guard", "guard", "guard", "shift")))


def _chain(s: Schedule, rng: Random) -> list[str]:
    """A loop and those directly inside it."""
    start = rng.choice(_loops(s)) if _loops(s) else None
    names: list[str] = []
    x: object = start
    while isinstance(x, Loop):
        names.append(x.var)
        x = x.body
    return names


def _fuse(s: Schedule, rng: Random) -> Primitive:
    return Fuse(tuple(_chain(s, rng)[: rng.choice((2, 2, 3))]))


def _merge_axes(s: Schedule, rng: Random) -> Primitive:
    return MergeAxes(tuple(_chain(s, rng)[: rng.choice((2, 2, 3))]))


def _merge_dims(s: Schedule, rng: Random) -> Primitive:
    b = rng.choice(s.nest.buffers)
    first = rng.randrange(max(1, len(b.shape) - 1))
    return MergeDims(b.name, first, min(rng.choice((2, 2, 3)), max(2, len(b.shape) - first)))


def _reorder(s: Schedule, rng: Random) -> Primitive:
    names = _chain(s, rng)
    some = rng.sample(names, rng.randint(1, len(names))) if names else []
    return Reorder(tuple(some))


def _tile(s: Schedule, rng: Random) -> Primitive:
    names = _chain(s, rng)[: rng.choice((1, 2, 2, 3))]
    return Tile(tuple(names), tuple(rng.choice(FACTORS) for _ in names))


def _block(s: Schedule, rng: Random) -> str:
    return rng.choice(s.blocks())


def _innermost(s: Schedule, rng: Random) -> str:
    names = [x.var for x in _loops(s) if not any(isinstance(y, Loop) for y in walk(x.body))]
    return rng.choice(names) if names and rng.random() < 0.9 else _loop(s, rng)


def _cache_read(s: Schedule, rng: Random) -> Primitive:
    block = _block(s, rng)
    have = sorted({x.buffer for x in reads(find_block(s.nest, block))}) or ["none"]
    return CacheRead(block, rng.choice(have), rng.choice(SCOPES))


def _cache_read_part(s: Schedule, rng: Random) -> Primitive:
    whole = _cache_read(s, rng)
    assert isinstance(whole, CacheRead)
    count = len({x for x in reads(find_block(s.nest, whole.block)) if x.buffer == whole.buffer})
    return CacheReadPart(whole.block, whole.buffer, rng.randrange(max(1, count)), whole.scope)


def _cache_read_view(s: Schedule, rng: Random) -> Primitive:
    part = _cache_read_part(s, rng)
    assert isinstance(part, CacheReadPart)
    return CacheReadView(part.block, part.buffer, part.place, part.scope)


def _cache_read_offset(s: Schedule, rng: Random) -> Primitive:
    whole = _cache_read(s, rng)
    assert isinstance(whole, CacheRead)
    return CacheReadOffset(whole.block, whole.buffer, rng.choice((0, 128, 128, -128)), whole.scope)


def _stage_factor(s: Schedule, rng: Random) -> Primitive:
    block = _block(s, rng)
    found = [f for v in find_block(s.nest, block).values for f in factors(v)]
    place = rng.randrange(len(found) + 1)
    known = place < len(found) and rng.random() < 0.7
    dtype = dtype_of(found[place]) if known else rng.choice(("uint8", "int8"))
    return StageFactor(block, place, dtype, rng.choice(SCOPES))


def _split_axis(s: Schedule, rng: Random) -> Primitive:
    loop = rng.choice(_loops(s)) if _loops(s) else None
    return SplitAxis(loop.var if loop else "none", rng.choice(FACTORS))


def _split_dim(s: Schedule, rng: Random) -> Primitive:
    b = rng.choice(s.nest.buffers)
    return SplitDim(b.name, rng.randrange(max(1, len(b.shape))), rng.choice(FACTORS))


def _reorder_axes(s: Schedule, rng: Random) -> Primitive:
    names = _chain(s, rng)[: rng.choice((2, 2, 3))]
    rng.shuffle(names)
    return ReorderAxes(tuple(names))


def _pack(s: Schedule, rng: Random) -> Primitive:
    made = [b for b in s.nest.buffers if b.name not in s.nest.params]
    copies = [b for b in made if b.name.endswith(SCOPES)] or made or list(s.nest.buffers)
    b = rng.choice(copies)
    tiles = tuple(rng.choice((0, 2, 3, 4)) for _ in b.shape)
    order = list(range(len(tiles) + sum(t > 0 for t in tiles)))
    rng.shuffle(order)
    return Pack(b.name, tiles, tuple(order))


def _unfold(s: Schedule, rng: Random) -> Primitive:
    copies = [b.name for b in s.nest.buffers if b.name.endswith(SCOPES)] or [s.nest.buffers[0].name]
    buffer = rng.choice(copies)
    loops = [x for b in readers(s.nest, buffer) for x in s.loops(b.name)] or ["none"]
    return Unfold(buffer, tuple(rng.sample(loops, min(len(loops), rng.choice((1, 1, 2))))))


def _reducing(s: Schedule, rng: Random) -> str:
    names = [b.name for b in blocks(s.nest.body) if b.reducer is not None]
    return rng.choice(names) if names else _block(s, rng)


def _around(s: Schedule, rng: Random, block: str) -> str:
    return rng.choice(s.loops(block) or ["none"])


def _rfactor(s: Schedule, rng: Random) -> Primitive:
    block = _reducing(s, rng)
    return Rfactor(block, _around(s, rng, block))


def _decompose(s: Schedule, rng: Random) -> Primitive:
    block = _reducing(s, rng)
    return DecomposeReduction(block, _around(s, rng, block))


def _online(s: Schedule, rng: Random) -> Primitive:
    names = [b.name for b in blocks(s.nest.body) if b.reducer is not None] or ["none"]
    top, *sums = rng.sample(names, min(len(names), rng.choice((2, 3, 3))))
    return Online(top, tuple(sums), rng.choice(FACTORS))


def _online_rounded(s: Schedule, rng: Random) -> Primitive:
    p = _online(s, rng)
    assert isinstance(p, Online)
    return OnlineRounded(p.block, p.sums, p.size)


def _annotate(s: Schedule, rng: Random) -> Primitive:
    if rng.random() < 0.5:
        return Annotate(_loop(s, rng), "chunk", rng.choice((1, 2, 3)))
    return Annotate(_block(s, rng), "nontemporal", rng.choice((1, 2)))


def _set_scope(s: Schedule, rng: Random) -> Primitive:
    inner = [b.name for b in s.nest.buffers if b.name not in s.nest.params]
    return SetScope(rng.choice(inner or list(s.nest.params)), rng.choice(("global", "local")))


def _widen(s: Schedule, rng: Random) -> Primitive:
    inner = [b for b in s.nest.buffers if b.name not in s.nest.params] or list(s.nest.buffers)
    b = rng.choice(inner)
    return Widen(b.name, rng.choice([n for n in NUMBERS if holds(n, b.dtype) and n != b.dtype] or ["int8"]))


def _reorder_storage(s: Schedule, rng: Random) -> Primitive:
    inner = [b for b in s.nest.buffers if b.name not in s.nest.params]
    b = rng.choice(inner or list(s.nest.buffers))
    order = list(range(len(b.shape)))
    rng.shuffle(order)
    return ReorderStorage(b.name, tuple(order))


def _skip_unread(s: Schedule, rng: Random) -> Primitive:
    name = _block(s, rng)
    axes = sum(i.kind == "spatial" for i in find_block(s.nest, name).iters)
    return SkipUnread(name, tuple(rng.choice((1, 1, 2, 3)) for _ in range(axes)))


CHOICES: dict[str, Callable[[Schedule, Random], Primitive]] = {
    "annotate": _annotate,
    "bind": lambda s, rng: Bind(_loop(s, rng), "blockIdx.x"),
    "cache_read": _cache_read,
    "cache_read_offset": _cache_read_offset,
    "cache_read_part": _cache_read_part,
    "cache_read_view": _cache_read_view,
    "cache_write": lambda s, rng: CacheWrite(_block(s, rng), rng.choice(SCOPES)),
    "compute_ahead": lambda s, rng: ComputeAhead(_block(s, rng), _loop(s, rng)),
    "compute_at": lambda s, rng: ComputeAt(_block(s, rng), _loop(s, rng)),
    "decompose_reduction": _decompose,
    "fuse": _fuse,
    "inline": lambda s, rng: Inline(_block(s, rng)),
    "merge_axes": _merge_axes,
    "merge_dims": _merge_dims,
    "online": _online,
    "online_rounded": _online_rounded,
    "pack": _pack,
    "parallel": lambda s, rng: Parallel(_loop(s, rng)),
    "partition": lambda s, rng: Partition(_loop(s, rng)),
    "reduce_ahead": lambda s, rng: ReduceAhead(_reducing(s, rng), _loop(s, rng)),
    "reorder": _reorder,
    "reorder_axes": _reorder_axes,
    "reorder_storage": _reorder_storage,
    "reverse_compute_at": lambda s, rng: ReverseComputeAt(_block(s, rng), _loop(s, rng)),
    "rfactor": _rfactor,
    "set_scope": _set_scope,
    "skip_unread": _skip_unread,
    "skip_zeros": lambda s, rng: SkipZeros(_reducing(s, rng)),
    "split": _split,
    "split_axis": _split_axis,
    "split_dim": _split_dim,
    "stage_factor": _stage_factor,
    "tile": _tile,
    "unfold": _unfold,
    "unroll": lambda s, rng: Unroll(_loop(s, rng)),
    "vectorize": lambda s, rng: Vectorize(_innermost(s, rng)),
    "widen": _widen,
}
WEIGHTS = {
    "split": 5,
    "tile": 2,
    "vectorize": 3,
    "compute_at": 3,
    "reverse_compute_at": 3,
    "partition": 3,
    "bind": 0,
}


def random_step(s: Schedule, rng: Random, only: str | None = None, tries: int = 20) -> bool:
    """Apply one random primitive (of one kind, if named) that is legal; False where none was found."""
    kinds = [only] if only else list(CHOICES)
    weights = [WEIGHTS.get(k, 2) if not only else 1 for k in kinds]
    for _ in range(tries):
        kind = rng.choices(kinds, weights)[0]
        p = CHOICES[kind](s, rng)
        try:
            p.check(s.nest, s.target)
        except ScheduleError:
            continue
        if small(p.apply(s.nest)):
            try:
                s.apply(p)
            except ScheduleError:  # of a scan it would change the order
                continue
            return True
    return False


def small(nest: Nest) -> bool:
    """Whether a test of the nest takes no longer than a moment: few iterations are run for nothing, unrolled
    code is short, and threads are woken seldom."""
    work = code = wakes = 0

    def go(x: Stmt, trips: int, copies: int) -> None:
        nonlocal work, code, wakes
        if isinstance(x, Loop):
            n = int(E.evaluate(x.extent, {}))
            wakes += trips if x.kind == "parallel" else 0
            trips, copies = trips * n, copies * (n if x.kind in ("unroll", "vectorize") else 1)
        if isinstance(x, Block):
            work, code = work + trips, code + copies
        for k in kids(x):
            go(k, trips, copies)

    go(nest.body, 1, 1)
    return work <= 3000 and code <= 400 and wakes <= 50


def random_schedule(dag: ComputeDAG, rng: Random, steps: int) -> Schedule:
    """``steps`` random legal primitives, one after another."""
    s = Schedule(dag)
    for _ in range(steps):
        random_step(s, rng)
    return s


def minimise(
    dag: ComputeDAG, trace: Trace, fails: Callable[[Schedule], bool], target: Target | None = None
) -> Trace:
    """A trace of which no single step can be left out so that the schedule still fails."""
    steps = list(trace.steps)
    shrunk = True
    while shrunk:
        shrunk = False
        for n in reversed(range(len(steps))):
            fewer = _legal(dag, steps[:n] + steps[n + 1 :], target)
            if len(fewer.trace.steps) < len(steps) and fails(fewer):
                steps, shrunk = list(fewer.trace.steps), True
                break
    return Trace(tuple(steps))


def _legal(dag: ComputeDAG, steps: list[object], target: Target | None) -> Schedule:
    s = Schedule(dag, target)
    for step in steps:
        try:
            s.apply(PRIMITIVES[step.primitive].from_step(step))  # type: ignore[attr-defined]
        except ScheduleError:
            continue
    return s

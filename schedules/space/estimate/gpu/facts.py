"""Facts of kernels for GPUs: `analyse` reads a nest once and keeps expressions over its holes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Hole, Var
from schedules.ir import (
    Block,
    Buffer,
    Loop,
    Nest,
    Stmt,
    blocks,
    bound_to,
    in_order,
    loops_around,
    path_to,
    walk,
)
from schedules.ir.nest import accesses, bound, readers, reads, vars_bound, writers
from schedules.ir.regions import footprint, span, values_at_most
from schedules.ir.strides import as_row_major, region_elements
from schedules.passes.nested_divisions import divided_once
from schedules.primitives.base import as_expr
from schedules.space.estimate.counting import arithmetic, product
from schedules.space.estimate.domains import domain_of
from schedules.space.estimate.gpu.coalescing import MemoryRequest, request
from schedules.space.estimate.gpu.rates import WARP


@dataclass(frozen=True, slots=True)
class GpuAccessFacts:
    """One read or write of a block. ``item``: bytes of an element. ``scope``: its memory. ``request``: what a
    warp accesses at once, in global memory. ``reuse``: uses of an element once it is in a register.
    ``adjacent``: elements of a thread that lie side by side."""

    item: int
    scope: str
    request: MemoryRequest | None
    reuse: Expr
    adjacent: Expr


# A number in place of holes whose decisions do not matter.
SOME = 4
# In how many parts the share of a domain is told.
PARTS = 1024
# How many blocks run at a time: a hole that `schedules.space.estimate.gpu.features` fills.
AT_A_TIME = "blocks at a time"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one block of the nest in a kernel. ``waits``: times that a thread waits for global memory.
    ``ahead``: 1 if that was loaded an iteration before. ``stages``: iterations whose copies to shared memory
    lie there at a time, of a block that copies in the background; 0: of another. ``unrolled``: copies of the
    block, ``longest``: of one loop; ``code_size``: about how much code one is. ``by_warp``: whether it is
    done by instructions of a warp together; ``products``: if these are products, the time of one multiply-
    add over that of 16-bit floats, else 0."""

    instances: Expr
    waits: Expr
    fetches: bool
    ahead: Expr
    stages: Expr
    unrolled: Expr
    longest: Expr
    code_size: int
    lanes: Expr
    flops: int
    special: int
    accesses: tuple[GpuAccessFacts, ...]
    by_warp: bool = False
    products: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel. ``array_bytes``: bytes of the arrays that it uses; ``block_bytes``: those that one block
    uses, ``wave_bytes``: those that `AT_A_TIME` blocks after each other use. Then the shape of the grid, the
    blocks that should share a processor, memory on the chip, and its work."""

    array_bytes: Expr
    block_bytes: Expr
    wave_bytes: Expr
    blocks: Expr
    min_blocks: Expr
    threads: tuple[Expr, ...]  # by axis
    shared_bytes: Expr
    local_bytes: Expr  # of a thread
    fragment_bytes: Expr  # of a thread
    work: tuple[Work, ...]


def analyse(nest: Nest) -> tuple[KernelFacts, ...]:
    """Facts of every kernel, as expressions over the holes that the nest still has."""
    return tuple(_kernel(nest, s) for s in in_order(nest.body))


def _kernel(nest: Nest, s: Stmt) -> KernelFacts:
    grid = product([x.extent for x in walk(s) if bound_to(x, "blockIdx")])
    threads: dict[str, Expr] = {}
    for x in walk(s):
        if bound_to(x, "threadIdx"):
            threads[x.kind] = E.maximum(threads.get(x.kind, Const(1)), x.extent)
    inside = {b.name for b in blocks(s)}
    shared: Expr = Const(0)
    local: Expr = Const(0)
    fragments: dict[str, Expr] = {}
    arrays: Expr = Const(0)
    parts: Expr = Const(0)
    wave: Expr = Const(0)
    used = {w.buffer for b in blocks(s) for w in b.writes} | {x.buffer for b in blocks(s) for x in reads(b)}
    for buffer in nest.buffers:
        made = [b for b in writers(nest, buffer.name) if b.name in inside]
        item = DTYPES[buffer.dtype].itemsize
        if buffer.name in used and buffer.scope == "global":
            arrays = arrays + _used(nest, s, buffer.name, None) * item
            parts = parts + _used(nest, s, buffer.name, Const(1)) * item
            wave = wave + _used(nest, s, buffer.name, E.Hole(AT_A_TIME)) * item
        if buffer.name in nest.params or not made:
            continue
        if buffer.scope == "shared":
            size = _region(nest, s, buffer.name) * item
            shared = shared + size * _stages(s, made[0], 1)
            local = local + _fetched(s, made[0]) * item * _ahead(s, made[0])
        elif buffer.scope == "local":
            local = local + _own(s, made[0]) * item
        elif buffer.scope == "fragment":
            fragments[buffer.name] = E.ceildiv(_held(nest, s, made[0]) * item, Const(WARP))
    work = tuple(_work(s, b, nest) for b in blocks(s))
    return KernelFacts(
        arrays, parts, wave, grid, _min_blocks(s), tuple(threads.values()), shared, local,
        _most_at_a_time(s, fragments), work,
    )  # fmt: skip


def _most_at_a_time(s: Stmt, sizes: Mapping[str, Expr]) -> Expr:
    """The largest sum of the ``sizes`` of buffers that live at a time: from the first block that uses one to
    the last."""
    used = [sizes.keys() & ({w.buffer for w in b.writes} | {x.buffer for x in reads(b)}) for b in blocks(s)]
    live = {frozenset(x | (set().union(*used[:n]) & set().union(*used[n:]))) for n, x in enumerate(used)}
    sums = [sum((sizes[k] for k in sizes if k in x), Const(0)) for x in live if not any(x < y for y in live)]
    return functools.reduce(E.maximum, sorted(sums, key=E.show))


def _min_blocks(s: Stmt) -> Expr:
    hint = _hint((x for x in walk(s) if isinstance(x, Loop) and bound_to(x, "blockIdx")), "min_blocks")
    return Const(1) if hint is None else hint


def _hint(where: Iterable[Loop | Block], key: str) -> Expr | None:
    """The first hint of this name; None if there is none."""
    return next((as_expr(v) for x in where for k, v in x.annotations if k == key), None)


def _used(nest: Nest, s: Stmt, name: str, by: Expr | None) -> Expr:
    """Elements of a global buffer that so many blocks of a kernel use after each other; None: all of them."""
    inner: dict[str, Expr] = {}
    for x in walk(s):
        if isinstance(x, Loop) and not bound_to(x, "blockIdx"):
            inner[x.var] = x.extent
        elif isinstance(x, Loop) and by != Const(1):
            inner[x.var] = x.extent if by is None else E.minimum(x.extent, by)
    places = [at for b in blocks(s) for at in accesses(b, name)]
    shape = nest.buffer(name).shape
    return product([_touched(places, d, inner, shape) for d in range(len(shape))])


def _touched(
    places: list[tuple[Expr, ...]], d: int, inner: Mapping[str, Expr], shape: tuple[Expr, ...]
) -> Expr:
    """Elements that accesses touch along dimension ``d``. Where it is gathered along, the most of one
    access counts."""
    ((_, n),) = footprint([(at[d],) for at in places], inner, shape[d : d + 1], clip=True)
    if not any(E.loads(at[d]) for at in places):
        return n
    return E.minimum(n, functools.reduce(E.maximum, [values_at_most(at[d], inner) for at in places]))


def _apart(nest: Nest, s: Stmt, name: str) -> list[tuple[Block, list[Loop]]]:
    """The blocks that write or read a buffer, each with its loops inside of those around all of them."""
    users = [*writers(nest, name), *readers(nest, name)]
    paths = [path_to(s, lambda x, u=u: x is u) or () for u in users]  # type: ignore[misc]
    common = 0
    while all(len(p) > common for p in paths) and len({id(p[common]) for p in paths}) == 1:
        common += 1
    own = ([x for x in p[common:] if isinstance(x, Loop)] for p in paths)
    return list(zip(users, own, strict=True))


def _held(nest: Nest, s: Stmt, b: Block) -> Expr:
    """Elements of a fragment that a warp has between its first and its last use, by what a block writes."""
    own = next(loops for u, loops in _apart(nest, s, b.writes[0].buffer) if u is b)
    return _by_thread([x for x in own if x.var in vars_bound(b, "spatial")])


def _region(nest: Nest, s: Stmt, name: str) -> Expr:
    """Elements of a shared buffer that are needed between its first and its last use."""
    users = _apart(nest, s, name)
    inner = {x.var: x.extent for _, loops in users for x in loops}
    places = [at for u, _ in users for at in accesses(u, name)]
    shape = nest.buffer(name).shape
    spans = [n for _, n in footprint(places, inner, shape, clip=False)]
    for d, size in enumerate(shape):
        if spans[d] == size:  # not known here, but lowering may bound it: what loops overrun counts
            told = [s for s in (span(at[d], inner) for at in places) if s is not None]
            spans[d] = functools.reduce(E.maximum, [n for _, n in told], size)
    pad = _hint(writers(nest, name), "pad")
    if nest.buffer(name).strides is not None:
        return region_elements(nest.buffer(name), tuple(spans), pad or Const(0))
    return product([*spans[:-1], spans[-1] + pad] if pad is not None and spans else spans)


def _ahead(s: Stmt, b: Block) -> Expr:
    """1 if a loop around the block loads what it writes an iteration ahead, into registers."""
    hint = _hint(loops_around(b, s), "prefetch")
    return Const(0) if hint is None else hint


def _stages(s: Stmt, b: Block, otherwise: int) -> Expr:
    """Iterations whose copies by the block lie in shared memory at a time, if they run in the background."""
    hint = _hint(reversed(loops_around(b, s)), "stages")
    return Const(otherwise) if hint is None or _hint((b,), "async") is None else hint


def _fetched(s: Stmt, b: Block) -> Expr:
    """Elements that one thread writes in an iteration of the loop that loads ahead."""
    path = loops_around(b, s)
    ahead = [n for n, x in enumerate(path, 1) if any(k == "prefetch" for k, _ in x.annotations)]
    inner = path[max(ahead, default=0) :]
    return _by_thread(inner)


def _own(s: Stmt, b: Block) -> Expr:
    """Elements that one thread keeps of what a block writes."""
    own = [x for x in loops_around(b, s) if x.var in vars_bound(b, "spatial")]
    return _by_thread(own)


def _by_thread(loops: Iterable[Loop]) -> Expr:
    """Iterations of loops that each thread does."""
    return product([x.extent for x in loops if not bound_to(x, "blockIdx") and not bound_to(x, "threadIdx")])


def _code_size(b: Block, places: Iterable[tuple[Expr, ...]]) -> int:
    """About how much code one copy of a block is, with some numbers for its holes."""

    def some(e: Expr) -> Expr | None:
        return Const(SOME) if isinstance(e, Hole) else None

    indices = [affine.simplify(E.rewrite(bound(b, i), some), {}) for ix in places for i in ix]
    return sum(E.code_size(divided_once(x)) for x in (*indices, *b.values))


def _work(s: Stmt, b: Block, nest: Nest) -> Work:
    loops = loops_around(b, s)
    flops, special = arithmetic(b)
    own = {w.buffer for w in b.writes}
    named = [(w.buffer, w.indices) for w in b.writes]
    named += [(x.buffer, x.indices) for x in reads(b) if x.buffer not in own]
    places = [as_row_major(nest.buffer(name), ix) for name, ix in named]
    unrolled = [x for x in loops if x.kind in ("unroll", "vectorize")]

    def reuse(ix: tuple[Expr, ...]) -> Expr:
        used = frozenset().union(*(E.variables(bound(b, i)) for i in ix)) if ix else frozenset()
        return product([x.extent for x in unrolled if x.var not in used])

    def adjacent(buffer: Buffer, ix: tuple[Expr, ...]) -> Expr:
        steps = affine.linear(bound(b, ix[-1]))[0] if ix else {}
        near = product([x.extent for x in unrolled if steps.get(Var(x.var)) == Const(1)])
        pad = _hint(writers(nest, buffer.name), "pad")
        return near if pad is None else E.minimum(near, 4 - pad % 4)

    by = next((x.instruction for x in loops if x.instruction is not None and x.instruction.collective), None)
    found = tuple(
        GpuAccessFacts(
            DTYPES[buffer.dtype].itemsize,
            buffer.scope,
            request(b, buffer, ix, _lanes(loops)) if buffer.scope == "global" else None,
            reuse(ix),
            adjacent(buffer, ix),
        )
        for buffer, ix in places
    )
    far = any(nest.buffer(x.buffer).scope == "global" for x in reads(b) if x.buffer not in own)
    instances = product([x.extent for x in loops])
    if (domain := domain_of(b, unrolled)) is not None:
        instances = instances * round(domain.filled * PARTS) // PARTS
    return Work(
        instances,
        product([x.extent for x in loops if x.kind == "serial"]) if far else Const(0),
        any(nest.buffer(w.buffer).scope == "shared" for w in b.writes),
        _ahead(s, b),
        _stages(s, b, 0),
        product([x.extent for x in unrolled]),
        functools.reduce(E.maximum, (Const(1), *(x.extent for x in unrolled if x.kind == "unroll"))),
        _code_size(b, [ix for _, ix in places]) if by is None else 0,
        product([x.extent for x in loops if x.kind == "vectorize"]),
        flops,
        special,
        found,
        by is not None,
        DTYPES[by.meaning.inputs[0].dtype].itemsize / 2 if by is not None and by.terms > 1 else 0.0,
    )


def _lanes(loops: list[Loop]) -> list[Loop]:
    """Loops around a block, in which lanes of a warp are told: those that share elements of fragments have
    neighbours of the innermost loops."""
    kinds = [x.kind for x in loops]
    if "threadIdx.y" not in kinds or "threadIdx.x" in kinds:
        return loops
    own = [n for n in range(kinds.index("threadIdx.y") + 1, len(loops)) if kinds[n] == "serial"][-2:]
    return [
        replace(
            x,
            kind=f"threadIdx.{'xy'[own[::-1].index(n)]}"
            if n in own
            else x.kind.replace("threadIdx.y", "serial"),
        )
        for n, x in enumerate(loops)
    ]

"""Quantities of kernels for GPUs, for one candidate or for every row of a decision matrix.

`analyse` reads a nest once and keeps expressions over its holes; limits and features evaluate them. Limits
are those of the target: threads of a block, shared memory, registers, and the size of unrolled code; so that
no infeasible candidate reaches a compiler. The estimate is the longer of what memory takes, and of cycles in
which blocks compute and wait (docs/adr/0033).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedules import affine
from schedules import expr as E
from schedules.dtypes import ITEMSIZE
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, Stmt, blocks, bound_to, in_order, path_to, walk
from schedules.ir.nest import accesses, bound, readers, reads, vars_bound, writers
from schedules.ir.regions import footprint, span
from schedules.model import Target
from schedules.primitives.base import as_expr
from schedules.space.facts import arithmetic, product
from schedules.space.holes import Columns
from schedules.space.hottest import Hottest
from schedules.space.quantities import Number, number
from schedules.space.recording import Compiler

WARP = 32
SPARE_REGISTERS = 28  # indices, pointers, operands on their way: as few as must be
USED, TAKEN_REGISTERS = 1.2, 36  # what compilers take, for each that arrays need, and beside those
MOST_UNROLLED = 4096  # statements of one body
LAUNCH_S = 3e-6
BEGIN = 200.0  # cycles in which a processor begins one block
LATENCY = 1500.0  # cycles until what is asked for of global memory has come, and a barrier
TURN = 60.0  # of them that no other block makes up for
AHEAD = 0.1  # of that is left where it was asked for a turn before
FLOWING = 0.05  # where no barrier has threads wait: what next turns need comes meanwhile
FIRST_CACHE = 128 << 10  # bytes
CACHED = 1.5  # times the bandwidth of memory is the second cache's


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits and rates of a GPU, from `Target.limits`."""

    sms: float
    threads: float  # of a block at most
    sm_threads: float
    sm_blocks: float
    shared: float  # bytes, of a block at most
    sm_shared: float
    registers: float  # 32 bits each, of a block and of an SM
    thread_registers: float
    fma: float  # a cycle and SM, float32
    clock: float  # Hz
    bandwidth: float  # bytes a second

    @staticmethod
    def of(target: Target) -> Machine:
        def limit(name: str, default: int) -> float:
            return float(target.limit(name, default))

        shared = limit("shared_bytes", 48 << 10)
        return Machine(
            limit("sms", 108), limit("block_threads", 1024), limit("sm_threads", 2048),
            limit("sm_blocks", 32), shared, max(shared, limit("sm_shared_bytes", 164 << 10)),
            limit("registers", 65536), limit("thread_registers", 255), limit("fma", 64),
            1e6 * limit("clock_mhz", 1400), 1e9 * limit("bandwidth_gbs", 1500),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a block: bytes an element, the memory it goes to, whether neighbouring threads use
    neighbouring elements, how often a thread uses what it has once in a register, and how many elements that
    it uses lie side by side."""

    item: int
    scope: str
    side_by_side: bool
    reuse: Expr
    adjacent: Expr


@dataclass(frozen=True, slots=True)
class Work:
    """What one block of the nest does in a kernel. ``waits``: how often a thread waits for what it reads of
    global memory; ``ahead``: 1 where that was asked for a turn before."""

    instances: Expr
    waits: Expr
    fetches: bool
    ahead: Expr
    unrolled: Expr
    lanes: Expr
    flops: int
    special: int
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel: the bytes of the arrays that it uses, and of what one block uses of them; the shape of its
    grid, how many blocks are to share a processor, what a block keeps on the chip, and its work."""

    array_bytes: Expr
    block_bytes: Expr
    blocks: Expr
    min_blocks: Expr
    threads: tuple[Expr, ...]  # by axis
    shared_bytes: Expr
    local_bytes: Expr  # of a thread
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
    arrays: Expr = Const(0)
    parts: Expr = Const(0)
    used = {w.buffer for b in blocks(s) for w in b.writes} | {x.buffer for b in blocks(s) for x in reads(b)}
    for buffer in nest.buffers:
        made = [b for b in writers(nest, buffer.name) if b.name in inside]
        if buffer.name in used and buffer.scope == "global":
            arrays = arrays + _used(nest, s, buffer.name, True) * ITEMSIZE[buffer.dtype]
            parts = parts + _used(nest, s, buffer.name, False) * ITEMSIZE[buffer.dtype]
        if buffer.name in nest.params or not made:
            continue
        if buffer.scope == "shared":
            shared = shared + _region(nest, s, buffer.name) * ITEMSIZE[buffer.dtype]
            local = local + _fetched(s, made[0]) * ITEMSIZE[buffer.dtype] * _ahead(s, made[0])
        elif buffer.scope == "local":
            local = local + _own(s, made[0]) * ITEMSIZE[buffer.dtype]
    work = tuple(_work(s, b, nest) for b in blocks(s))
    return KernelFacts(arrays, parts, grid, _min_blocks(s), tuple(threads.values()), shared, local, work)


def _min_blocks(s: Stmt) -> Expr:
    hint = _hint((x for x in walk(s) if isinstance(x, Loop) and bound_to(x, "blockIdx")), "min_blocks")
    return Const(1) if hint is None else hint


def _hint(where: Iterable[Loop | Block], key: str) -> Expr | None:
    """What the first of these says that has such a hint; None where none has."""
    return next((as_expr(v) for x in where for k, v in x.annotations if k == key), None)


def _used(nest: Nest, s: Stmt, name: str, by_all: bool) -> Expr:
    """Elements of a global buffer that a kernel uses, or one block of it."""
    loops = [x for x in walk(s) if isinstance(x, Loop)]
    inner = {x.var: x.extent for x in loops if by_all or not bound_to(x, "blockIdx")}
    places = [at for b in blocks(s) for at in accesses(b, name)]
    return product([n for _, n in footprint(places, inner, nest.buffer(name).shape, clip=True)])


def _region(nest: Nest, s: Stmt, name: str) -> Expr:
    """Elements of a shared buffer between whose first and last use nothing else is needed of it."""
    users = [*writers(nest, name), *readers(nest, name)]
    paths = [path_to(s, lambda x, u=u: x is u) or () for u in users]  # type: ignore[misc]
    common = 0
    while all(len(p) > common for p in paths) and len({id(p[common]) for p in paths}) == 1:
        common += 1
    inner = {x.var: x.extent for p in paths for x in p[common:] if isinstance(x, Loop)}
    places = [at for u in users for at in accesses(u, name)]
    shape = nest.buffer(name).shape
    spans = [n for _, n in footprint(places, inner, shape, clip=False)]
    for d, size in enumerate(shape):
        if spans[d] == size:  # nothing could be told, but lowering may: what loops overrun counts then
            told = [s for s in (span(at[d], inner) for at in places) if s is not None]
            spans[d] = functools.reduce(E.maximum, [n for _, n in told], size)
    pad = _hint(writers(nest, name), "pad")
    return product([*spans[:-1], spans[-1] + pad] if pad is not None and spans else spans)


def _ahead(s: Stmt, b: Block) -> Expr:
    """1 where a loop around the block asks for what it writes to be loaded ahead, into registers."""
    path = path_to(s, lambda x: x is b) or ()
    hint = _hint((x for x in path if isinstance(x, Loop)), "prefetch")
    return Const(0) if hint is None else hint


def _fetched(s: Stmt, b: Block) -> Expr:
    """Elements that one thread writes of what a block does, in a turn of the loop that is to be ahead."""
    path = [x for x in path_to(s, lambda x: x is b) or () if isinstance(x, Loop)]
    ahead = [n for n, x in enumerate(path, 1) if any(k == "prefetch" for k, _ in x.annotations)]
    inner = path[max(ahead, default=0) :]
    return product([x.extent for x in inner if not x.kind.startswith(("blockIdx", "threadIdx"))])


def _own(s: Stmt, b: Block) -> Expr:
    """Elements that one thread keeps of what a block writes."""
    path = path_to(s, lambda x: x is b) or ()
    spatial = vars_bound(b, "spatial")
    return product(
        [
            x.extent
            for x in path
            if isinstance(x, Loop) and x.var in spatial and not x.kind.startswith(("blockIdx", "threadIdx"))
        ]
    )


def _work(s: Stmt, b: Block, nest: Nest) -> Work:
    loops = [x for x in path_to(s, lambda x: x is b) or () if isinstance(x, Loop)]
    thread = next((x.var for x in loops if x.kind == "threadIdx.x"), "")
    flops, special = arithmetic(b)
    own = {w.buffer for w in b.writes}
    places = [(w.buffer, w.indices) for w in b.writes]
    places += [(x.buffer, x.indices) for x in reads(b) if x.buffer not in own]
    unrolled = [x for x in loops if x.kind in ("unroll", "vectorize")]

    def reuse(ix: tuple[Expr, ...]) -> Expr:
        used = frozenset().union(*(E.variables(bound(b, i)) for i in ix)) if ix else frozenset()
        return product([x.extent for x in unrolled if x.var not in used])

    def adjacent(name: str, ix: tuple[Expr, ...]) -> Expr:
        steps = affine.linear(bound(b, ix[-1]))[0] if ix else {}
        near = product([x.extent for x in unrolled if steps.get(Var(x.var)) == Const(1)])
        pad = _hint(writers(nest, name), "pad")
        return near if pad is None else E.minimum(near, 4 - pad % 4)

    found = tuple(
        Access(
            ITEMSIZE[nest.buffer(name).dtype], nest.buffer(name).scope, _beside(b, ix, thread), reuse(ix),
            adjacent(name, ix),
        )
        for name, ix in places
    )  # fmt: skip
    far = any(nest.buffer(x.buffer).scope == "global" for x in reads(b) if x.buffer not in own)
    return Work(
        product([x.extent for x in loops]),
        product([x.extent for x in loops if x.kind == "serial"]) if far else Const(0),
        any(nest.buffer(w.buffer).scope == "shared" for w in b.writes),
        _ahead(s, b),
        product([x.extent for x in unrolled]),
        product([x.extent for x in loops if x.kind == "vectorize"]),
        flops,
        special,
        found,
    )


def _beside(b: Block, indices: tuple[Expr, ...], thread: str) -> bool:
    """Whether the last index moves with the thread, and no other one alone does."""
    if not indices or not thread:
        return True
    last = bound(b, indices[-1])
    terms, _ = affine.linear(last)
    inner = [a for a, c in terms.items() if thread in E.variables(a)]
    if not inner:
        return not any(thread in E.variables(bound(b, i)) for i in indices[:-1])
    return any(a == Var(thread) or (isinstance(a, E.Binary) and a.op == "%") for a in inner)


@dataclass(frozen=True, slots=True)
class _Shape:
    threads: Number
    shared: Number
    registers: Number
    blocks: Number
    resident: Number  # blocks of an SM at a time
    fits: Number  # whether as many are as shall be


def _shape(k: KernelFacts, env: Columns, m: Machine) -> _Shape:
    threads = np.ones(())
    for x in k.threads:
        threads = threads * number(x, env)
    shared = number(k.shared_bytes, env)
    held = number(k.local_bytes, env) / 4
    together = number(k.min_blocks, env)
    # as many as leave room for so many blocks: the compiler keeps to that
    most = np.floor(m.registers / (np.ceil(threads / WARP) * WARP * together))
    resident = _resident(threads, shared, np.minimum(most, held * USED + TAKEN_REGISTERS), m)
    registers = np.ceil(held) + SPARE_REGISTERS
    fits = (registers <= most) & (resident >= together)
    return _Shape(threads, shared, registers, number(k.blocks, env), resident, fits)


def _resident(threads: Number, shared: Number, registers: Number, m: Machine) -> Number:
    """Blocks that a processor holds at a time."""
    warps = np.ceil(threads / WARP)
    resident = np.minimum(m.sm_blocks, np.floor(m.sm_threads / (warps * WARP)))
    resident = np.minimum(resident, np.floor(m.sm_shared / np.maximum(shared, 1.0)))
    return np.minimum(resident, np.floor(m.registers / (np.minimum(registers, 255.0) * warps * WARP)))


def occupancy(threads: Number, shared: Number, registers: Number, m: Machine) -> Number:
    """The share of the threads that a processor can hold which blocks of so many threads, shared bytes and
    registers a thread fill, or a column of that."""
    return _filled(threads, _resident(threads, shared, registers, m), m)


def _filled(threads: Number, resident: Number, m: Machine) -> Number:
    return np.minimum(1.0, resident * np.ceil(threads / WARP) * WARP / m.sm_threads)


def within(facts: tuple[KernelFacts, ...], env: Columns, m: Machine) -> Number:
    """Whether a candidate keeps the limits of the target, or a column of that."""
    ok: Number = np.True_
    for k in facts:
        x = _shape(k, env, m)
        ok = ok & (x.threads <= m.threads) & (x.shared <= m.shared) & (x.resident >= 1)
        ok = ok & (x.registers <= m.thread_registers) & (x.blocks < 2**31) & x.fits
        for w in k.work:
            ok = ok & (number(w.unrolled, env) <= MOST_UNROLLED)
    return ok


FEATURES_PER_KERNEL = (
    "blocks", "threads", "waves", "occupancy", "shared_bytes", "registers", "flops", "special", "far_bytes",
    "scattered_bytes", "near_loads", "unrolled", "waits", "cycles", "lanes", "intensity", "warp_use", "est_s",
)  # fmt: skip
HOT_KERNELS = 2
FEATURE_NAMES = (
    *(f"kernel{n}.{f}" for n in range(HOT_KERNELS) for f in FEATURES_PER_KERNEL),
    "kernels",
    "est_time_s",
)


def _measure(k: KernelFacts, env: Columns, m: Machine) -> dict[str, Number]:
    x = _shape(k, env, m)
    flops = special = far = scattered = near = loads = unrolled = waits = np.zeros(())
    lanes = np.ones(())
    for w in k.work:
        n = number(w.instances, env)
        flops, special = flops + n * w.flops, special + n * w.special
        unrolled = np.maximum(unrolled, number(w.unrolled, env))
        lanes = np.maximum(lanes, number(w.lanes, env))
        left = np.where(number(w.ahead, env) == 1, AHEAD, 1.0 if w.fetches else FLOWING)
        waits = waits + number(w.waits, env) * left
        for a in w.accesses:
            times = n / number(a.reuse, env)
            if a.scope == "shared":
                wide = np.clip(number(a.adjacent, env), 1.0, 4.0)
                near = near + times * np.where(wide >= 4, 0.4, np.where(wide >= 2, 0.6, 1.0))
                loads = loads + times / wide
            elif a.scope == "global":
                single = times / np.clip(number(w.lanes, env), 1.0, 4.0)
                near, loads = near + single, loads + single
                far = far + times * a.item
                scattered = scattered + times * a.item * (not a.side_by_side)
    waves = np.ceil(x.blocks / (m.sms * np.maximum(x.resident, 1.0)))
    filled = _filled(x.threads, x.resident, m)
    busy = np.minimum(1.0, x.blocks / (m.sms * np.maximum(x.resident, 1.0)) / waves)
    warp_use = x.threads / (np.ceil(x.threads / WARP) * WARP)
    hidden = np.clip(filled * 8.0, 1e-3, 1.0)  # an eighth of the threads hides most of what arithmetic takes
    # of a block that has a processor for itself; those beside it compute while it waits
    issue = np.maximum((flops / 2 + loads) / m.fma, np.maximum(near / 32.0, special / 16.0))
    cycles = issue / x.blocks / warp_use
    together = np.minimum(np.maximum(x.resident, 1.0), np.ceil(x.blocks / m.sms))
    wave = np.maximum(together * cycles / hidden, cycles + LATENCY * waits) + TURN * waits
    wave = np.maximum(wave, together * BEGIN)
    part = number(k.block_bytes, env)  # where the first cache holds that, a block reads it there again
    anew = np.where(part <= FIRST_CACHE, np.minimum(1.0, x.blocks * part / np.maximum(far, 1.0)), 1.0)
    memory = np.maximum(number(k.array_bytes, env), anew * (far + 3.0 * scattered) / CACHED)
    seconds = np.maximum(waves * wave / m.clock, memory / (m.bandwidth * busy * hidden)) + LAUNCH_S
    return {
        "blocks": x.blocks, "threads": x.threads, "waves": waves, "occupancy": filled,
        "shared_bytes": x.shared, "registers": x.registers, "flops": flops, "special": special,
        "far_bytes": far, "scattered_bytes": scattered, "near_loads": near, "unrolled": unrolled,
        "waits": waits, "cycles": wave, "lanes": lanes, "intensity": flops / np.maximum(far, 1.0),
        "warp_use": warp_use, "est_s": seconds,
    }  # fmt: skip


class Features:
    """The features of what has these facts, with these holes: of the slowest kernels by the estimate one by
    one, and of all together; ``compiler`` as of `Program`."""

    def __init__(
        self,
        facts: tuple[KernelFacts, ...],
        holes: Sequence[str],
        machine: Machine,
        compiler: Compiler | None = None,
    ) -> None:
        self._kernels = len(facts)

        def kernels(env: Columns) -> list[dict[str, Number]]:
            return [_measure(k, env, machine) for k in facts]

        self._hottest = Hottest(holes, kernels, FEATURES_PER_KERNEL, "est_s", compiler=compiler)

    def __call__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Of every row of a decision matrix, [rows, len(FEATURE_NAMES)]."""
        out = np.empty((len(rows), len(FEATURE_NAMES)), dtype=np.float32)
        sums = self._hottest(rows, out[:, :-2])
        out[:, -2], out[:, -1] = self._kernels, sums["est_s"]
        return out

"""Quantities of a scheduled nest, for one candidate or for every row of a decision matrix.

`analyse` reads a nest once and keeps expressions over its holes; `measure` evaluates them, on integers or on
columns. One definition feeds the static limits, the features and the analytic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schedules import affine
from schedules import expr as E
from schedules.dtypes import ITEMSIZE
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, Stmt, blocks, path_to
from schedules.model import LINE, Target
from schedules.nest import bound, reads
from schedules.primitives.base import as_expr
from schedules.regions import footprint
from schedules.space.holes import Columns
from schedules.space.recording import Program

Number = Any  # a float, or a column of them
ADD_CYCLES = 4.5  # until a sum can be added to
LOADS = 1.6  # a cycle, beside other work: two ports, less what gets in their way
WAYS = 8  # of the caches
RATES = (32.0, 16.0, 6.0)  # bytes a cycle from the second cache, the third and memory
STREAMS = 8  # lines that may be streamed to at a time
SELECT_CYCLES = 1.0
RUN_CYCLES = 45.0  # until memory answers at full speed, wherever a run of addresses begins
FOLLOWED = 8  # runs read in turns that prefetching can follow at a time
HIDDEN = 0.7  # of the time that memory takes, where it was asked ahead


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """One read or write: elements touched by the register tile, by the loops up to a full reduction, and by
    the whole nest; the steps, in elements, from lane to lane and along the reduction. ``moved``: elements
    that come anew after others were touched; ``distance``: bytes touched since the buffer was used last;
    ``run``, ``inner_run``, ``panel_run``: elements that lie side by side among those of the tile, those up to
    a full reduction, and those of a panel."""

    buffer: str
    item: int
    write: bool
    stride: Expr | None  # None: not linear in the lane
    pitch: Expr | None  # the step along the innermost reduction loop, likewise
    rows: tuple[tuple[Expr, Expr], ...]  # extent and step of each other unrolled loop
    tile: Expr
    inner: Expr
    panel: Expr
    whole: Expr
    moved: Expr
    distance: Expr
    run: Expr
    inner_run: Expr
    panel_run: Expr


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block: how often it runs and in what shape."""

    name: str
    instances: Expr
    lanes: Expr
    unrolled: Expr
    reduction: Expr  # length of the reduction loops around the register tile
    parts: Expr  # that the whole reduction is done in
    outer: Expr  # iterations of the loops outside those
    parallel: Expr
    flops: int
    special: int  # special functions a point
    selects: int  # choices and comparisons a point
    item: int
    reduces: bool
    streams: Expr  # 1: results go around the caches
    ahead: Expr  # more than 0: what it reads was asked for before
    accesses: tuple[AccessFacts, ...]


def analyse(nest: Nest) -> tuple[BlockFacts, ...]:
    """Facts of every block, as expressions over the holes that the nest still has."""
    everything: Expr = Const(0)  # bytes of the arguments: what lies between one call and the next
    for buf in (nest.buffer(name) for name in nest.params):
        everything = everything + product(list(buf.shape)) * ITEMSIZE[buf.dtype]
    used: dict[str, list[Loop]] = {}  # loops around the block that used a buffer last
    return tuple(_block(nest, b, used, everything) for b in blocks(nest.body))


def product(xs: list[Expr]) -> Expr:
    """All of them multiplied."""
    out: Expr = Const(1)
    for x in xs:
        out = out * x
    return out


def selects(b: Block) -> int:
    """Choices and comparisons of one instance."""
    return sum(isinstance(x, (E.Select, E.Compare, E.Logic)) for v in b.values for x in E.walk(v))


def arithmetic(b: Block) -> tuple[int, int]:
    """Operations of one instance: floating-point ones, a reduction's own included, and special functions."""
    ops = [x for v in b.values for x in E.walk(v)]
    flops = sum(isinstance(x, E.Binary) and E.is_float(E.dtype_of(x)) for x in ops)
    special = sum(isinstance(x, E.Call) and x.fn not in ("abs", "floor") for x in ops)
    return flops + len(b.writes) * (b.reducer is not None), special


def hottest(
    program: Program,
    rows: npt.NDArray[np.int64],
    names: Sequence[str],
    by: str,
    out: npt.NDArray[np.float32],
    also: Sequence[str] = (),
) -> dict[str, npt.NDArray[np.float64]]:
    """Quantities of several blocks or kernels, which ``program`` gives one after the other by ``names``: of
    those with most of ``by`` in each row, most first, side by side into ``out``, as many as fit, and zeros
    where there are fewer. Returns ``by`` and ``also``, summed over all of them."""
    width, blocks = len(names), program.count // len(names)
    sums = {name: np.empty(len(rows)) for name in (by, *also)}
    out[:, blocks * width :] = 0.0
    for part, found in program.run(rows):
        n = part.stop - part.start
        table = np.empty((n, blocks * width), dtype=np.float32)
        table[:] = [0.0 if np.ndim(x) else x for x in found]
        for k, column in enumerate(found):
            if np.ndim(column):
                table[:, k] = column
        keys = np.stack([np.broadcast_to(x, n) for x in found[names.index(by) :: width]])
        order = np.argsort(-keys, axis=0, kind="stable")
        first = np.arange(n) * blocks
        whole = table.reshape(n * blocks, width)  # rows of names: copying them is faster than by element
        for k, block in enumerate(order[: out.shape[1] // width]):
            out[part, k * width : (k + 1) * width] = whole[first + block]
        for name, column in sums.items():
            column[part] = sum(found[names.index(name) :: width])
    return sums


def _block(nest: Nest, b: Block, used: dict[str, list[Loop]], everything: Expr) -> BlockFacts:
    """Facts of one block; ``used`` is brought up to date."""
    path: tuple[Stmt, ...] = path_to(nest.body, lambda s: s is b) or ()
    loops = [s for s in path if isinstance(s, Loop)]
    tile = [x for x in loops if x.kind in ("vectorize", "unroll")]
    rest = [x for x in loops if x.kind not in ("vectorize", "unroll")]
    red = frozenset().union(
        *(E.variables(e) for i, e in zip(b.iters, b.binds, strict=True) if i.kind == "reduce")
    )
    # The innermost run of reduction loops: where the reduction is in parts, others lie further out.
    ends = [k + 1 for k, x in enumerate(rest) if x.var in red]
    last = ends[-1] if ends else len(rest)
    first = next((k for k in range(last, 0, -1) if rest[k - 1].var not in red), 0) if ends else last
    deep, outer = rest[first:], rest[:first]
    panel = deep + outer[-1:]
    lane = next((x for x in tile if x.kind == "vectorize"), None)
    walk = next((x for x in reversed(loops) if x.var in red), None)
    rows = [x for x in tile if x.kind == "unroll" and x.var not in red]
    dtype = nest.buffer(b.writes[0].buffer).dtype
    flops, special = arithmetic(b)
    own = {w.buffer for w in b.writes}
    named: list[tuple[str, tuple[Expr, ...], bool]] = [(w.buffer, w.indices, True) for w in b.writes]
    named += [(x.buffer, x.indices, False) for x in reads(b) if x.buffer not in own]
    places = [(nest.buffer(name), tuple(bound(b, i) for i in ix), write) for name, ix, write in named]

    def distance(since: list[Loop]) -> Expr:
        out: Expr = Const(0)
        for buf, at, _ in places:
            out = out + _points(at, buf.shape, since) * ITEMSIZE[buf.dtype]
        return out

    facts = []
    for buf, at, write in places:
        shared = _shared(loops, used.get(buf.name, []))
        since = loops[shared:]
        facts.append(
            AccessFacts(
                buf.name,
                ITEMSIZE[buf.dtype],
                write,
                _stride(at, buf.shape, lane),
                _stride(at, buf.shape, walk),
                tuple((x.extent, step) for x in rows if (step := _stride(at, buf.shape, x)) is not None),
                _loaded(at, buf.shape, tile),
                _points(at, buf.shape, tile + deep),
                _points(at, buf.shape, tile + panel),
                _points(at, buf.shape, tile + rest),
                _points(at, buf.shape, since) * product([x.extent for x in loops[:shared]]),
                distance(since) if buf.name in used else everything,
                _run(at, buf.shape, tile, 1),
                _run(at, buf.shape, tile + deep, 2),
                _run(at, buf.shape, tile + panel, 1),
            )
        )
    used.update((buf.name, loops) for buf, _, _ in places)
    return BlockFacts(
        b.name,
        product([x.extent for x in loops]),
        lane.extent if lane is not None else Const(1),
        product([x.extent for x in tile if x.kind == "unroll"]),
        product([x.extent for x in deep]),
        product([x.extent for x in outer if x.var in red]),
        product([x.extent for x in outer]),
        product([x.extent for x in loops if x.kind == "parallel"]),
        flops,
        special,
        selects(b),
        ITEMSIZE[dtype],
        b.reducer is not None,
        as_expr(dict(b.annotations).get("nontemporal", 0)),
        next((as_expr(n) for x in loops for key, n in x.annotations if key == "prefetch"), Const(0)),
        tuple(facts),
    )


def _shared(a: list[Loop], b: list[Loop]) -> int:
    """How many loops, from outside, two blocks have in common."""
    same = 0
    while same < min(len(a), len(b)) and a[same] is b[same]:
        same += 1
    return same


def _points(at: tuple[Expr, ...], shape: tuple[Expr, ...], over: list[Loop]) -> Expr:
    """Elements of the box that an access spans while the loops ``over`` run. Tails and guards may reach
    beyond the buffer, but touch nothing there."""
    spans = footprint([at], {x.var: x.extent for x in over}, shape, clip=False)
    return product([E.minimum(n, size) for (_, n), size in zip(spans, shape, strict=True)])


def _run(at: tuple[Expr, ...], shape: tuple[Expr, ...], over: list[Loop], dims: int) -> Expr:
    """Elements of that box that lie side by side: in the last dimension, and in so many of them where the
    box has all of what is within."""
    spans = footprint([at], {x.var: x.extent for x in over}, shape, clip=False)
    run: Expr = Const(1)
    whole: Expr = Const(1)  # or 0
    for (_, n), size in list(zip(spans, shape, strict=True))[: -dims - 1 : -1]:
        here = E.minimum(n, size)
        run = run * E.maximum(whole * here, Const(1))
        whole = whole * E.maximum(here - size + 1, Const(0))  # cheaper than a division
    return run


def _loaded(at: tuple[Expr, ...], shape: tuple[Expr, ...], tile: list[Loop]) -> Expr:
    """The same for a register tile, without the gaps that steps leave in the box."""
    spans = footprint([at], {x.var: x.extent for x in tile}, shape, clip=False)
    most = [product([x.extent for x in tile if x.var in E.variables(i)]) for i in at]
    return product(
        [E.minimum(E.minimum(n, m), size) for (_, n), m, size in zip(spans, most, shape, strict=True)]
    )


def _stride(at: tuple[Expr, ...], shape: tuple[Expr, ...], lane: Loop | None) -> Expr | None:
    """Elements between neighbouring lanes, by the row-major strides of the buffer; packed digits (``// %``)
    of the lane count as unit steps of their dimension."""
    if lane is None:
        return Const(0)
    out: Expr = Const(0)
    step: Expr = Const(1)
    for i, n in zip(reversed(at), reversed(shape), strict=True):
        if lane.var in E.variables(i):
            terms, _ = affine.linear(i)
            c = terms.get(Var(lane.var))
            if c is not None:
                out = out + c * step
            elif isinstance(i, E.Binary) and i.op == "%":
                out = out + step
            elif not (isinstance(i, E.Binary) and i.op == "//"):
                return None
        step = step * n
    return out


def number(e: Expr, env: Columns) -> Number:
    """An expression's value as floating point."""
    value = E.evaluate(e, env, env.known)
    return value.astype(np.float64) if hasattr(value, "astype") else np.float64(value)


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a target that the estimates need, in cycles of one core: from `Target.limits`."""

    vector: float
    registers: float
    l1: float
    l2: float
    l3: float
    threads: float

    @staticmethod
    def of(target: Target) -> Machine:
        return Machine(
            float(target.limit("vector_bytes", 16)),
            float(target.limit("vector_registers", 16)),
            float(target.limit("l1_bytes", 32 << 10)),
            float(target.limit("l2_bytes", 512 << 10)),
            float(target.limit("l3_bytes", 8 << 20)),
            float(target.threads),
        )


FEATURES_PER_BLOCK = (
    "instances",
    "vectors",
    "registers",
    "spills",
    "l1_conflicts",
    "l2_conflicts",
    "lanes",
    "lane_use",
    "unrolled",
    "reduction",
    "parts",
    "outer",
    "parallel",
    "balance",
    "tail_waste",
    "loads",
    "gathers",
    "issue_cycles",
    "inner_bytes",
    "panel_bytes",
    "inner_in_l1",
    "panel_in_l2",
    "l1_traffic",
    "l2_traffic",
    "memory_bytes",
    "fetched_bytes",
    "from_l2",
    "from_l3",
    "from_memory",
    "memory_runs",
    "selects",
    "cycles",
)


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile of a block: what of it must be in registers at once, and what its body loads."""

    lanes: Number
    unrolled: Number
    vectors: Number
    accumulators: Number
    registers: Number
    spills: Number
    loads: Number
    gathers: Number


def register_tile(b: BlockFacts, env: Columns, m: Machine) -> Tile:
    """Accumulators stay, the other operands stream through (Goto & van de Geijn, 2008)."""
    lanes, unrolled = number(b.lanes, env), number(b.unrolled, env)
    per = m.vector / b.item
    wide_registers = _registers(lanes, per)
    loads = gathers = accumulators = streams = np.zeros_like(lanes)
    for a in b.accesses:
        tile = number(a.tile, env)
        stride = None if a.stride is None else number(a.stride, env)
        wide = np.zeros_like(lanes, dtype=bool) if stride is None else stride == 1
        same = np.zeros_like(lanes, dtype=bool) if stride is None else stride == 0
        ops = np.where(wide, np.ceil(tile / lanes * wide_registers), tile)
        if a.write and b.reduces:
            accumulators = accumulators + ops
        else:
            loads = loads + ops
        if not a.write:
            streams = streams + np.where(same & ~wide, 1.0, wide_registers)
            gathers = gathers + np.where(wide | same, 0.0, tile)
    registers = accumulators + streams
    spills = np.maximum(registers - m.registers, 0.0)
    vectors = unrolled * wide_registers
    return Tile(lanes, unrolled, vectors, accumulators, registers, spills, loads, gathers)


def _registers(lanes: Number, per: float) -> Number:
    """Registers of so many lanes: full ones, and the rest in powers of two, as code generation cuts them."""
    rest = lanes % per
    return lanes // per + sum(rest // (1 << bit) % 2 for bit in range(int(per).bit_length() - 1))


def measure(b: BlockFacts, env: Columns, m: Machine) -> dict[str, Number]:
    """The quantities of one block, by the names in `FEATURES_PER_BLOCK`."""
    t = register_tile(b, env, m)
    lanes, unrolled, tile_vectors, spills = t.lanes, t.unrolled, t.vectors, t.spills
    loads, gathers = t.loads, t.gathers
    per = m.vector / b.item
    instances, reduction, outer = number(b.instances, env), number(b.reduction, env), number(b.outer, env)
    steps = instances / (lanes * unrolled)  # executions of the register tile
    inner_bytes = panel_bytes = memory = fetched = np.zeros_like(lanes)
    moved: list[Number] = [np.zeros(())] * len(RATES)
    asked = runs = np.zeros(())  # bytes that are read from memory, and in how many runs
    for a in b.accesses:
        inner_bytes = inner_bytes + number(a.inner, env) * a.item
        panel_bytes = panel_bytes + number(a.panel, env) * a.item
        memory = memory + number(a.whole, env) * a.item
        if a.write:  # what is written through the caches is fetched first
            fetched = fetched + number(a.whole, env) * a.item * (1.0 - number(b.streams, env))
        streams = number(b.streams, env) if a.write else np.zeros(())
        here = _moved(a, streams, lanes, unrolled, env, m)
        moved = [x + y for x, y in zip(moved, here, strict=True)]
        if not a.write:
            asked = asked + here[-1]
            runs = runs + here[-1] / a.item / _run_length(a, env)
    l2_traffic = inner_bytes * outer
    unrolled_steps = tile_vectors / np.maximum(t.accumulators, 1.0)
    l1_conflicts, l2_conflicts, missing = _conflicts(b, env, m, reduction * unrolled_steps)
    flops = max(b.flops, 1)
    math = tile_vectors * ((flops + 1) // 2 + 14.0 * b.special + SELECT_CYCLES * b.selects)
    # a step waits for the addition of the step before
    chains = ADD_CYCLES * unrolled_steps * b.reduces
    fetch = (loads + 2 * gathers) / LOADS
    issue = np.maximum(np.maximum(math / 2, fetch), chains) + 2 * spills + missing + 1.0
    parts = number(b.parts, env)
    returns = np.where(parts > 1, 2.0 * t.vectors, 0.0)  # cycles to fetch and return accumulators
    par = np.maximum(number(b.parallel, env), 1.0)
    share = np.where(par > 1, np.ceil(par / m.threads) / par, 1.0)
    l1_in = inner_bytes <= m.l1
    l2_in = panel_bytes <= m.l2
    traffic_cycles = np.where(l1_in, 0.0, l2_traffic / 32.0) + np.where(l2_in, 0.0, l2_traffic / 16.0)
    memory_cycles = sum(level / rate for level, rate in zip(moved, RATES, strict=True))
    memory_cycles = memory_cycles - HIDDEN * (number(b.ahead, env) > 0) * asked / RATES[-1]
    memory_cycles = memory_cycles + RUN_CYCLES * runs
    compute = steps * issue + outer * (6.0 + returns)
    cycles = np.maximum(compute + 0.3 * traffic_cycles, memory_cycles) * share
    whole = np.ceil(lanes / per) * per
    return {
        "instances": instances,
        "vectors": tile_vectors,
        "registers": t.registers,
        "spills": spills,
        "l1_conflicts": l1_conflicts,
        "l2_conflicts": l2_conflicts,
        "lanes": lanes,
        "lane_use": lanes / np.maximum(whole, 1.0),
        "unrolled": unrolled,
        "reduction": reduction,
        "parts": parts,
        "outer": outer,
        "parallel": par,
        "balance": 1.0 / (share * m.threads),
        "tail_waste": instances / np.maximum(_useful(b, env), 1.0),
        "loads": loads,
        "gathers": gathers,
        "issue_cycles": issue,
        "inner_bytes": inner_bytes,
        "panel_bytes": panel_bytes,
        "inner_in_l1": inner_bytes / m.l1,
        "panel_in_l2": panel_bytes / m.l2,
        "l1_traffic": steps * (loads + gathers) * m.vector,
        "l2_traffic": l2_traffic,
        "memory_bytes": memory,
        "fetched_bytes": fetched,
        "from_l2": moved[0],
        "from_l3": moved[1],
        "from_memory": moved[2],
        "memory_runs": runs,
        "selects": instances * b.selects,
        "cycles": cycles,
    }


def _moved(
    a: AccessFacts, streams: Number, lanes: Number, unrolled: Number, env: Columns, m: Machine
) -> list[Number]:
    """Bytes that an access brings from the second and third cache and from memory, by the bytes touched
    since they were used last. What is written through the caches is fetched first; what is streamed goes to
    memory whatever they hold, in lines, or in pieces of lines where these are more than there are buffers."""
    distance, count = number(a.distance, env), number(a.moved, env) * a.item
    far = distance > m.l3
    levels = [(distance > m.l1) & (distance <= m.l2), (distance > m.l2) & ~far, far]
    out = [count * (1.0 - streams) * level for level in levels]
    if a.write:
        piece = np.minimum(lanes * a.item, LINE)
        pieces = np.where((piece < LINE) & (unrolled > STREAMS), LINE / piece, 1.0)
        out[2] = 2.0 * out[2] + streams * count * pieces
    return out


def _run_length(a: AccessFacts, env: Columns) -> Number:
    """Elements that are read one after the other before memory is asked elsewhere: those of a panel or a
    reduction, where its runs are few enough to be followed at a time, else those of a tile."""
    length = number(a.run, env)
    for points, run in ((a.inner, a.inner_run), (a.panel, a.panel_run)):
        longer = number(run, env)
        followed = number(points, env) <= FOLLOWED * longer
        length = np.maximum(length, np.where(followed, longer, 0.0))
    return length


def _conflicts(b: BlockFacts, env: Columns, m: Machine, steps: Number) -> tuple[Number, Number, Number]:
    """How many times over the steps of a reduction fill the ways of the cache sets that they fall into, in
    the first and the second cache, and the cycles that a register tile loses where they do. Steps a power of
    two apart share few sets, so that nothing stays to be used again."""
    worst = [np.zeros(()), np.zeros(())]
    missing = np.zeros(())
    for a in b.accesses:
        if a.write or a.pitch is None or not b.reduces:
            continue
        pitch = number(a.pitch, env)
        lines = np.maximum(1.0, number(a.tile, env) * np.where(pitch == 1, 1.0, a.item / LINE))
        for level, (size, cycles) in enumerate(((m.l1, 2.0), (m.l2, 6.0))):
            full = np.where(np.abs(pitch) * a.item >= 2 * LINE, _fill(steps, pitch * a.item, size), 0.0)
            share = np.ones(())
            for extent, step in a.rows:
                share = share * _fill(number(extent, env), number(step, env) * a.item, size) * WAYS
            full = np.maximum(full, share / WAYS)
            worst[level] = np.maximum(worst[level], full)
            missing = missing + np.where(full > 1, cycles * lines, 0.0)
    return worst[0], worst[1], missing


def _fill(count: Number, step: Number, size: float) -> Number:
    """Ways that each set gets of so many lines, ``step`` bytes apart, over the ways that it has."""
    period = 1 << ((int(size) // WAYS).bit_length() - 1)  # bytes after which the sets repeat
    step = np.abs(step).astype(np.int64)
    sets = np.where(step < LINE, count, period / np.clip(step & -step, 1, period))
    return count / (WAYS * np.clip(sets, 1.0, np.maximum(count, 1.0)))


def _useful(b: BlockFacts, env: Columns) -> Number:
    """Points of the written buffers, times the reduction: instances without tails or recomputation."""
    written = [number(a.whole, env) for a in b.accesses if a.write]
    return written[0] * number(b.reduction, env) * number(b.parts, env) if written else np.ones(())

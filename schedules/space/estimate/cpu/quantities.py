"""Quantities of a scheduled nest on a CPU, for one candidate or for every row of a decision matrix.

`measure` evaluates the facts of a block on integers or on columns. The static limits, the features and the
analytic model all use it. Constants were fitted to measured candidates: ADR 17,
docs/measurements/estimates.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules import microarchitecture
from schedules.expr import Const, Expr
from schedules.model import LINE, Target
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.cpu.facts import AccessFacts, BlockFacts
from schedules.space.holes import Columns

# Latency of an addition to an accumulator (cycles).
ADD_CYCLES = 4.5
# Operations in flight at a time (the reorder buffer), and the most register tiles that they may belong to.
WINDOW = 270.0
TILES = 8.0
# Fused multiply-adds a cycle, in vectors.
UNITS = 2.0
# Loads a cycle beside other work: two ports, less what disturbs them.
LOADS = 1.6
# Bytes after which the sets of the first and the second cache repeat.
SETS = (4 << 10, 64 << 10)
# Cost of a line that a full set could not keep, in the first and the second cache (cycles).
MISSING = (1.0, 3.0)
# Largest number of such losses at a time.
MISSES = 6.0
# Lines to which streaming stores may go at a time.
STREAMS = 8
# Shortest run that streaming stores write at full speed (bytes).
PAIR = 128.0
# Cost of a select or comparison (cycles a vector).
SELECT_CYCLES = 1.5
# Cost of a register that is used again and waits on the stack (cycles a step).
KEPT = 0.4
# Shortest row of a square that is transposed in registers (bytes).
SQUARE = 16
# Time until memory answers at full speed, at the beginning of each run of addresses (cycles).
RUN_CYCLES = 30.0
# Bytes after which hardware prefetching begins anew.
PAGE = 4 << 10
# Largest power of two by which the distance of rows is classified (bytes).
ALIGNED = 16 << 10
# Runs read in turns that hardware prefetching follows at a time: without reuse; by instructions of their own.
FOLLOWED = 12
FOLLOWED_APART = 32
# Share of a cache that keeps what is used again.
HOLDS = 0.9
# Share of the shorter of computing and fetching that the longer does not hide.
EXPOSED = 0.2
# Share of memory's waiting time that software prefetching hides; of all of memory's time if blocks run
# meanwhile.
HIDDEN = 0.7


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Sizes (bytes) and rates (per cycle of one core) of a target, as the estimates need them."""

    vector: float
    registers: float
    l1: float
    l2: float
    l3: float
    threads: float
    passes: float = 1.0  # cycles that a vector occupies a unit or a port
    rates: tuple[float, ...] = microarchitecture.RATES

    @staticmethod
    def of(target: Target) -> CpuRates:
        """The sizes and rates of a target."""
        vector = float(target.limit("vector_bytes", 16))
        return CpuRates(
            vector,
            float(target.limit("vector_registers", 16)),
            float(target.limit("l1_bytes", 32 << 10)),
            float(target.limit("l2_bytes", 512 << 10)),
            float(microarchitecture.third_cache_bytes(target)),
            float(target.threads),
            max(vector / microarchitecture.unit_width(target, vector), 1.0),
            microarchitecture.rates(target),
        )


# Quantities of a block, by the names that `measure` gives them.
FEATURES_PER_BLOCK = (
    "instances",
    "vectors",
    "registers",
    "spills",
    "held",
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
    "inner_in_l1",
    "l1_traffic",
    "l2_traffic",
    "memory_bytes",
    "fetched_bytes",
    "from_l2",
    "from_l3",
    "from_memory",
    "ahead",
    "pipelined",
    "memory_runs",
    "strips",
    "paged_rows",
    "l1_touched",
    "l2_touched",
    "l1_run",
    "l2_run",
    "read_alignment",
    "write_alignment",
    "selects",
    "compute_cycles",
    "memory_cycles",
    "cycles",
)


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile of a block: what must be in registers at once, and what its body loads, in
    registers."""

    lanes: Number
    unrolled: Number
    vectors: Number
    accumulators: Number
    registers: Number
    spills: Number
    held: Number  # missing registers for what later steps of an unrolled reduction read again
    loads: Number
    wide: Number  # loads of whole vectors
    gathers: Number
    shuffles: Number


def register_tile(b: BlockFacts, env: Columns, m: CpuRates) -> Tile:
    """The register tile of a block. Accumulators stay, other operands stream through (Goto & van de Geijn,
    2008)."""
    lanes, unrolled, taps = number(b.lanes, env), number(b.unrolled, env), number(b.taps, env)
    per = m.vector / b.item
    wide_registers = _registers(lanes, per)
    loads = wide_loads = gathers = shuffles = accumulators = streams = again = np.zeros_like(lanes)
    for a in b.accesses:
        tile = number(a.tile, env)
        wide, same = _steps(a, 1, lanes, per, env), _steps(a, 0, lanes, per, env)
        side = np.minimum(lanes, per)
        squares = tile * np.where(wide | same, 0.0, _in_squares(a, side, env))
        rest = tile - squares + squares / side
        rest = np.where(same, np.minimum(rest, unrolled * wide_registers), rest)
        ops = np.where(wide, np.ceil(tile / lanes * wide_registers), rest)
        if a.write and b.reduces:
            accumulators = accumulators + ops
        else:
            loads = loads + ops
            wide_loads = wide_loads + np.where(wide, ops, 0.0)
        if not a.write:
            streams = streams + np.where(same & ~wide, 1.0, wide_registers)
            gathers = gathers + np.where(wide | same, 0.0, tile - squares)
            step = number(a.step, env)
            again = again + np.where(wide & (tile < step * taps), step / lanes * wide_registers, 0.0)
            shuffles = shuffles + squares / side * np.log2(side)
    registers = accumulators + streams
    spills = np.maximum(registers - m.registers, 0.0)
    held = np.maximum(registers + again - m.registers, 0.0) - spills
    vectors = unrolled * wide_registers
    return Tile(
        lanes, unrolled, vectors, accumulators, registers, spills, held, loads, wide_loads, gathers, shuffles
    )


def _steps(a: AccessFacts, step: int, lanes: Number, per: float, env: Columns) -> Number:
    """Whether neighbouring lanes of every register are ``step`` elements apart."""
    if a.stride is None:
        return np.zeros_like(lanes, dtype=bool)
    so = number(a.stride, env) == step
    for digit in a.digits:  # a tile, and each register in it, begins at a multiple of its lanes
        base = number(digit, env)
        so = so & ((base % lanes == 0) | (np.minimum(lanes, per) <= np.minimum(_unit(lanes), _unit(base))))
    return so


def _unit(n: Number) -> Number:
    """The largest power of two that divides a number."""
    whole = n.astype(np.int64)
    return whole & -whole


def _in_squares(a: AccessFacts, side: Number, env: Columns) -> Number:
    """Share of an access with lanes far apart that unrolled loops read in squares: rows side by side are
    loaded and transposed in registers (`autotune.codegen.llvm.transpose`)."""
    beside: Number = np.ones(())
    for extent, step in a.rows:
        beside = np.maximum(beside, np.where(number(step, env) == 1, number(extent, env), 1.0))
    whole = np.floor(beside / side) * side / beside
    return np.where(side * a.item >= SQUARE, whole, 0.0)


def _registers(lanes: Number, per: float) -> Number:
    """Registers for ``lanes`` lanes: full ones, and the rest in powers of two, as code generation cuts
    them."""
    rest = lanes % per
    return lanes // per + sum(rest // (1 << bit) % 2 for bit in range(int(per).bit_length() - 1))


@dataclass(frozen=True, slots=True)
class StepCycles:
    """Cycles of one execution of a register tile, by what they are spent on. What takes longest decides, as
    the others go on beside it. ``special``: the part of ``math`` that special functions and selects take."""

    math: Number
    special: Number
    loads: Number
    chains: Number  # each step waits for the addition of the step before


def step_cycles(b: BlockFacts, t: Tile, env: Columns, m: CpuRates) -> StepCycles:
    """The cycles of one execution of a register tile."""
    reduction = number(b.reduction, env)
    flops = max(b.flops, 1)
    special = t.vectors * (14.0 * b.special + SELECT_CYCLES * b.selects)
    math = t.vectors * ((flops + 1) // 2 + 14.0 * b.special + SELECT_CYCLES * b.selects) + t.shuffles
    # A step waits for the addition of the step before. Other tiles go on meanwhile if they are in the window.
    near = np.clip(WINDOW / (reduction * (t.vectors + t.loads)), 1.0, TILES)
    chains = ADD_CYCLES * (t.vectors / np.maximum(t.accumulators, 1.0)) * b.reduces / near
    loads = (t.loads + (m.passes - 1.0) * t.wide + 2 * t.gathers) / LOADS
    return StepCycles(math * (m.passes / UNITS), special * (m.passes / UNITS), loads, chains)


def measure(b: BlockFacts, env: Columns, m: CpuRates) -> dict[str, Number]:
    """The quantities of one block, by the names in `FEATURES_PER_BLOCK`."""
    t = register_tile(b, env, m)
    lanes, unrolled, tile_vectors, spills = t.lanes, t.unrolled, t.vectors, t.spills
    loads, gathers = t.loads, t.gathers
    per = m.vector / b.item
    instances, reduction, outer = number(b.instances, env), number(b.reduction, env), number(b.outer, env)
    steps = instances / (lanes * unrolled)  # executions of the register tile
    inner_bytes = memory = fetched = np.zeros_like(lanes)
    beyond, times = _again(b, env, m)
    asked = runs = np.zeros(())  # bytes read from memory, and the runs that they form
    far = strips = np.zeros(())  # bytes from beyond the second cache, and those bytes times strips
    for a in b.accesses:
        inner_bytes = inner_bytes + number(a.inner, env) * a.item
        memory = memory + number(a.whole, env) * a.item
        streams = number(b.streams, env) if a.write else np.zeros(())
        if a.write:  # an ordinary store fetches its line first
            fetched = fetched + number(a.whole, env) * a.item * (streams == 0)
        here = _beyond(a, streams, lanes, unrolled, env, m)
        beyond = [x + y for x, y in zip(beyond, here, strict=True)]
        if not a.write:
            asked = asked + here[-1]
            runs = runs + here[-1] / a.item / _run_length(a, env)
            far = far + here[1]
            strips = strips + here[1] * np.maximum(number(a.inner, env) / number(a.reach, env), 1.0)
    moved = [beyond[0] - beyond[1], beyond[1] - beyond[2], beyond[2]]
    asked, runs = asked * times, runs * times
    l2_traffic = inner_bytes * outer
    unrolled_steps = tile_vectors / np.maximum(t.accumulators, 1.0)
    l1_conflicts, l2_conflicts, missing = _conflicts(b, env, m, reduction * unrolled_steps)
    waits = step_cycles(b, t, env, m)
    kept = KEPT * t.held * number(b.taps, env)
    issue = np.maximum(np.maximum(waits.math, waits.loads), waits.chains) + 2 * spills + kept + 1.0
    parts = number(b.parts, env)
    returns = np.where(parts > 1, 2.0 * t.accumulators, 0.0)  # cycles to fetch and return accumulators
    par = np.maximum(number(b.parallel, env), 1.0)
    share = np.where(par > 1, np.ceil(par / m.threads) / par, 1.0)
    memory_cycles = sum(level / rate for level, rate in zip(moved, m.rates, strict=True))
    ahead = number(b.ahead, env)
    hidden = HIDDEN * (ahead > 0)
    begins = RUN_CYCLES * (runs + asked / PAGE)
    memory_cycles = memory_cycles + (1.0 - hidden) * begins - b.meanwhile * hidden * asked / m.rates[-1]
    compute = steps * issue + outer * (6.0 + returns)
    exposed = np.minimum(compute, memory_cycles) * EXPOSED
    cycles = (np.maximum(compute, memory_cycles) + exposed + steps * missing) * share
    whole = np.ceil(lanes / per) * per
    return {
        "instances": instances,
        "vectors": tile_vectors,
        "registers": t.registers,
        "spills": spills,
        "held": t.held,
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
        "inner_in_l1": inner_bytes / m.l1,
        "l1_traffic": steps * (loads + gathers) * m.vector,
        "l2_traffic": l2_traffic,
        "memory_bytes": memory,
        "fetched_bytes": fetched,
        "from_l2": moved[0],
        "from_l3": moved[1],
        "from_memory": moved[2],
        "ahead": ahead,
        "pipelined": number(b.pipelined, env),
        "memory_runs": runs,
        "strips": strips / np.maximum(far, 1.0),
        "paged_rows": _paged_rows(b, env),
        **_levels(b, env, m),
        "read_alignment": _alignment(b, False, env),
        "write_alignment": _alignment(b, True, env),
        "selects": instances * b.selects,
        "compute_cycles": compute,
        "memory_cycles": memory_cycles,
        "cycles": cycles,
    }


def _beyond(
    a: AccessFacts, streams: Number, lanes: Number, unrolled: Number, env: Columns, m: CpuRates
) -> list[Number]:
    """Bytes that an access brings from beyond the first cache, the second and the third, by the bytes touched
    since they were used last. What is written through the caches is fetched first; what is streamed goes to
    memory whatever they hold: in lines, one more for each run that nothing goes on with, or in pieces of
    lines where these are more than there are buffers; and lines one by one as slowly as pairs."""
    distance, count = number(a.distance, env), number(a.moved, env) * a.item
    through = 2.0 * count * (streams == 0) if a.write else count
    out = [np.where(distance > size, through, 0.0) for size in (m.l1, m.l2, m.l3)]
    if a.write:
        piece = np.minimum(lanes * a.item, LINE)
        run = number(a.run, env)
        alone: Number = a.item * np.where(number(a.tile, env) > run, run, _followed(a, env))
        torn = np.where(number(a.longer, env) > run, 0.0, LINE / a.item / run)  # at the ends of runs
        torn = np.where(streams > 1, 0.0, torn)  # they begin with a line
        pieces = np.where((piece < LINE) & (unrolled > STREAMS), LINE / piece, 1.0 + torn)
        pieces = np.maximum(pieces, PAIR / alone)
        out = [x + (streams > 0) * count * pieces for x in out]
    return out


def _levels(b: BlockFacts, env: Columns, m: CpuRates) -> dict[str, Number]:
    """The largest inner part of the loops whose lines fit the first cache, and the second: its bytes, and how
    many of them lie side by side. Prefetching follows long runs; whole rows are written as one."""
    lines: list[Number] = [np.zeros(()), np.zeros(())]
    runs: list[Number] = [np.ones(()), np.ones(())]
    for level in b.levels:
        here, apart = number(level.lines, env), number(level.runs, env)
        for k, cache in enumerate((m.l1, m.l2)):
            fits = here <= cache / LINE
            lines[k] = np.where(fits, here, lines[k])
            runs[k] = np.where(fits, apart, runs[k])
    touched = [LINE * n for n in lines]
    return {
        "l1_touched": touched[0],
        "l2_touched": touched[1],
        "l1_run": touched[0] / runs[0],
        "l2_run": touched[1] / runs[1],
    }


def _again(b: BlockFacts, env: Columns, m: CpuRates) -> tuple[list[Number], Number]:
    """Bytes that are brought again from beyond each cache because it cannot hold what is touched until they
    are used again; and how many times over memory is read for that. A cache holds what the largest inner part
    of the loops touches that fits; of the next larger one nothing is left (the reuse distance of Wolf & Lam,
    1991, by whole loops)."""
    again: list[Number] = [np.zeros(())] * len(m.rates)
    once: Number = np.ones(())
    sizes = [HOLDS * size for size in (m.l1, m.l2, m.l3)]
    for k, part in enumerate(b.nested if len(b.nested) > 1 else ()):
        each = [number(n, env) * a.item for n, a in zip(part.points, b.accesses, strict=True)]
        touched = sum(each)
        both = touched + sum(x for x, a in zip(each, b.accesses, strict=True) if a.write)
        if k == 0:
            once = both
            continue
        more = np.where(number(part.back, env) > 1, both * number(part.times, env) - once, 0.0)
        again = [np.maximum(x, np.where(touched > n, more, 0.0)) for x, n in zip(again, sizes, strict=True)]
    return again, 1.0 + again[-1] / np.maximum(once, 1.0)


def _followed(a: AccessFacts, env: Columns) -> Number:
    """Elements that lie side by side in a row of a tile and, along loops that go on from there, beyond it."""
    length = number(a.run, env)
    still: Number = np.ones((), dtype=bool)
    for extent, upto in a.walk:
        run = number(upto, env)
        on = (number(extent, env) == 1) | (run > length)
        length, still = np.where(still, np.maximum(length, run), length), still & on
    return length


def _run_length(a: AccessFacts, env: Columns) -> Number:
    """Elements that are read one after the other before memory is asked elsewhere: what a tile has of a run,
    or more where prefetching follows. It follows what each instruction reads (strides by the program counter;
    Baer & Chen, 1991), so along loops that go on until one goes elsewhere, of so many rows of a tile; and a
    few runs in turns, unless what is done with them keeps them apart."""
    run = number(a.run, env)
    share = np.minimum(1.0, FOLLOWED_APART * run / number(a.tile, env))
    length = 1.0 / (share / _followed(a, env) + (1.0 - share) / run)
    longer = number(a.longer, env)
    length = np.where(number(a.visits, env) <= FOLLOWED * longer, np.maximum(length, longer), length)
    return np.maximum(length, LINE / a.item)  # what else is in a line is used soon


def _conflicts(b: BlockFacts, env: Columns, m: CpuRates, steps: Number) -> tuple[Number, Number, Number]:
    """How many times over the steps of a reduction, or the rows of a tile, fill the ways of the cache sets
    that they fall into, in the first and the second cache, and the cycles that a register tile loses where
    they do. Steps a power of two apart share few sets, so that nothing stays to be used again: the rest of a
    line, or all of it."""
    missing = np.zeros(())
    sizes = (m.l1, m.l2)
    worst: list[Number] = [np.float64(period / size) for size, period in zip(sizes, SETS, strict=True)]
    for a in b.accesses:
        if a.write or a.pitch is None:
            continue
        far = [(n, step) for n, step in a.rows if not _beside(step, LINE // a.item)]
        if not far and _beside(a.pitch, 2 * LINE // a.item):
            continue
        pitch = np.abs(number(a.pitch, env))
        rows = [(number(n, env), np.abs(number(step, env)) * a.item) for n, step in far]
        wide = _steps(a, 1, number(b.lanes, env), m.vector / b.item, env)
        lines = np.maximum(1.0, number(a.tile, env) * np.where(pitch == 1, 1.0, a.item / LINE))
        near = 1.0 - np.minimum(np.where(wide, number(a.run, env), 1.0) * a.item / LINE, 1.0)
        later = 1.0 - (1.0 - near) / number(a.again, env)  # what is lost: of a line in a tile, of all of them
        for level, (size, period) in enumerate(zip(sizes, SETS, strict=True)):
            along = np.where(pitch * a.item >= 2 * LINE, _deep(steps, pitch * a.item, period), 0.0)
            across = np.ones(())
            for extent, step in rows:
                across = across * np.where(step < LINE, 1.0, _deep(extent, step, period))
            along, across = along * period / size, across * period / size
            worst[level] = np.maximum(worst[level], np.maximum(along, across))
            along = along - np.maximum(1.0, number(a.inner, env) * a.item / size)  # less what any steps fill
            across = across - np.maximum(1.0, lines * LINE / size)
            lost = np.clip(along, 0.0, MISSES) * later + np.clip(across, 0.0, MISSES) * near
            missing = missing + MISSING[level] * lines * lost
    return worst[0], worst[1], missing


def _alignment(b: BlockFacts, write: bool, env: Columns) -> Number:
    """The largest power of two that divides the bytes from row to row of what is read, or written, up to
    `ALIGNED`: such rows meet in sets of caches, in banks of memory, and in the low bits of an address by
    which a load is told from earlier stores."""
    out: Number = np.zeros(())
    for a in b.accesses:
        if a.write == write:
            out = np.maximum(out, np.minimum(_unit(number(a.row, env)), ALIGNED))
    return out.astype(np.float64)


def _paged_rows(b: BlockFacts, env: Columns) -> Number:
    """Rows of a register tile that lie in pages of their own: prefetching follows each by itself, and what
    is stored is fetched along all of them at once."""
    most: Number = np.ones(())
    for a in b.accesses:
        rows: Number = np.ones(())
        for extent, step in a.rows:
            apart = np.abs(number(step, env)) * a.item >= PAGE
            rows = rows * np.where(apart, number(extent, env), 1.0)
        most = np.maximum(most, rows)
    return most


def _beside(step: Expr, most: int) -> bool:
    """Whether a step is less than so many elements, whatever is decided."""
    return isinstance(step, Const) and abs(step.value) < most


def _deep(count: Number, step: Number, period: int) -> Number:
    """How many of so many lines, ``step`` bytes apart, fall into one set."""
    return np.maximum(count / (period / np.clip(_unit(step), 1, period)), 1.0)


def _useful(b: BlockFacts, env: Columns) -> Number:
    """Points of the written buffers, times the reduction: instances without tails or recomputation."""
    written = [number(a.whole, env) for a in b.accesses if a.write]
    return written[0] * number(b.reduction, env) * number(b.parts, env) if written else np.ones(())

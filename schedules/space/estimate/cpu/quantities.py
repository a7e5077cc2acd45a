"""Quantities of a scheduled nest on a CPU, for one candidate or for every row of a decision matrix.

`measure` evaluates the facts of a block on integers or on columns. The static limits, the features and the
analytic model all use it. Constants were fitted to measured candidates: ADR 17,
docs/measurements/estimates.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.expr import Const, Expr
from schedules.model import LINE
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.cpu.facts import AccessFacts, BlockFacts
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.estimate.cpu.traffic import PAGE, BlockTraffic, traffic, waits
from schedules.space.holes import Columns

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
# Cost of a select or comparison (cycles a vector).
SELECT_CYCLES = 1.5
# Cost of a register that is used again and waits on the stack (cycles a step).
KEPT = 0.4
# Shortest row of a square that is transposed in registers (bytes).
SQUARE = 16
# Bytes of a float that floats of storage are computed as.
COMPUTED = 4
# Time until memory answers at full speed, at the beginning of each run of addresses (cycles).
RUN_CYCLES = 30.0
# Largest power of two by which the distance of rows is classified (bytes).
ALIGNED = 16 << 10
# Share of the shorter of computing and fetching that the longer does not hide.
EXPOSED = 0.2
# Share of memory's waiting time that software prefetching hides; of all of memory's time if blocks run
# meanwhile.
HIDDEN = 0.7


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
class RegisterTile:
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
    conversions: Number  # vector operations that convert floats of storage


def register_tile(b: BlockFacts, env: Columns, m: CpuRates) -> RegisterTile:
    """The register tile of a block. Accumulators stay, other operands stream through (Goto & van de Geijn,
    2008)."""
    lanes, unrolled, taps = number(b.lanes, env), number(b.unrolled, env), number(b.taps, env)
    per = m.vector / b.item
    wide_registers = _registers(lanes, per)
    loads = wide_loads = gathers = shuffles = conversions = np.zeros_like(lanes)
    accumulators = streams = again = loads
    for a in b.accesses:
        tile = number(a.tile, env)
        wide, same = _steps(a, 1, lanes, per, env), _steps(a, 0, lanes, per, env)
        side = np.minimum(lanes, per)
        squares = tile * np.where(wide | same, 0.0, _in_squares(a, side, env))
        rest = tile - squares + squares / side
        rest = np.where(same, np.minimum(rest, unrolled * wide_registers), rest)
        ops = np.where(wide, np.ceil(tile / lanes * wide_registers), rest)
        if a.conversion:  # in registers of the dtype that is computed with
            conversions = conversions + ops * (a.conversion * COMPUTED / min(b.item, COMPUTED))
        if a.write and b.reduces:
            accumulators = accumulators + ops
        else:
            if a.pieces:
                ops = np.maximum(ops, tile * a.pieces * a.across)
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
    return RegisterTile(
        lanes, unrolled, vectors, accumulators, registers, spills, held, loads, wide_loads, gathers, shuffles,
        conversions,
    )  # fmt: skip


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


def step_cycles(b: BlockFacts, t: RegisterTile, env: Columns, m: CpuRates) -> StepCycles:
    """The cycles of one execution of a register tile."""
    reduction = number(b.reduction, env)
    flops = max(b.flops, 1)
    special = t.vectors * (14.0 * b.special + SELECT_CYCLES * b.selects)
    plain = t.vectors * m.steps(flops, b.integer_steps)
    math = plain + special + t.shuffles
    if any(a.conversion for a in b.accesses):
        math = math + t.conversions
    # A step waits for the addition of the step before. Other tiles go on meanwhile if they are in the window.
    near = np.clip(WINDOW / (reduction * (t.vectors + t.loads)), 1.0, TILES)
    chains = m.latency * (t.vectors / np.maximum(t.accumulators, 1.0)) * b.reduces / near
    loads = (t.loads + (m.passes - 1.0) * t.wide + 2 * t.gathers) / LOADS
    return StepCycles(math * (m.passes / UNITS), special * (m.passes / UNITS), loads, chains)


def measure(b: BlockFacts, env: Columns, m: CpuRates) -> dict[str, Number]:
    """The quantities of one block, by the names in `FEATURES_PER_BLOCK`."""
    unit = m.of_instruction(b.instruction)
    t = register_tile(b, env, unit)
    moved = traffic(b, t.lanes, t.unrolled, env, m)
    whole, reduction, outer = number(b.instances, env), number(b.reduction, env), number(b.outer, env)
    runs = 1.0 if b.domain is None else b.domain.share(env)
    instances = whole * runs
    steps = instances / (t.lanes * t.unrolled)  # executions of the register tile
    unrolled_steps = t.vectors / np.maximum(t.accumulators, 1.0)
    l1_conflicts, l2_conflicts, missing = _conflicts(b, env, m, reduction * unrolled_steps)
    step = step_cycles(b, t, env, unit)
    kept = KEPT * t.held * number(b.taps, env)
    issue = np.maximum(np.maximum(step.math, step.loads), step.chains) + 2 * t.spills + kept + 1.0
    parts = number(b.parts, env)
    returns = np.where(parts > 1, 2.0 * t.accumulators, 0.0)  # cycles to fetch and return accumulators
    par = np.maximum(number(b.parallel, env), 1.0)
    share = np.where(par > 1, np.ceil(par / m.threads) / par, 1.0)
    memory_cycles = _memory_cycles(b, moved, env, unit) * runs
    compute = steps * issue + outer * (6.0 + returns)
    exposed = np.minimum(compute, memory_cycles) * EXPOSED
    stalls = steps * missing + waits(b, env, m)
    return {
        "instances": instances,
        **_of_tile(t, unit.vector / b.item),
        "l1_conflicts": l1_conflicts,
        "l2_conflicts": l2_conflicts,
        "reduction": reduction,
        "parts": parts,
        "outer": outer,
        "parallel": par,
        "balance": 1.0 / (share * m.threads),
        "tail_waste": whole / np.maximum(_useful(b, env), 1.0),
        "issue_cycles": issue,
        **_of_traffic(moved, m),
        "l1_traffic": steps * (t.loads + t.gathers) * m.vector,
        "l2_traffic": moved.inner * outer,
        "ahead": number(b.ahead, env),
        "pipelined": number(b.pipelined, env),
        "paged_rows": _paged_rows(b, env),
        **_levels(b, env, m),
        "read_alignment": _alignment(b, False, env),
        "write_alignment": _alignment(b, True, env),
        "selects": instances * b.selects,
        "compute_cycles": compute,
        "memory_cycles": memory_cycles,
        "cycles": (np.maximum(compute, memory_cycles) + exposed + stalls) * share,
    }


def _of_tile(t: RegisterTile, per: float) -> dict[str, Number]:
    """Quantities of a register tile. ``per``: lanes of a register."""
    return {
        "vectors": t.vectors,
        "registers": t.registers,
        "spills": t.spills,
        "held": t.held,
        "lanes": t.lanes,
        "lane_use": t.lanes / np.maximum(np.ceil(t.lanes / per) * per, 1.0),
        "unrolled": t.unrolled,
        "loads": t.loads,
        "gathers": t.gathers,
    }


def _of_traffic(moved: BlockTraffic, m: CpuRates) -> dict[str, Number]:
    from_l2, from_l3, from_memory = moved.levels
    return {
        "inner_bytes": moved.inner,
        "inner_in_l1": moved.inner / m.l1,
        "memory_bytes": moved.whole,
        "fetched_bytes": moved.fetched,
        "from_l2": from_l2,
        "from_l3": from_l3,
        "from_memory": from_memory,
        "memory_runs": moved.runs,
        "strips": moved.strips,
    }


def _memory_cycles(b: BlockFacts, moved: BlockTraffic, env: Columns, m: CpuRates) -> Number:
    """Cycles that memory and the caches take, less what prefetching hides."""
    cycles = sum(level / rate for level, rate in zip(moved.levels, m.rates, strict=True))
    hidden = HIDDEN * (number(b.ahead, env) > 0)
    begins = RUN_CYCLES * (moved.runs + moved.asked / PAGE)
    return cycles + (1.0 - hidden) * begins - b.meanwhile * hidden * moved.asked / m.rates[-1]


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

"""Quantities of a scheduled nest, for one candidate or for every row of a decision matrix: `measure`
evaluates the facts of its blocks, on integers or on columns. One definition feeds the static limits, the
features and the analytic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schedules import expr as E
from schedules.expr import Expr
from schedules.model import LINE, Target
from schedules.space.facts import AccessFacts, BlockFacts
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

"""Sections on a nest for CPUs: memory levels, registers, vectors, cores, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.explain.definition import ARITHMETIC, BYTES, SPECIAL
from autotune.results.explanation import Row, Section
from schedules import expr as E
from schedules.constants import split_constants
from schedules.dtypes import DTYPES
from schedules.ir import Nest, blocks
from schedules.model import LINE, Target, Workload
from schedules.space.estimate.counting import number
from schedules.space.estimate.cpu.facts import BlockFacts, analyse
from schedules.space.estimate.cpu.quantities import UNITS, measure, register_tile, step_cycles
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.estimate.iterations import iterations
from schedules.space.estimate.quotients import Quotient, quotient
from schedules.space.estimate.traffic import BufferTraffic, TrafficTerm, traffic
from schedules.space.holes import Columns
from schedules.te.flops import main_dtype
from schedules.units import digits, percent, size

BLOCKS = 4  # blocks that are described, those that take longest
LEVELS = ("L1 and L2", "L2 and L3", "L3 and memory")
FEW = 0.03  # of all cycles: blocks that take less are summed up
FEWER = 1.05  # times fewer bytes that are told
NEAR = 0.9  # what takes this share of the longest bounds a block too


def sections(
    workload: Workload, plain: Nest, nest: Nest, target: Target, limited_by: str | None = None
) -> list[Section]:
    """All sections. ``plain``: the nest of the definition without a schedule. ``limited_by``: what the
    machine's limit is that of, if it is known (`definition.limited_by`)."""
    nest, packing = split_constants(nest, workload.dag.constants)
    rates = CpuRates.of(target)
    facts = analyse(nest)
    measured = [(b, {k: _float(v) for k, v in measure(b, Columns(), rates).items()}) for b in facts]
    total = sum(m["cycles"] for _, m in measured)
    order = sorted(measured, key=lambda x: -x[1]["cycles"])
    hottest = [x for n, x in enumerate(order) if n == 0 or (n < BLOCKS and x[1]["cycles"] >= FEW * total)]
    bounds = [_bound(b, m, rates, total) for b, m in hottest]
    if rest := order[len(hottest) :]:
        bounds.append(_rest(rest, total))
    if limited_by is not None:
        bounds.append(_beside_limit(str(bounds[0].numbers["bound"]), limited_by))
    return [
        Section("What bounds it", tuple(bounds)),
        _levels(workload, plain, nest, rates),
        _formulas(nest, rates),
        *([_packing(packing)] if packing else []),
        *(_block(nest, b, m, rates, target) for b, m in hottest),
    ]


def _beside_limit(bound: str, limited_by: str) -> Row:
    """What bounds this schedule, and what bounds the best one that there could be: not always the same."""
    kind = SPECIAL if bound.startswith("special") else BYTES if bound.startswith("bytes") else ARITHMETIC
    text = f"that of {limited_by}"
    if kind != limited_by:
        text += f"; by the estimate this schedule takes longer, with {bound}"
    return Row("machine's limit", text, "log", {"limit": limited_by, "same": int(kind == limited_by)})


def _rest(blocks: Sequence[tuple[BlockFacts, Mapping[str, float]]], total: float) -> Row:
    cycles = sum(m["cycles"] for _, m in blocks)
    names = ", ".join(b.name for b, _ in blocks)
    text = f"{digits(cycles)} cycles, {percent(cycles / total if total else 0.0)} of all, in {names}"
    return Row("others", text, "estimate", {"cycles": cycles, "blocks": len(blocks)})


def bound(workload: Workload, nest: Nest, target: Target) -> str:
    """What takes the most cycles of the block that takes longest."""
    nest = split_constants(nest, workload.dag.constants)[0]
    rates = CpuRates.of(target)
    each = [(b, {k: _float(v) for k, v in measure(b, Columns(), rates).items()}) for b in analyse(nest)]
    return str(_bound(*max(each, key=lambda x: x[1]["cycles"]), rates, 0.0).numbers["bound"])


def register_bytes(facts: Sequence[BlockFacts]) -> int:
    """Bytes that a nest moves between registers and the first cache. A register tile loads what it touches
    each time. Accumulators stay for the whole run of a reduction, unless its loops go on to others: then they
    are loaded and stored each time."""
    total = 0.0
    for b in facts:
        outer, tiles = (_float(number(x, Columns())) for x in (b.outer, b.instances))
        steps = tiles / (_float(number(b.lanes, Columns())) * _float(number(b.unrolled, Columns())))
        again = 2 if _float(number(b.parts, Columns())) > 1 else 1  # partial results are loaded again
        for a in b.accesses:
            tile, inner = _float(number(a.tile, Columns())), _float(number(a.inner, Columns()))
            times = steps
            if a.write and b.reduces:
                times = outer * again if inner <= tile else 2 * steps
            total += tile * a.item * times
    return round(total)


def _levels(workload: Workload, plain: Nest, nest: Nest, rates: CpuRates) -> Section:
    flops = workload.flops
    item = DTYPES[main_dtype(workload.dag)].itemsize
    fma = 2 * rates.vector / item
    units = [(b.instruction, rates.of_instruction(b.instruction).cost) for b in analyse(nest)]
    most = max([fma, *(i.operations / cost for i, cost in units if i is not None and cost is not None)])
    most *= UNITS / rates.passes  # operations a cycle
    file = rates.vector * rates.registers
    before, after = (register_bytes(analyse(n)) for n in (plain, nest))
    rows = [_moved("registers and L1", before, after, flops, None)]
    for name, cache, rate in zip(LEVELS, (rates.l1, rates.l2, rates.l3), rates.rates, strict=True):
        rows.append(
            _moved(
                name, traffic(plain, cache, file).bytes, traffic(nest, cache, file).bytes, flops, most / rate
            )
        )
    return Section("Bytes moved between levels: plain loops, and this schedule", tuple(rows))


def _packing(packing: Mapping[str, Nest]) -> Section:
    rows = tuple(
        Row(name, "laid out as the kernel reads it once, ahead of all calls", "definition", {"packed": 1})
        for name in packing
    )
    return Section("Constants that are packed", rows)


def _moved(name: str, before: int, after: int, flops: int, balance: float | None) -> Row:
    text = f"{size(before)} -> {size(after)}"
    numbers: dict[str, Any] = {"before_bytes": before, "after_bytes": after, "balance": balance}
    if after:
        text += f" ({before / after:.3g} times less)" if before > FEWER * after else ""
        numbers |= {"before_intensity": flops / before if before else None, "intensity": flops / after}
        text += f"; {flops / after:.3g} operations a byte"
        if balance is not None:
            verdict = "enough" if flops / after >= balance else "too few"
            text += f", {verdict} for a core's {balance:.3g}"
    return Row(name, text, "estimate", numbers)


def _formulas(nest: Nest, rates: CpuRates) -> Section:
    rows = []
    for name, cache in zip(LEVELS, (rates.l1, rates.l2, rates.l3), strict=True):
        found = traffic(nest, cache, rates.vector * rates.registers)
        again = [b for b in found.buffers if b.fetched > FEWER * b.size + LINE]
        told = {b.buffer: q for b in again if (q := quotient(nest, b)) is not None}
        rows += [_formula(f"{name}: {b.buffer}", b, cache, told.get(b.buffer)) for b in again]
        if told:
            lengths = ", ".join(f"{axis} = {n}" for axis, n in next(iter(told.values())).axes)
            text = f"{' + '.join(map(str, told.values()))} elements of {' and '.join(told)}; {lengths}"
            total = sum(q.elements for q in told.values())
            rows.append(Row(f"{name}: sum", text, "estimate", {"elements": total}))
        if len(again) < len(found.buffers):
            rest = [b for b in found.buffers if b not in again]
            names, moved = ", ".join(b.buffer for b in rest), sum(b.fetched for b in rest)
            once = f"each line once: {size(moved)} of {names}"
            rows.append(
                Row(f"{name}: {'others' if again else 'all'}", once, "estimate", {"fetched_bytes": moved})
            )
    return Section("How often buffers are read: iterations x what is touched inside", tuple(rows))


def _formula(name: str, b: BufferTraffic, cache: float, quotient: Quotient | None) -> Row:
    text = f"{' + '.join(map(_term, b.parts))} = {size(b.fetched)}"
    text += f", {b.fetched / b.size:.3g} times its {size(b.size)}"
    if b.written:
        text += f"; {size(b.written)} written back"
    numbers = {
        "fetched_bytes": b.fetched,
        "written_bytes": b.written,
        "size_bytes": b.size,
        "cache_bytes": int(cache),
        "divisor": None if quotient is None else quotient.divisor,
    }
    return Row(name, text, "estimate", numbers)


def _term(p: TrafficTerm) -> str:
    """``c_i_0 16 x c_j_0 16 x 65.5 KB in c_k``."""
    words = [f"{var} {n}" for var, n in p.outside if n > 1] + [size(p.bytes)]
    return " x ".join(words) + (f" in {p.loop}" if p.loop else "")


def _block(nest: Nest, b: BlockFacts, m: dict[str, float], rates: CpuRates, target: Target) -> Section:
    rates = rates.of_instruction(b.instruction)
    t = register_tile(b, Columns(), rates)
    accumulators, registers = _float(t.accumulators), m["registers"]
    spills = f"{m['spills']:g} too many, which go to the stack" if m["spills"] else "none is spilled"
    used = f"{registers:g} of {rates.registers:g}, {accumulators:g} of them accumulators; {spills}"
    per = rates.vector / b.item
    lanes = f"{m['lanes']:g} lanes a step, {per:g} a register; {percent(m['lane_use'])} of lanes are used"
    if m["lanes"] == 1:
        lanes = f"none: one element at a time of {per:g} that a register holds"
    many = "s" if m["parallel"] > 1 else ""
    tasks = f"{m['parallel']:g} task{many} on {target.threads} thread{'s' if target.threads > 1 else ''}"
    rows = [
        Row("registers", used, "estimate", {
            "registers": registers, "accumulators": accumulators, "spills": m["spills"],
            "of": rates.registers,
        }),
        Row("vectors", lanes, "estimate",
            {"lanes": m["lanes"], "lane_use": m["lane_use"], "per_register": per}),
        Row("tile", f"{m['unrolled']:g} unrolled x {m['lanes']:g} lanes, {m['loads']:g} loads and "
            f"{m['gathers']:g} gathers a step", "estimate",
            {"unrolled": m["unrolled"], "loads": m["loads"], "gathers": m["gathers"]}),
        Row("cores", f"{tasks}; {percent(m['balance'])} of their time is used", "estimate",
            {"tasks": m["parallel"], "threads": target.threads, "balance": m["balance"]}),
        _tails(nest, b.name),
        Row("prefetching", f"{m['ahead']:g} iterations ahead" if m["ahead"] else "left to the hardware",
            "estimate", {"ahead": m["ahead"]}),
    ]  # fmt: skip
    if b.instruction is not None:
        rows.insert(0, Row("instruction", f"{b.instruction}: {b.instruction.doc}", "definition", {}))
    return Section(f"Block {b.name}", tuple(rows))


def _tails(nest: Nest, block: str) -> Row:
    b = next(b for b in blocks(nest.body) if b.name == block)
    found = iterations(nest, b)
    if found is None:
        why = (
            "data decides what runs" if any(map(E.loads, b.where)) else "too many loops depend on each other"
        )
        return Row("tails", f"not known: {why}", "estimate", {"guarded": None})
    text = "none: every iteration runs"
    if found.run < found.all:
        text = f"{percent(found.guarded)} are cut off: {found.run:,} of {found.all:,} iterations run"
    if found.run > found.points:
        text += f"; each point is computed {found.again:.3g} times"
    numbers = {"guarded": found.guarded, "again": found.again, "run": found.run, "points": found.points}
    return Row("tails", text, "estimate", numbers | {"iterations": found.all})


def _bound(b: BlockFacts, m: dict[str, float], rates: CpuRates, total: float) -> Row:
    """What takes the most cycles. The parts of a step go on beside each other, and so do computing and
    memory."""
    rates = rates.of_instruction(b.instruction)
    t = register_tile(b, Columns(), rates)
    step = step_cycles(b, t, Columns(), rates)
    steps = m["instances"] / (m["lanes"] * m["unrolled"])
    cycles = {
        "special functions and selects": steps * _float(step.special),
        "arithmetic": steps * (_float(step.math) - _float(step.special)),
        "loads": steps * _float(step.loads),
        "latency of additions": steps * _float(step.chains),
        "spilled registers": steps * 2 * m["spills"],
    }
    moved = (m["from_l2"], m["from_l3"], m["from_memory"])
    for name, n, rate in zip(("L2", "L3", "memory"), moved, rates.rates, strict=True):
        cycles[f"bytes from {name}"] = n / rate
    worst = max(cycles, key=lambda k: cycles[k])
    others = [k for k in cycles if k != worst and cycles[worst] and cycles[k] >= NEAR * cycles[worst]]
    text = f"{worst}: {digits(cycles[worst])} cycles" + (
        f"; nearly as long: {', '.join(others)}" if others else ""
    )
    few = m["parallel"] < rates.threads
    if few:
        text += f"; only {m['parallel']:g} of {rates.threads:g} threads have a task"
    share = m["cycles"] / total if total else 0.0
    text += f"; the block takes {percent(share)} of all cycles"
    numbers: dict[str, Any] = {
        "bound": worst,
        "too_few_tasks": int(few),
        "share": share,
        "cycles": m["cycles"],
    }
    return Row(
        b.name, text, "estimate", numbers | {f"{k.replace(' ', '_')}_cycles": v for k, v in cycles.items()}
    )


def _float(v: Any) -> float:
    return float(v)
